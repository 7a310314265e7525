"""A checkpoint whose bytes are right and whose numbers are not: demoted, and the one before is used."""

import pytest

from controlplane.policy.numerics import losses_now
from controlplane.policy.plan import DemoteCheckpoint, PlaceAttempt, SettleSignals, SuspectCheckpoint
from controlplane.protocol.states import CheckpointState
from tests.unit.policy.builders import (
    action,
    actions,
    attempt,
    change,
    checkpoint,
    decisions,
    job,
    only,
    running,
    signal,
)

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


def now(found, **evidence):
    """As the loader has it, with what the loss is by now."""
    return change(found, evidence=found.evidence | evidence)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (now(NAN, finite_step=57, loss_now=2.25), "The finding nan_loss is void: the loss is 2.25 by now."),
        (now(SPIKE, finite_step=57, loss_now=4.8), "The finding loss_spike is void: the loss is 4.8 by now."),
    ],
)
def test_a_loss_that_is_well_again_when_it_is_decided_ends_no_attempt(found, words):
    """The server was away, or had nothing to fall back to, and the job has trained on."""
    assert decisions(resumed(signals=(found,)), rule="restart") == ()
    decision = only(resumed(signals=(found,)), "void")
    assert (decision.sentence, action(decision, SettleSignals).signal_ids) == (words, ("sig_1",))


@pytest.mark.parametrize(
    "found",
    [
        now(NAN, finite_step=54, loss_now=2.2),
        now(NAN, finite_step=None, loss_now=None),
        now(SPIKE, loss_now=4.9),
        now(SPIKE, loss_now=None),
    ],
)
def test_a_loss_that_is_as_bad_as_it_was_found_ends_it(found):
    assert only(resumed(signals=(found,)), "restart").reason_code == found.kind
    assert decisions(resumed(signals=(found,)), rule="void") == ()


def test_of_the_newest_two_steps_one_may_not_have_told_its_loss_yet():
    assert losses_now(NAN, [(57, None), (56, 2.0), (55, None)]).evidence["finite_step"] == 56
    assert losses_now(NAN, [(57, None), (56, None), (55, None), (54, 2.0)]).evidence["finite_step"] is None
    assert losses_now(NAN, []).evidence == {"finite_step": None, "loss_now": None}
    assert losses_now(SPIKE, [(3, 1.0), (2, None), (1, 9.0), (0, 2.0)]).evidence["loss_now"] == 2.0


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


def applied(left, decision):
    """The ladder as the decision leaves it."""
    gone = {move.checkpoint_id for move in actions(decision, DemoteCheckpoint)}
    suspect = {move.checkpoint_id: move.step for move in actions(decision, SuspectCheckpoint)}
    return [change(f, suspect_step=suspect.get(f.id, f.suspect_step)) for f in left if f.id not in gone]


def bad_from_40(left, *, saves=(44,), resume=40):
    """Restarts until it resumes before step 40: whatever was trained from there gives NaN at 46."""
    used, saved = [resume], 0
    while used[-1] >= 40 and len(used) < 12:
        for step in (step for step in saves if used[-1] < step):
            saved += 1
            left = [*left, checkpoint(step, id=f"ck_{step}_{saved}", begun_at=used[-1])]
        decision = only(resumed(used[-1], checkpoints=tuple(left)), "restart")
        left = applied(left, decision)
        used.append(action(decision, PlaceAttempt).resume_step)
    return used, left, decision


def test_numbers_that_go_bad_a_little_later_are_traced_to_what_the_attempt_began_with():
    used, left, decision = bad_from_40(list(SAVED))
    assert used == [40, 44, 40, 30]
    assert {fact.step for fact in left} == {20, 30}
    assert "The checkpoints of steps 40 and 44 are not resumed from again" in decision.sentence


def test_a_chain_of_saves_that_go_bad_ends_before_the_first_of_them():
    used, left, _ = bad_from_40(list(SAVED), saves=(42, 44))
    assert used[-1] == 30 and {fact.step for fact in left} == {20, 30}
    assert len(used) <= 8


def test_what_a_bad_save_was_trained_from_is_suspect_and_the_decision_says_so():
    left = (*SAVED, checkpoint(44, begun_at=40))
    decision = only(resumed(44, checkpoints=left), "restart")
    assert [(move.checkpoint_id, move.step) for move in actions(decision, SuspectCheckpoint)] == [("ck_40", 44)]
    assert action(decision, PlaceAttempt).resume_step == 40
    assert "That of step 40, from which that was trained, is suspect now" in decision.sentence


def test_a_suspect_whose_attempt_got_past_the_bad_step_is_not_demoted_for_what_comes_long_after():
    left = (*SAVED[:2], checkpoint(40, suspect_step=44), checkpoint(60, begun_at=40))
    decision = only(resumed(40, checkpoints=left), "restart")
    assert actions(decision, DemoteCheckpoint) == ()
    assert action(decision, PlaceAttempt).resume_step == 60


def test_the_second_save_that_goes_bad_takes_what_it_was_trained_from_along():
    left = (*SAVED[:2], checkpoint(40, suspect_step=44, begun_at=30), checkpoint(60, begun_at=40))
    decision = only(resumed(60, checkpoints=left), "restart")
    assert {move.checkpoint_id for move in actions(decision, DemoteCheckpoint)} == {"ck_40", "ck_60"}
    assert [move.checkpoint_id for move in actions(decision, SuspectCheckpoint)] == ["ck_30"]


def test_a_newer_one_of_an_earlier_attempt_that_could_not_be_loaded_clears_nothing():
    left = (*SAVED, checkpoint(44, committed_s=700.0, holders=((),)))
    decision = only(resumed(40, checkpoints=left), "restart")
    assert [move.checkpoint_id for move in actions(decision, DemoteCheckpoint)] == ["ck_40"]


def test_a_spike_distrusts_what_was_saved_since_the_resume_too():
    left = (*SAVED, checkpoint(42, begun_at=40))
    decision = only(resumed(40, checkpoints=left, signals=(SPIKE,)), "restart")
    assert {move.checkpoint_id for move in actions(decision, DemoteCheckpoint)} == {"ck_40", "ck_42"}
    assert action(decision, PlaceAttempt).resume_step == 30
    assert "The checkpoints of steps 40 and 42 are not resumed from again" in decision.sentence


def test_a_spike_distrusts_nothing_that_an_earlier_attempt_saved():
    left = (*SAVED, checkpoint(42, committed_s=700.0))
    decision = only(resumed(40, checkpoints=left, signals=(SPIKE,)), "restart")
    assert [move.checkpoint_id for move in actions(decision, DemoteCheckpoint)] == ["ck_40"]
