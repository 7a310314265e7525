"""The machine that an incident names is the one on which something failed, whoever reported it first."""

import pytest

from controlplane.protocol import frames
from controlplane.protocol.rank import OuterError
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db


def test_a_survivor_whose_exchange_broke_first_is_not_the_machine_of_the_incident() -> None:
    """The others notice a killed rank by their broken exchange, often before its own agent reports the exit."""
    fleet = make_fleet(5)
    job = run_job(fleet)
    killed = next(row for row in live_ranks(job) if row.replica.index == 0)
    survivor = next(row for row in live_ranks(job) if row.replica.index == 1)
    assert survivor.node_id != killed.node_id
    fleet.tell(survivor.node.name, frames.RankSaid(ref_of(survivor), OuterError(job.epoch, 1, "connection closed")))
    kill_rank(fleet, killed)
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    assert [signal.kind for signal in incident.signals.order_by("seen_at")] == ["outer_error", "rank_exit"]
    assert killed.node.name in incident.title
    assert incident.node == killed.node
