"""What a node that lies can do with notices: nothing to others, nothing at absurd times, nothing by saying it often."""

import msgspec
import pytest

from controlplane.fleet.models import KnownEnd
from controlplane.jobs.models import Job, Replica
from controlplane.protocol import frames
from controlplane.protocol.bounds import MAX_NOTICE_S
from controlplane.protocol.codec import decode_from_agent, encode_frame
from controlplane.protocol.errors import MalformedFrame
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_node_can_announce_its_own_end_alone() -> None:
    assert {field.name for field in msgspec.structs.fields(frames.NodeNotice)} == {"leaves_in_s", "reason"}
    fleet = make_fleet()
    job = run_job(fleet)
    liar = next(row.node.name for row in live_ranks(job) if row.replica.index == 1)
    fleet.tell(liar, frames.NodeNotice(120.0, "all nodes leave"))
    assert [row.node.name for row in KnownEnd.objects.all()] == [liar]
    reconcile_job(job.id)
    ordered = Replica.objects.filter(attempt__job=job).exclude(ordered_out="")
    assert [row.index for row in ordered] == [1], "its own replica moves; the others train on"


@pytest.mark.parametrize("in_s", [-1.0, MAX_NOTICE_S + 1.0, 1e300, float("inf"), float("nan")])
def test_a_time_that_is_none_does_not_pass_the_door(in_s: float) -> None:
    event = frames.AgentEvent(1, 0.0, frames.NodeNotice(in_s, "r"))
    frame = frames.AgentFrame(seq=1, uptime_s=1.0, events=(event,))
    with pytest.raises((MalformedFrame, ValueError)):
        decode_from_agent(encode_frame(frame))


def test_a_flood_of_notices_is_one_row_and_moves_nobody_twice() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    name = next(row.node.name for row in live_ranks(job) if row.replica.index == 1)
    fleet.tell(name, *(frames.NodeNotice(60.0 + number, f"notice {number}") for number in range(200)))
    assert KnownEnd.objects.filter(over_at=None).count() == 1
    for _ in range(5):
        reconcile_job(job.id)
        fleet.tell(name, frames.NodeNotice(300.0, "later"))
    assert Replica.objects.filter(attempt__job=job).count() <= 4, "one successor, no more"


def test_one_that_cries_wolf_and_takes_it_back_costs_others_nothing() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    name = next(row.node.name for row in live_ranks(job) if row.replica.index == 1)
    for _ in range(20):
        fleet.tell(name, frames.NodeNotice(600.0, "wolf"), frames.NodeNotice(None, "no wolf"))
    reconcile_job(job.id)
    assert not KnownEnd.objects.filter(over_at=None).exists()
    assert not Replica.objects.filter(attempt__job=job).exclude(ordered_out="").exists()
    assert Job.objects.get(pk=job.pk).state == "running"
