"""The rule that gives a job the faults its own spec asks for."""

import pytest

from controlplane.policy.plan import InjectFault
from controlplane.protocol.spec import FaultSchedule, Resiliency
from controlplane.protocol.states import JobState, ReplicaState

from .builders import CONFIG, NOW_S, action, change, decide, decisions, job, only, replica, running, spec, with_replica

RULE = "rehearsal"
KILL = FaultSchedule(kind="rank_killed", delay_s=10.0, rank=3, times=2)


def rehearsing(schedule=KILL, *, allowed=True, training_s=100.0, fired=0, **fields):
    resiliency = Resiliency(allow_faults=allowed, faults=schedule)
    return running(job=job(spec=spec(resiliency=resiliency), training_s=training_s, faults_fired=fired, **fields))


def test_a_due_fault_hits_the_rank_it_names():
    decision = only(rehearsing(), RULE)
    assert action(decision, InjectFault) == InjectFault(replica=1, incarnation=1, rank=1, fault="sigkill")
    assert (decision.choice, decision.reason_code) == ("rank_killed", "scheduled_fault")
    assert decision.sentence == (
        "Rehearsal 1 of 2: rank_killed for rank 1 of replica 1 on node-1, as the job's spec asks."
    )


def test_the_next_one_has_a_key_of_its_own_and_the_last_is_the_last():
    first, second = only(rehearsing(), RULE), only(rehearsing(fired=1), RULE)
    assert first.key != second.key
    assert decisions(rehearsing(fired=2), rule=RULE) == ()


def test_before_its_moment_the_job_is_looked_at_when_it_comes():
    snapshot = rehearsing(training_s=4.0)
    assert decisions(snapshot, rule=RULE) == ()
    look_s = decide(snapshot, CONFIG).next_pass_s
    assert look_s is not None
    assert NOW_S + 6.0 <= look_s <= NOW_S + 8.0


@pytest.mark.parametrize(
    "snapshot",
    [
        rehearsing(allowed=False),
        rehearsing(training_s=None),
        rehearsing(state=JobState.RECOVERING),
        rehearsing(cancel_requested=True),
        change(rehearsing(), install=None),
        with_replica(rehearsing(), 1, contributing=False, state=ReplicaState.EVICTED),
    ],
    ids=["not allowed", "no schedule", "recovers", "cancelled", "view change", "target is out"],
)
def test_it_waits_or_stays_away(snapshot):
    assert decisions(snapshot, rule=RULE) == ()


def test_any_rank_means_one_that_contributes():
    snapshot = rehearsing(FaultSchedule(kind="nan", delay_s=1.0, rank=-1))
    alone = change(snapshot, replicas=(replica(2),))
    assert action(only(alone, RULE), InjectFault).replica == 2
