"""One timeline of an incident: device, rank, checkpoint, decision and orders, each with its moment."""

import pytest

from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.samples import XidEvent
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.selectors import incident_detail
from tests.integration.backend.builders import (
    commit_step,
    flush_all,
    install_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db


def test_what_happened_to_a_device_a_rank_and_a_checkpoint_stands_beside_what_was_decided() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    victim = live_ranks(job)[0]
    fleet.tell(victim.node.name, frames.XidSeen(XidEvent(index=victim.device.index, xid=79)))
    kill_rank(fleet, victim)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    commit_step(fleet, job, 2)
    saver = live_ranks(job)[-1]
    home = job.attempts.get().checkpoint_dir
    said = CheckpointReport(2, f"{home}/step_2", "complete", "emergency", Job.objects.get(pk=job.pk).epoch, digest="d")
    fleet.tell(saver.node.name, frames.RankSaid(ref_of(saver), said))
    detail = incident_detail(Incident.objects.get(job=job).id)
    found = {signal["kind"]: signal for signal in detail["signals"]}
    assert (found["xid"]["node_id"], found["xid"]["device_index"]) == (victim.node_id, victim.device.index)
    assert (found["rank_exit"]["replica"], found["rank_exit"]["rank"]) == (victim.replica.index, victim.rank)
    chosen = [decision for decision in detail["decisions"] if decision["rule"] == "replica_failure"]
    assert len(chosen) == 1
    assert {"deliver_view", "stop_ranks"} <= {order["kind"] for order in chosen[0]["commands"]}
    told = detail["events"]
    assert [event["seq"] for event in told] == sorted(event["seq"] for event in told)
    kinds = {event["kind"] for event in told}
    assert {"signal.xid", "signal.rank_exit", "decision.made", "checkpoint.complete"} <= kinds, kinds
    assert all(event["at"] and event["sentence"] for event in told)
