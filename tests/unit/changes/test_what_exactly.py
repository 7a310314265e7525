"""What exactly is written and said: places where a small change of `changes` was once noticed by no test."""

from typing import Any

import pytest

from controlplane.changes.kinds import Observe, Publish, Raise, RankKey, Transition
from controlplane.policy.signals.ranks import StartFailed
from controlplane.protocol.states import Phase, RankState

from .builders import NODES, placed, training
from .greetings import alive, met
from .test_answers import FAILED, SUCCEEDED, gone, means, start_of, stop
from .test_set_back import Signed, learns, seen


@pytest.mark.parametrize("known", [False, True])
def test_a_beginning_that_is_known_is_not_written_again(known: bool) -> None:
    world = placed()
    world.rows.replicas[1].started |= {0} if known else set()
    changes = [change for change in met(world, alive(0), renewed=True) if not isinstance(change, Raise)]
    columns: list[dict[str, Any]] = [change.columns for change in changes if isinstance(change, Observe | Transition)]
    assert columns and all(("started_s" in each) != known for each in columns)


def test_a_rank_that_is_parked_has_joined_and_one_that_sets_up_has_not() -> None:
    parked = alive(0, state=RankState.INITIALIZING, phase=Phase.PARKED)
    sets_up = alive(0, state=RankState.INITIALIZING, phase=Phase.BUILDING)
    for status, joined in ((parked, True), (sets_up, False), (alive(0, state=RankState.CHECKPOINTING), True)):
        changes = met(placed(), status, renewed=True)
        found = [change for change in changes if isinstance(change, Observe) and "joined_s" in change.columns]
        assert bool(found) == joined


@pytest.mark.parametrize(("detail", "said"), [("no memory", "no memory"), ("", "failed")])
def test_a_start_that_failed_without_a_word_says_its_state(detail: str, said: str) -> None:
    world = placed()
    (found,) = [
        change.found for change in means(world, start_of(world), FAILED, detail=detail) if isinstance(change, Raise)
    ]
    assert isinstance(found, StartFailed) and found.said == said


def test_a_stop_of_replica_0_is_of_that_incarnation_alone() -> None:
    world = training()
    assert means(world, stop(replica=0, incarnation=2), SUCCEEDED, NODES[0]) == []
    assert gone(means(world, stop(replica=0), SUCCEEDED, NODES[0])) == [(0, 1, 0), (0, 1, 1)]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"end": "succeeded"}, "it was in attempt 1, epoch 2, and it has succeeded."),
        ({"end": "cancelled", "end_signature": "good"}, "it was in attempt 1, epoch 2, and it was ended (cancelled)."),
    ],
)
def test_how_the_job_ended_is_said_as_it_was(said: dict[str, str], words: str) -> None:
    world = training()
    rows = Signed(world.rows, world.kernel, world.checkers)
    changes = learns(world, seen(**said), rows, renewed=True)
    (event,) = [change for change in changes if isinstance(change, Publish)]
    assert event.sentence.endswith(words)


def test_an_incarnation_that_our_rows_have_is_not_ahead() -> None:
    assert learns(training(), seen(incarnations={1: 1}), renewed=True) == []


def test_ranks_are_named_by_attempt_replica_incarnation_and_number() -> None:
    changes = met(placed(), alive(1), renewed=True)
    assert {change.subject for change in changes if isinstance(change, Transition)} == {RankKey(1, 1, 1, 1)}
