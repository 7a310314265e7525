"""The rule that looks into a job now and then, because its spec asks for it."""

import pytest

from controlplane.policy.plan import LookAtRanks
from controlplane.policy.rules.look import ranks_of_turn
from controlplane.protocol.spec import Resiliency
from controlplane.protocol.states import JobState

from .builders import CONFIG, NOW_S, action, change, decide, decisions, job, only, running, signal, spec

RULE = "look"


def looked_into(*, every_s=60.0, ranks=8, **fields):
    resiliency = Resiliency(look_every_s=every_s, look_ranks=ranks)
    return running(job=job(spec=spec(resiliency=resiliency), **fields))


def test_a_due_look_is_at_the_replica_whose_turn_it_is():
    taken = [action(only(looked_into(looks_taken=n), RULE), LookAtRanks) for n in range(4)]
    assert [look.replica for look in taken] == [0, 1, 2, 0]
    assert {look.ranks for look in taken} == {(0, 1)}


def test_the_ranks_of_a_large_replica_have_their_turns():
    assert [ranks_of_turn(5, 2, turn) for turn in range(3)] == [(0, 1), (2, 3), (0, 4)]
    taken = [action(only(looked_into(ranks=1, looks_taken=n), RULE), LookAtRanks).ranks for n in (0, 3)]
    assert taken == [(0,), (1,)]


def test_the_next_look_is_not_before_its_time_and_the_job_is_looked_at_then():
    snapshot = looked_into(looked_s=NOW_S - 50.0, looks_taken=1)
    assert decisions(snapshot, rule=RULE) == ()
    assert decide(snapshot, CONFIG).next_pass_s == NOW_S + 10.0
    assert only(change(snapshot, now_s=NOW_S + 10.0), RULE).choice == "look"


@pytest.mark.parametrize(
    "snapshot",
    [
        looked_into(every_s=0.0),
        looked_into(state=JobState.RECOVERING),
        looked_into(incident_opened_s=NOW_S - 1.0),
        looked_into(cancel_requested=True),
        change(looked_into(), install=None),
        change(looked_into(), signals=(signal("rank_overdue", replica=1, incarnation=1, rank=0, value=30.0),)),
    ],
    ids=["not asked for", "recovers", "incident", "cancelled", "view change", "a rank is suspected"],
)
def test_it_stays_away(snapshot):
    assert decisions(snapshot, rule=RULE) == ()
