"""While no key opens the values of a job's env, nothing of it is started; what runs, runs on."""

from controlplane.policy.plan import EndAttempt, PlaceAttempt, SetJobState, StartReplica
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState

from .builders import action, actions, change, decisions, job, only, pending, running, shrunk, signal, spec

ENV = {"API_KEY": "sealed", "OTHER": "sealed"}


def lost(snapshot: JobSnapshot) -> JobSnapshot:
    """The same, but the values are lost."""
    return change(snapshot, job=change(snapshot.job, env_opens=False, spec=change(snapshot.job.spec, env=ENV)))


def test_a_job_that_is_to_be_placed_waits_and_says_for_what():
    assert actions(only(pending(), "lifecycle"), PlaceAttempt)
    decision = only(lost(pending()), "lifecycle")
    assert (decision.choice, decision.reason_code, decision.actions) == ("wait", "env_sealed", ())
    assert "HOLDFAST_SECRET_KEY_FALLBACKS" in decision.sentence
    assert decision.evidence == {"variables": "API_KEY, OTHER"}


def test_an_empty_slot_is_not_filled():
    assert any(actions(decision, StartReplica) for decision in decisions(shrunk(spares=1)))
    assert not any(actions(decision, StartReplica) for decision in decisions(lost(shrunk(spares=1))))


def test_a_replica_that_fails_is_evicted_without_another_in_its_place():
    dead = signal("rank_exit", replica=1, incarnation=1, rank=0, value=1.0)
    assert actions(only(running(signals=(dead,)), "replica_failure"), StartReplica)
    assert actions(only(lost(running(signals=(dead,))), "replica_failure"), StartReplica) == ()


def test_a_job_that_must_start_anew_queues_and_then_says_why():
    dead = tuple(
        signal("rank_exit", number, replica=number - 1, incarnation=1, rank=0, value=1.0) for number in (1, 2, 3)
    )
    snapshot = running(signals=dead, job=job(spec=spec()))
    assert actions(only(snapshot, "restart"), PlaceAttempt)
    decision = only(lost(snapshot), "restart")
    assert (decision.choice, action(decision, SetJobState).to) == ("queue", JobState.PENDING)
    assert action(decision, EndAttempt).number == 1
    assert actions(decision, PlaceAttempt) == ()
