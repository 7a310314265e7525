"""A job yields its devices: what it does first, when its attempt ends, and what the decision says is lost."""

import pytest

from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.exits import EXIT_DO_NOT_REQUEUE
from controlplane.policy.plan import (
    AnswerRequest,
    EndAttempt,
    ParkJob,
    PlaceAttempt,
    RequestCheckpoint,
    SetJobState,
)
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.rules import lifecycle, preempt_request, resume_request
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes
from controlplane.policy.transitions import JOB
from controlplane.protocol.spec import Scheduling
from controlplane.protocol.states import AttemptState, JobState, RequestKind, RequestState

from .builders import (
    CONFIG,
    NOW_S,
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
    spec,
)
from .test_requests import asked

GRACE_S = 60.0
ENDED = attempt(state=AttemptState.ENDED, end_code="preempted")


def preemption(state: RequestState = RequestState.OPEN, number: int = 1, **fields: object) -> RequestFact:
    """Asked ten seconds ago; one that was begun, five seconds ago."""
    taken = {"taken_s": NOW_S - 5.0} if state is RequestState.TAKEN else {}
    return asked(RequestKind.PREEMPT, number, state=state, attempt=1, **taken | fields)


def world(*requests: RequestFact, saved: int = 40, at_s: float = 900.0, **fields: object) -> JobSnapshot:
    """Fifty steps are committed, `saved` of them saved at `at_s`."""
    ladder = (checkpoint(saved, committed_s=at_s),) if saved else ()
    return running(requests=requests, checkpoints=ladder, **fields)


def begun(**fields: object) -> RequestFact:
    return preemption(RequestState.TAKEN, **fields)


def test_it_saves_first_and_ends_nothing() -> None:
    decision = only(world(preemption()), preempt_request.RULE)
    assert action(decision, AnswerRequest).to is RequestState.TAKEN
    assert action(decision, RequestCheckpoint).kind == "emergency"
    assert not actions(decision, EndAttempt)
    assert decision.evidence["steps_at_risk"] == 10


def test_what_is_saved_already_asks_for_no_save() -> None:
    decision = only(world(preemption(), saved=50), preempt_request.RULE)
    assert action(decision, AnswerRequest).to is RequestState.TAKEN
    assert not actions(decision, RequestCheckpoint)


def test_the_attempt_ends_when_a_newer_checkpoint_is_committed() -> None:
    decision = only(world(begun(), saved=50, at_s=NOW_S - 1.0), preempt_request.RULE)
    assert action(decision, EndAttempt).grace_s == 0.0
    assert action(decision, SetJobState).to is JobState.PREEMPTED
    assert action(decision, AnswerRequest).to is RequestState.DONE
    assert (decision.evidence["lost_steps"], decision.evidence["resumes_at_step"]) == (0, 50)


def test_started_again_before_it_could_yield_it_yields_the_devices_of_the_new_attempt() -> None:
    again = asked(RequestKind.PREEMPT, state=RequestState.TAKEN, attempt=None, taken_s=NOW_S - 5.0)
    starting = change(world(again, saved=50), job=job(state=JobState.STARTING, committed_step=50))
    decision = only(starting, preempt_request.RULE)
    assert action(decision, SetJobState).to is JobState.PREEMPTED
    assert JobState.PREEMPTED in JOB[JobState.STARTING], "the table allows it"


def dead(*requests: RequestFact, **fields: object) -> JobSnapshot:
    """Every replica has lost a rank."""
    ended = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=1.0) for i in range(3))
    return world(*requests, signals=ended, **fields)


@pytest.mark.parametrize("spares", [0, 3])
def test_an_attempt_that_ends_while_it_is_to_yield_is_not_placed_again_and_nobody_waits_for_it(spares: int) -> None:
    """Another request comes in the same pass: the attempt ended for no request, the job waited for devices or started
    again, and the attempt that came of it ended from `starting`."""
    urgent = preemption(number=2, urgent="urgent", who="queue")
    for parked in (begun(), begun(who="queue", urgent="first")):
        found = decisions(dead(parked, urgent, spares=spares))
        ends = [decision for decision in found if actions(decision, EndAttempt)]
        assert [decision.rule for decision in ends] == [preempt_request.RULE]
        assert action(ends[0], SetJobState).to is JobState.PREEMPTED
        assert not [act for decision in found for act in actions(decision, PlaceAttempt)]
        assert {(act.request, act.to) for act in actions(ends[0], AnswerRequest)} == {
            (parked.id, RequestState.DONE),
            (urgent.id, RequestState.DONE),
        }
        assert bool(actions(ends[0], ParkJob)) is (not parked.urgent)


def test_a_request_that_is_over_is_answered_by_itself() -> None:
    late = preemption(number=2, valid_until_s=NOW_S - 1.0)
    decision = next(each for each in decisions(dead(begun(), late)) if actions(each, EndAttempt))
    assert [act.request for act in actions(decision, AnswerRequest)] == [begun().id]


def test_a_job_that_asks_not_to_be_restarted_fails_though_it_is_to_yield() -> None:
    code = EXIT_DO_NOT_REQUEUE
    ended = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=float(code)) for i in range(3))
    found = decisions(world(begun(), preemption(number=2), signals=ended))
    (end,) = [decision for decision in found if actions(decision, EndAttempt)]
    assert action(end, SetJobState).to is JobState.FAILED


