"""What the queue promises over hours of small fleets, and that the watch finds what breaks it. Ten thousand seeds:
`python -m benchmarks queue`."""

import pytest
from msgspec.structs import replace

from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue import preempt, until
from controlplane.policy.queue.room import UNBOUNDED
from controlplane.policy.queue.schedule import Planning
from controlplane.policy.queue.shares import Shares
from controlplane.simulator import choices
from controlplane.simulator.courses import Work
from controlplane.simulator.intervals import Queue, least_lost
from controlplane.simulator.queue_promises import Watch, watched

SEEDS = range(24)
WITH_OWN_NODES = 24
NEVER = 10_000
WORK = Work(
    id="a",
    priority=300,
    arrives_s=0.0,
    nodes=1,
    of_each=4,
    work_s=3600.0,
    interval_s=600.0,
    save_s=10.0,
    step_s=5.0,
    start_s=60.0,
)


def job(name: str, **fields: object) -> Work:
    """One that differs in these."""
    kept = {field: getattr(WORK, field) for field in WORK.__dataclass_fields__}
    return Work(**{**kept, "id": name, **fields})


def broken() -> list[str]:
    """Which promises, by the first of these seeds that breaks any."""
    found = (sorted({text.split()[1] for text in watched(seed).violations}) for seed in SEEDS)
    return next((names for names in found if names), [])


def test_no_promise_is_broken() -> None:
    watches = [watched(seed) for seed in SEEDS]
    assert [watch.violations for watch in watches] == [[] for _ in SEEDS]
    assert sum(watch.preemptions for watch in watches) > 0, "somebody yields in them"
    assert sum(watch.borrows for watch in watches) > 0, "some project borrows in them"
    assert sum(watch.limited for watch in watches) > 0, "somebody passes for its time limit"
    assert sum(watch.within for watch in watches) > 0, "somebody yields to its project's own"
    reserved = watched(WITH_OWN_NODES)
    assert reserved.alone > 0 and reserved.violations == [], "somebody starts where nobody else could"


def test_a_plan_that_minds_no_quota_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "leaves", lambda self, job: UNBOUNDED)
    assert "quota:" in broken()


def test_backfill_that_asks_no_claim_delays_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planning, "_refused_by", lambda self, demand: None)
    assert broken() == ["head:"]


def test_a_plan_that_minds_no_reservation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "lent", lambda lender, end, now_s: (lender,))
    with pytest.raises(AssertionError, match="was let start without room"):
        broken()


def test_a_plan_in_which_nobody_passes_onto_its_own_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planning, "_owns", lambda self, job: False)
    assert broken() == ["own:"]


def test_a_choice_that_leaves_nobody_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preempt.may_yield

    def soon(holder: object, head: object, config: object, now_s: float, shares: object) -> bool:
        return real(holder, head, config, now_s + NEVER, shares)  # type: ignore[arg-type]

    monkeypatch.setattr(preempt, "may_yield", soon)
    assert broken() == ["thrash:"]


def test_a_plan_in_which_nobody_may_start_is_found() -> None:
    queue = Queue([job("a")], 1, 4)
    watch, entry = Watch(queue), Planning.entry

    def none(self: Planning, number: int) -> object:
        return replace(entry(self, number), may_start=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planning, "entry", none)
        queue.run(1000.0)
    watch.ended()
    assert {text.split()[1] for text in watch.violations} == {"work:", "starve:"}


def yields(choice: object, *works: Work, nodes: int = 2) -> Queue:
    """So many nodes of four devices; these jobs."""
    queue = Queue(works, nodes, 4, choice=choice)  # type: ignore[arg-type]
    queue.run(2000.0)
    return queue


@pytest.mark.parametrize(
    ("choice", "victim"),
    [(least_lost, "light"), (choices.largest, "heavy"), (choices.newest, "fresh")],
    ids=["least", "largest", "newest"],
)
def test_each_way_to_choose_takes_whom_it_says(choice: object, victim: str) -> None:
    queue = yields(
        choice,
        job("heavy", save_s=100.0, start_s=400.0),
        job("light", of_each=3, arrives_s=10.0, save_s=1.0, start_s=10.0),
        job("fresh", of_each=3, arrives_s=100.0, save_s=100.0, start_s=400.0),
        job("urgent", of_each=3, arrives_s=1000.0, priority=900, work_s=60.0),
        nodes=3,
    )
    assert [name for name, course in queue.courses.items() if course.asked] == [victim]


def test_one_that_yields_keeps_what_it_trained_and_loses_the_save_and_a_start() -> None:
    queue = yields(
        least_lost, job("a"), job("b", arrives_s=1.0, preemptible=False), job("c", arrives_s=1000.0, priority=900)
    )
    course = queue.courses["a"]
    assert course.asked == [1000.0]
    assert course.left_s is None
    assert course.done_s == 950.0, "of 1,010 s, 60 of which it started"
    assert course.lost_gpu_s == pytest.approx(4 * (10.0 + 60.0))
    assert queue.courses["c"].began == [1020.0]


def test_a_replica_leaves_for_the_urgent_job_and_the_others_train_on_until_it_is_taken_back() -> None:
    """By hand: 3,600 s of work on two nodes from 60 s on. At 1,000 s one of them goes after this step, of 5 s, to a job
    of 600 s that starts for 60; from 1,665 s on the replica starts for 60 s, and trains at 1,725 s."""
    works = [job("a", nodes=2, replicas=2, priority=300), job("b", priority=900, arrives_s=1000.0, work_s=600.0)]
    queue = Queue(works, 2, 4, policy=PolicyConfig(preempt_min_runtime_s=30.0))
    queue.run()
    shrunk, urgent = queue.courses["a"], queue.courses["b"]
    assert (urgent.began, urgent.ended_s) == ([1005.0], 1665.0)
    assert shrunk.began == [0.0], "its attempt did not end"
    assert shrunk.ended_s == pytest.approx(60.0 + 3600.0 + (1725.0 - 1000.0) / 2.0)
    assert shrunk.lost_gpu_s == 4 * 60.0, "the start of what it took back"
    assert queue.free == {"node-000": 4, "node-001": 4}


def test_the_replicas_that_must_train_are_not_given() -> None:
    works = [job("a", nodes=2, replicas=2, least=2), job("b", priority=900, arrives_s=1000.0, work_s=600.0)]
    queue = Queue(works, 2, 4, policy=PolicyConfig(preempt_min_runtime_s=30.0))
    queue.run()
    assert len(queue.courses["a"].began) == 2, "all of it yields"
    assert queue.courses["a"].lost_gpu_s > 8 * 60.0
