"""Nodes that are known to leave, in the queue's plan: who may start there, and when the others may."""

import msgspec
import pytest

from controlplane.policy.known_end import KnownEnd
from controlplane.policy.queue import until
from controlplane.policy.queue.ends import FREED_S, over_s
from controlplane.policy.queue.place import Turn
from controlplane.policy.queue.rows import Demand, Lender, Pending, QueueConfig, QueueFleet
from controlplane.policy.queue.schedule import schedule
from controlplane.protocol.states import EndSource

NOW_S = 1000.0
NODE = Lender(id="n1", usable={"H100": 2}, free={"H100": 2})


def window(leaves_s: float, back_s: float | None) -> KnownEnd:
    source = EndSource.SPOT if back_s is None else EndSource.WINDOW
    return KnownEnd(id="end_1", source=source, leaves_s=leaves_s, back_s=back_s, said_s=NOW_S, reason="new fans")


def job(name: str = "a", *, over_s: float | None = None, devices: int = 2, **fields: object) -> Pending:
    demand = Demand(devices=devices, most=devices, touches=devices, over_s=over_s)
    return Pending(id=name, name=name, priority=0, submitted_s=1.0, demand=demand, **fields)  # type: ignore[arg-type]


def fleet(end: KnownEnd, *others: Lender) -> QueueFleet:
    lent = (*until.lent(NODE, end, NOW_S), *others)
    return QueueFleet(nodes=lent, holders=until.returning(lent, {"n1": end}))


@pytest.mark.parametrize(("over_s", "may"), [(None, False), (NOW_S + 601.0, False), (NOW_S + 600.0, True)])
def test_only_who_is_over_before_it_leaves_may_start_there(over_s: float | None, may: bool) -> None:
    found = schedule([job(over_s=over_s)], fleet(window(NOW_S + 600.0, NOW_S + 900.0)), QueueConfig(), NOW_S)
    assert (found.entries[0].turn in (Turn.FIRST, Turn.BESIDE)) is may


def test_the_heads_moment_is_when_the_window_is_over() -> None:
    for leaves_s in (NOW_S - 10.0, NOW_S + 600.0):
        plan = schedule([job()], fleet(window(leaves_s, NOW_S + 900.0)), QueueConfig(), NOW_S)
        assert (plan.head, plan.entries[0].turn, plan.entries[0].expected_s) == ("a", Turn.NO_ROOM, NOW_S + 900.0)


def test_a_spot_node_comes_back_to_nobodys_knowledge() -> None:
    plan = schedule([job()], fleet(window(NOW_S + 30.0, None)), QueueConfig(), NOW_S)
    assert (plan.head, plan.entries[0].turn) == ("", Turn.TOO_LARGE)
    gone = schedule([job(over_s=NOW_S + 1.0)], fleet(window(NOW_S - 1.0, None)), QueueConfig(), NOW_S)
    assert gone.entries[0].turn is Turn.TOO_LARGE, "it has left"


def test_a_short_job_is_let_past_the_head_onto_a_node_that_the_head_cannot_use() -> None:
    long, short = job("long", devices=4), job("short", over_s=NOW_S + 500.0, devices=2)
    there = Lender(id="n2", usable={"H100": 2}, free={"H100": 2})
    plan = schedule([long, short], fleet(window(NOW_S + 600.0, NOW_S + 900.0), there), QueueConfig(), NOW_S)
    assert plan.entries[0].expected_s == NOW_S + 900.0 and plan.head == "long"


def test_nobody_outranks_a_window() -> None:
    urgent = msgspec.structs.replace(job(), priority=1000)
    assert schedule([urgent], fleet(window(NOW_S - 10.0, NOW_S + 900.0)), QueueConfig(), NOW_S).victims == ()


@pytest.mark.parametrize(
    ("limit_s", "begun_s", "left", "recent", "expected_s"),
    [
        (0.0, None, 10, (), None),
        (600.0, None, 10, (), NOW_S + 600.0 + FREED_S),
        (600.0, NOW_S - 500.0, 10, (), NOW_S + 100.0 + FREED_S),
        (0.0, None, 10, (1.0, 2.0, 9.0), NOW_S + 20.0),
        (12.0, None, 10, (2.0,), NOW_S + 12.0 + FREED_S),
    ],
)
def test_a_job_is_over_by_its_limit_or_at_its_pace(
    limit_s: float, begun_s: float | None, left: int, recent: tuple[float, ...], expected_s: float | None
) -> None:
    assert over_s(NOW_S, limit_s=limit_s, begun_s=begun_s, left=left, recent=recent) == expected_s
