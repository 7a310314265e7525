"""One timeline of an incident: device, rank, checkpoint, decision and orders, each with its moment."""

import pytest

from controlplane.fleet.publish import publish_node
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import course
from controlplane.recovery.models import Incident, RankLook, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.selectors import LEFT_OUT, incident_detail
from controlplane.runtime import events
from controlplane.runtime.clock import after, ago
from controlplane.runtime.models import Event
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


def opened(job: Job, seconds_ago: float) -> Incident:
    at = ago(seconds_ago)
    return Incident.objects.create(id="inc_1", job=job, title="t", opened_at=at, began=course.mark(job, at))


def test_a_long_recovery_keeps_its_end_and_says_what_is_left_out() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    incident = opened(job, -100.0)
    Event.objects.all().update(at=ago(1000.0))
    with events.unit_of_work():
        for number in range(700):
            events.publish("rank.told", f"event {number}", job_id=job.id)
    Event.objects.filter(kind="rank.told").update(at=after(200.0))
    told = incident_detail(incident.id)["events"]
    assert (told[0]["sentence"], told[-1]["sentence"]) == ("event 0", "event 699")
    marks = [event for event in told if event["kind"] == LEFT_OUT]
    assert len(marks) == 1
    assert marks[0]["data"]["total"] == 700
    assert len(told) - 1 + marks[0]["data"]["left_out"] == 700
    assert f"{marks[0]['data']['left_out']} of 700 events" in marks[0]["sentence"]
    assert [event["seq"] for event in told] == sorted({event["seq"] for event in told})
    place = told.index(marks[0])
    last_before, first_after = told[place - 1]["seq"], told[place + 1]["seq"]
    assert (marks[0]["data"]["first_seq"], marks[0]["data"]["last_seq"]) == (last_before + 1, first_after - 1)


def test_of_too_many_looks_the_newest_are_kept_and_the_rest_is_counted() -> None:
    job = run_job(make_fleet(), steps=0)
    incident = opened(job, 100.0)
    RankLook.objects.bulk_create(
        RankLook(
            id=f"look_{n:04}", job=job, incident=incident, replica=0, incarnation=1, rank=n, look="stacks",
            method="faulthandler", text=f"stack {n}", at=after(float(n)),
        )
        for n in range(400)
    )  # fmt: skip
    stacks = incident_detail(incident.id)["stacks"]
    assert (stacks[0]["text"], stacks[-1]["text"]) == ("stack 0", "stack 399")
    marks = [stack for stack in stacks if stack["diagnostic"] == "left_out"]
    assert [mark["method"] for mark in marks] == [f"{400 - len(stacks) + 1} of 400 diagnostics are left out here"]


def test_a_jobs_incident_has_the_events_of_the_nodes_its_signals_name_and_what_led_to_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    Event.objects.all().update(at=ago(5000.0))
    incident = opened(job, 100.0)
    Signal.objects.create(
        id="sig_1", kind="node_silent", key="k", job=job, node=fleet.nodes["n1"], incident=incident, seen_at=ago(100.0)
    )
    with events.unit_of_work():
        for name, sentence in (("n1", "early"), ("n1", "led to it"), ("n1", "cordoned"), ("n2", "elsewhere")):
            publish_node(fleet.nodes[name], "node.changed", sentence)
        publish_node(fleet.nodes["n1"], "node.changed", "afterwards")
        events.publish("job.changed", "its own", job_id=job.id)
        events.publish("job.changed", "another job's", job_id="job_other", node_id=fleet.nodes["n1"].id)
    moments = {"early": 170.0, "led to it": 150.0, "cordoned": 50.0, "elsewhere": 50.0, "afterwards": 10.0}
    for sentence, seconds in {**moments, "its own": 150.0, "another job's": 50.0}.items():
        Event.objects.filter(sentence=sentence).update(at=ago(seconds))
    Incident.objects.update(resolved_at=ago(20.0))
    assert [event["sentence"] for event in incident_detail(incident.id)["events"]] == [
        "led to it",
        "cordoned",
        "its own",
    ]
