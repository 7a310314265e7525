"""Reserved nodes in the queue's plan, in placement, and in words: who may start there, and who passes whom for it."""

import msgspec
import pytest

from controlplane.policy import leaving, reserved
from controlplane.policy.pools import pool_for
from controlplane.policy.queue import until
from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.place import HAS_ROOM, QueuePlace, Turn
from controlplane.policy.queue.rows import Demand, Holder, Lender, Pending, QueueConfig, QueueFleet, Share
from controlplane.policy.queue.schedule import growth, schedule
from controlplane.policy.reserved import Reservation
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import CONFIG, change, job, node, pending

NOW_S = 1000.0
CONFIGURED = QueueConfig()
RUNS = Reservation(id="rsv_1", project="vision", from_s=NOW_S - 10.0, until_s=NOW_S + 3600.0)
LATER = Reservation(id="rsv_2", project="vision", from_s=NOW_S + 600.0, until_s=NOW_S + 3600.0)


def lender(name: str, free: int, *kept: Reservation) -> Lender:
    return Lender(id=name, usable={"H100": 2}, free={"H100": free}, reservations=kept)


def fleet(*lenders: Lender, **fields: object) -> QueueFleet:
    lent = tuple(part for each in lenders for part in until.lent(each, None, NOW_S))
    return QueueFleet(nodes=lent, **fields)  # type: ignore[arg-type]


def waits(name: str, project: str = "", *, nodes: int = 1, limit_s: float | None = None, at_s: float = 1.0) -> Pending:
    over_s = None if limit_s is None else NOW_S + limit_s
    taken = 2 * nodes
    demand = Demand(devices=taken, most=taken, touches=nodes, nodes=nodes, of_each=2, over_s=over_s)
    return Pending(id=name, name=name, priority=0, submitted_s=at_s, demand=demand, project=project, limit_s=limit_s)


def starts(plan_of: QueueFleet, *queue: Pending) -> dict[str, bool]:
    plan = schedule(queue, plan_of, CONFIGURED, NOW_S)
    return {each.job.id: each.may_start and each.turn in HAS_ROOM for each in plan.entries}


@pytest.mark.parametrize(
    ("kept", "project", "limit_s", "may"),
    [
        (RUNS, "vision", None, True),
        (RUNS, "", 1.0, False),
        (RUNS, "speech", None, False),
        (LATER, "vision", None, True),
        (LATER, "", None, False),
        (LATER, "", 601.0, False),
        (LATER, "", 600.0, True),
    ],
)
def test_who_may_start_on_a_reserved_node(kept: Reservation, project: str, limit_s: float | None, may: bool) -> None:
    assert starts(fleet(lender("n1", 2, kept)), waits("a", project, limit_s=limit_s)) == {"a": may}
    over_s = None if limit_s is None else NOW_S + limit_s
    assert reserved.takes((kept,), project, over_s, NOW_S) is may, "placement says the same"


def test_one_that_is_over_keeps_nobody_away() -> None:
    over = msgspec.structs.replace(RUNS, until_s=NOW_S)
    assert starts(fleet(lender("n1", 2, over)), waits("a")) == {"a": True}


def test_its_job_passes_who_lacks_room_onto_its_own_nodes_alone() -> None:
    ahead, mine, other = waits("ahead", nodes=2), waits("mine", "vision", at_s=2.0), waits("other", at_s=3.0)
    held = Holder(id="r", name="r", priority=0, devices=(("n3", 2),), ends_s=NOW_S + 50.0)
    there = fleet(lender("n1", 2, RUNS), lender("n2", 2), lender("n3", 0), holders=(held,))
    plan = schedule([ahead, mine, other], there, CONFIGURED, NOW_S)
    assert [(each.turn, each.may_start, each.alone) for each in plan.entries] == [
        (Turn.NO_ROOM, True, False),
        (Turn.BACKFILL, True, True),
        (Turn.BEHIND, False, False),
    ]
    assert plan.entries[0].expected_s == NOW_S + 50.0, "it is not delayed"


def test_a_second_one_of_its_project_finds_them_taken() -> None:
    there = fleet(lender("n1", 2, RUNS), lender("n2", 0))
    found = starts(there, waits("ahead", nodes=2), waits("one", "vision", at_s=2.0), waits("two", "vision", at_s=3.0))
    assert found == {"ahead": False, "one": True, "two": False}


def test_its_quota_still_holds() -> None:
    shares = (Share(name="vision", quota=2, used=2),)
    there = fleet(lender("n1", 2, RUNS), projects=shares)
    plan = schedule([waits("mine", "vision")], there, CONFIGURED, NOW_S)
    assert plan.entries[0].turn is Turn.QUOTA


def test_the_heads_moment_counts_on_no_node_that_is_reserved_for_others() -> None:
    held = Holder(id="r", name="r", priority=0, devices=(("n1", 2),), ends_s=NOW_S + 50.0)
    plan = schedule([waits("a")], fleet(lender("n1", 0, RUNS), holders=(held,)), CONFIGURED, NOW_S)
    assert (plan.entries[0].turn, plan.head) == (Turn.TOO_LARGE, "")


def test_a_replica_more_is_not_taken_from_another_projects_nodes() -> None:
    grower = msgspec.structs.replace(waits("g"), demand=Demand(devices=2, most=2, touches=2))
    for project, may in (("", False), ("vision", True)):
        mine = msgspec.structs.replace(grower, project=project)
        (entry,) = growth([], fleet(lender("n1", 2, RUNS)), CONFIGURED, NOW_S, mine).entries
        assert (entry.turn in HAS_ROOM) is may


def test_why_it_waits_says_for_whom_devices_are_reserved_and_until_when() -> None:
    for shown, called in (("", "project vision"), (reserved.ANOTHER, "another project")):
        kept = msgspec.structs.replace(RUNS, shown=shown)
        found = explain([waits("a")], fleet(lender("n1", 2, kept)), CONFIGURED, NOW_S, "a")
        assert found is not None
        assert found.sentence.endswith(f"Reserved: 2 free devices for {called} until 1970-01-01 01:16 UTC.")
        assert [(each.reservation.id, each.devices) for each in found.reserved] == [("rsv_1", 2)]
    mine = explain([waits("a", "vision")], fleet(lender("n1", 2, RUNS)), CONFIGURED, NOW_S, "a")
    assert mine is not None and mine.reserved == ()


def test_placement_takes_its_own_nodes_first_and_where_the_plan_says_so_no_others() -> None:
    own = Reservation(id="rsv_1", project="vision", from_s=0.0, until_s=4e9)
    other = msgspec.structs.replace(own, project="speech")
    nodes = (node(0), node(1, reservations=(other,)), node(2, reservations=(own,)))
    world = change(pending(), job=job(state=JobState.PENDING, project="vision"), nodes=nodes)
    assert [each for each, _ in pool_for(world, CONFIG).nodes] == [nodes[2].id, nodes[0].id]
    assert leaving.closed(world, CONFIG) == (nodes[1].id,)
    alone = QueuePlace(place=1, waiting=1, turn=Turn.BACKFILL, alone=True)
    assert [each for each, _ in pool_for(change(world, queue=alone), CONFIG).nodes] == [nodes[2].id]
