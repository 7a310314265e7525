"""What a hello proves of a job whose rows were set back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes import rows as facts
from controlplane.changes.handshake import (
    MAX_AHEAD,
    learned,
)
from controlplane.changes.kinds import (
    Audit,
    Change,
    Count,
    Fence,
    JobKey,
    Observe,
    Publish,
)
from controlplane.protocol.frames import JobSeen
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.memory import MemoryRows
from controlplane.simulator.rows import JOB_ID

from .builders import World, training
from .greetings import NODE, alive, greeting, met, started


def seen(**fields: Any) -> JobSeen:
    return JobSeen(**({"job_id": JOB_ID, "attempt": 1, "epoch": 2} | fields))


def learns(world: World, said: JobSeen, rows: MemoryRows | None = None, **fields: bool) -> list[Change]:
    return list(learned(rows or world.store, said, greeting(**fields)))


def ahead_of(changes: list[Change]) -> dict[str, Any]:
    (ahead,) = [change.columns["ahead"] for change in changes if isinstance(change, Observe)]
    return dict(ahead)


class OnNoNode(MemoryRows):
    """As a node sees them on which nothing was placed."""

    def held(self, node_id: str) -> list[facts.Rank]:
        return []


class Signed(MemoryRows):
    """We have signed "good"."""

    def is_our_end(self, signature: str, attempt: int, end: str) -> bool:
        return signature == "good"


def test_who_knows_as_much_or_less_changes_nothing() -> None:
    world = training()
    assert learns(world, seen()) == learns(world, seen(epoch=1), renewed=True) == []


def test_a_newer_epoch_wins_where_the_job_is_placed() -> None:
    world = training()
    changes = learns(world, seen(epoch=9))
    assert changes[0] == Fence(9) and ahead_of(changes) == {}
    audit, event = changes[2], changes[3]
    assert isinstance(audit, Audit) and (audit.before, audit.after) == (
        {"epoch": 2, "ahead": {}},
        {"epoch": 9, "ahead": {}},
    )
    assert event == Publish(
        "job.set_back", f"Node {NODE} knows more of sim than this database: it was in attempt 1, epoch 9."
    )
    world.store.commit(changes)
    assert world.rows.epoch == 9 and learns(world, seen(epoch=9)) == []


def test_elsewhere_it_raises_the_next_attempts_numbers_alone() -> None:
    world = training()
    rows = OnNoNode(world.rows, world.kernel, world.checkers)
    assert learns(world, seen(epoch=9), rows) == []
    changes = learns(world, seen(attempt=3, epoch=9, incarnations={0: 7}), rows)
    assert ahead_of(changes) == {"attempt": 3, "epoch": 9}
    assert not any(isinstance(change, Fence) for change in changes)


@pytest.mark.parametrize("claim", [{"attempt": 2 + MAX_AHEAD}, {"epoch": 3 + MAX_AHEAD}])
def test_a_claim_without_bounds_is_refused_and_counted(claim: dict[str, int]) -> None:
    (change,) = learns(training(), seen(**claim))
    assert isinstance(change, Count) and change.what == "implausible_fence"


def test_incarnations_are_believed_of_its_own_replicas_within_bounds() -> None:
    changes = learns(training(), seen(epoch=3, incarnations={0: 5, 1: 4, 2: 9}))
    assert ahead_of(changes) == {"incarnations": {"1": 4}}
    assert ahead_of(learns(training(), seen(epoch=3, incarnations={1: 2 + MAX_AHEAD}))) == {}


@pytest.mark.parametrize(("signature", "ends"), [("good", True), ("bad", False), ("", False)])
@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_an_end_is_believed_by_our_signature_alone(signature: str, ends: bool, end: str) -> None:
    world = training()
    rows = Signed(world.rows, world.kernel, world.checkers)
    changes = learns(world, seen(end=end, end_signature=signature), rows, renewed=True)
    assert [ahead_of(changes)] == [{"end": end, "node": NODE}] if ends else changes == []


def test_that_it_trained_all_its_steps_its_ranks_say_where_what_they_told_is_lost() -> None:
    assert learns(training(), seen(end="succeeded")) == []
    assert ahead_of(learns(training(), seen(end="succeeded"), renewed=True))["end"] == "succeeded"
    out, trained = training(), training()
    out.rows.replicas[1].state = ReplicaState.EVICTED
    trained.rows.trained = True
    assert learns(out, seen(end="succeeded"), renewed=True) == []
    assert learns(trained, seen(end="succeeded"), renewed=True) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.booleans()), max_size=8))
def test_whatever_agents_say_late_or_again_no_epoch_and_no_number_ever_falls(said: list[tuple[int, int, bool]]) -> None:
    world = started(training())
    for attempt, epoch, renewed in said:
        before = (world.rows.epoch, *(world.rows.ahead.get(name, 0) for name in ("attempt", "epoch")))
        world.store.commit(learns(world, seen(attempt=attempt, epoch=epoch, incarnations={1: epoch}), renewed=renewed))
        world.store.commit(met(world, alive(0), alive(1), alive(0, attempt=attempt), renewed=renewed))
        after = (world.rows.epoch, *(world.rows.ahead.get(name, 0) for name in ("attempt", "epoch")))
        assert all(new >= old for new, old in zip(after, before, strict=True))
    assert world.rows.replicas[1].exited == set()
    assert all(change.subject != JobKey() for change in met(world) if isinstance(change, Observe))
    assert world.checkers.violations == []
