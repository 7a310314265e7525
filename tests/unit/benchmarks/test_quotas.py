"""Weeks of a queue with quotas: who gives back what is borrowed, in each of the ways that are compared."""

from benchmarks.quotas import WAYS, kept
from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.rows import QueuePlan
from controlplane.simulator.intervals import Queue, least_lost


def plan(borrows: str) -> QueuePlan:
    """One job yields; `borrows`: for its project's debt."""
    one = Victim(
        id="a", name="a", priority=300, attempt=1, asked=0, devices=4, at_risk_s=1.0, save_s=1.0, lost_gpu_s=9.0,
        borrows=borrows,
    )  # fmt: skip
    return QueuePlan(head="b", victims=(one,))


def test_who_keeps_what_is_borrowed_yields_to_priority_alone() -> None:
    queue = Queue([], 1, 4)
    assert [way.choice(queue, plan("red")) for way in WAYS] == [{"a": []}, {"a": []}, {}]
    assert kept(queue, plan("")) == least_lost(queue, plan("")) == {"a": []}