def test_steps_since_the_save_are_saved_as_the_ranks_leave() -> None:
    decision = only(world(begun(), saved=47, at_s=NOW_S - 1.0), preempt_request.RULE)
    assert action(decision, EndAttempt).grace_s == GRACE_S
    assert "3 newer steps as they leave" in decision.sentence


def test_until_it_is_saved_or_the_grace_is_over_it_trains() -> None:
    waiting = world(begun())
    assert not preempt_request.rule(waiting, CONFIG)
    due_s = next_pass_s(waiting, CONFIG, False)
    assert due_s is not None and due_s <= NOW_S - 5.0 + GRACE_S
    late = only(world(begun(taken_s=NOW_S - GRACE_S)), preempt_request.RULE)
    assert action(late, EndAttempt).grace_s == 0.0 and late.evidence["lost_steps"] == 10
    assert "10 steps since the checkpoint of step 40 are lost" in late.sentence


def test_a_grace_that_is_less_than_its_saves_take_is_extended() -> None:
    slow = LearnedTimes(step_max_s=1.0, save_p95_s=100.0)
    hurried = job(spec=spec(scheduling=Scheduling(preempt_grace_s=30.0)))
    measured = {"learned": slow, "job": hurried, "at_s": 100.0}
    request = begun(taken_s=NOW_S - 151.0)
    assert not preempt_request.rule(world(request, **measured), CONFIG)
    assert preempt_request.rule(world(begun(taken_s=NOW_S - 152.0), **measured), CONFIG)


def test_a_checkpoint_on_the_nodes_own_disks_is_no_save() -> None:
    local = checkpoint(50, committed_s=NOW_S - 1.0, holders=(("n0",),))
    snapshot = change(world(begun()), checkpoints=(checkpoint(40), local))
    assert not preempt_request.rule(snapshot, CONFIG), "its nodes are about to be somebody else's"


def test_commands_that_failed_end_the_wait_with_their_words() -> None:
    decision = only(world(begun(carried="failed: the disk is full")), preempt_request.RULE)
    assert "the disk is full" in decision.sentence and decision.evidence["lost_steps"] == 10


def test_withdrawn_before_the_end_it_trains_on_and_after_it_nothing_is_answered() -> None:
    decision = only(world(begun(withdrawn_by="urgent, which is cancelled,")), preempt_request.RULE)
    assert action(decision, AnswerRequest).to is RequestState.WITHDRAWN
    assert not actions(decision, EndAttempt)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"job": job(state=JobState.STARTING)}, "is starting"),
        ({"attempt": attempt(number=2)}, "started again since"),
    ],
)
def test_what_has_no_devices_to_yield_or_was_started_again_is_refused(fields: dict[str, object], words: str) -> None:
    (decision,) = preempt_request.rule(world(preemption(), **fields), CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.REFUSED and words in decision.sentence


def test_while_a_view_is_on_its_way_it_waits() -> None:
    assert not preempt_request.rule(world(preemption(), install=None), CONFIG)


def test_only_a_person_parks_a_job() -> None:
    saved = {"saved": 50, "at_s": NOW_S - 1.0}
    queue = only(world(begun(urgent="urgent", who="queue"), **saved), preempt_request.RULE)
    assert not actions(queue, ParkJob) and queue.evidence["urgent"] == "urgent"
    both = only(world(begun(urgent="urgent"), begun(number=2, who="user:lin"), **saved), preempt_request.RULE)
    assert action(both, ParkJob).by == "user:lin: rack 7"
    assert len(actions(both, AnswerRequest)) == 2


def waiting(**fields: object) -> JobSnapshot:
    """Preempted, its ranks are gone, and there is room."""
    base = world(saved=50, spares=3, attempt=ENDED, replicas=(), view=None, install=None)
    return change(base, job=job(state=JobState.PREEMPTED, **fields))


def test_a_preempted_job_resumes_from_its_checkpoint_when_there_is_room() -> None:
    decision = only(waiting(), "lifecycle")
    assert action(decision, PlaceAttempt).resume_step == 50
    assert action(decision, SetJobState).to is JobState.RESUMING


def test_the_next_attempt_waits_for_ranks_that_still_save() -> None:
    leaving = change(waiting(), attempt=change(ENDED, state=AttemptState.STOPPING))
    assert not lifecycle.rule(leaving, CONFIG)


def test_a_parked_job_waits_for_a_person_and_wakes_nobody() -> None:
    parked = waiting(parked_by="user:ada: rack 7")
    assert only(parked, "lifecycle").reason_code == "parked"
    assert next_pass_s(parked, CONFIG, False) is None


def test_resumed_it_is_parked_no_more() -> None:
    request = asked(RequestKind.RESUME)
    decision = only(change(waiting(parked_by="user:ada: r"), requests=(request,)), resume_request.RULE)
    assert action(decision, ParkJob).by == "" and action(decision, AnswerRequest).to is RequestState.DONE
    (again,) = resume_request.rule(change(waiting(), requests=(request,)), CONFIG)
    assert not actions(again, ParkJob) and "not parked" in again.sentence
