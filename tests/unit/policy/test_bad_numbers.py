"""A checkpoint whose bytes are right and whose numbers are not: demoted, and the one before is used."""

import pytest

from controlplane.policy.plan import DemoteCheckpoint, PlaceAttempt
from controlplane.protocol.states import CheckpointState
from tests.unit.policy.builders import action, actions, attempt, checkpoint, decisions, job, only, running, signal

NAN = signal("nan_loss", 1, value=55.0)
SPIKE = signal("loss_spike", 1, value=9.3, threshold=2.4)
SAVED = (checkpoint(20, CheckpointState.VERIFIED), checkpoint(30), checkpoint(40, CheckpointState.VERIFIED))


def resumed(step: int = 40, **fields):
    """Attempt 2 began with the checkpoint of `step` and is at step 50."""
    base = {"attempt": attempt(number=1, resume_step=step), "checkpoints": SAVED, "signals": (NAN,), "job": job()}
    return running(**(base | fields))


@pytest.mark.parametrize("found", [NAN, SPIKE])
def test_what_leads_to_nan_or_a_spike_after_a_restart_is_demoted_and_the_one_before_is_used(found):
    decision = only(resumed(signals=(found,)), "restart")
    assert decision.reason_code == found.kind
    assert [move.checkpoint_id for move in actions(decision, DemoteCheckpoint)] == ["ck_40"]
    assert action(decision, PlaceAttempt).resume_step == 30
    assert "The checkpoint of step 40 is not resumed from again" in decision.sentence


def test_three_restarts_walk_back_three_checkpoints_and_do_not_repeat_one():
    left, used = list(SAVED), []
    for step in (40, 30, 20):
        decision = only(resumed(step, checkpoints=tuple(left)), "restart")
        gone = {move.checkpoint_id for move in actions(decision, DemoteCheckpoint)}
        left = [fact for fact in left if fact.id not in gone]
        used.append(action(decision, PlaceAttempt).resume_step)
    assert used == [30, 20, 0]


def test_both_tiers_of_the_step_are_demoted():
    local = checkpoint(40, id="ck_40_local", holders=(("n0",), ("n0",)))
    decision = only(resumed(checkpoints=(*SAVED, local)), "restart")
    assert {move.checkpoint_id for move in actions(decision, DemoteCheckpoint)} == {"ck_40", "ck_40_local"}


def test_an_attempt_that_has_saved_since_is_resumed_from_its_newest_first():
    decision = only(resumed(30), "restart")
    assert actions(decision, DemoteCheckpoint) == ()
    assert action(decision, PlaceAttempt).resume_step == 40


def test_the_first_attempt_blames_no_checkpoint():
    decision = only(resumed(0), "restart")
    assert actions(decision, DemoteCheckpoint) == ()
    assert action(decision, PlaceAttempt).resume_step == 40


def test_a_spike_is_no_reason_to_start_over_from_step_0():
    assert decisions(resumed(signals=(SPIKE,), checkpoints=(checkpoint(40),)), rule="restart") == ()


def test_a_failure_of_another_kind_demotes_nothing():
    dead = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=1.0) for i in range(3))
    decision = only(resumed(signals=dead), "restart")
    assert actions(decision, DemoteCheckpoint) == () and action(decision, PlaceAttempt).resume_step == 40
