"""No rung escapes the ledger, whatever the world looks like."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.budget import Rung, entries
from controlplane.policy.decide import decide
from controlplane.policy.plan import AnnounceView, PlaceAttempt, StartReplica
from controlplane.policy.snapshot import BudgetFact
from controlplane.protocol.states import AttemptState, JobState
from tests.properties.policy.test_decide import CONFIG, worlds
from tests.unit.policy.builders import change

spent = st.sampled_from(
    [BudgetFact(restarts_total=1000), BudgetFact(restarts_in_window=30), BudgetFact(no_progress_cycles=3)]
)


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_every_start_attempt_and_lost_member_is_an_entry_and_every_restart_is_charged(world):
    for decision in decide(world, CONFIG).decisions:
        found = entries(decision, world)
        starts = {(a.replica, a.incarnation) for a in decision.actions if isinstance(a, StartReplica)}
        assert {(e.replica, e.incarnation) for e in found if e.rung in (Rung.RANK, Rung.REPLICA)} == starts
        placed = sum(isinstance(a, PlaceAttempt) for a in decision.actions)
        assert sum(e.rung is Rung.ATTEMPT for e in found) == placed
        for action in decision.actions:
            if isinstance(action, AnnounceView) and world.view is not None:
                old = {(m.replica, m.incarnation) for m in world.view.members}
                lost = old - {(m.replica, m.incarnation) for m in action.view.members}
                assert not lost or any(e.rung is Rung.VIEW_CHANGE for e in found)
        assert not found or sum(e.charged for e in found) >= 1


@given(worlds(), spent, st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_spent_budget_starts_nothing(world, budget, queued):
    world = change(world, budget=budget)
    if queued:
        ended = msgspec.structs.replace(world.attempt, state=AttemptState.ENDED)
        world = change(world, attempt=ended, job=change(world.job, state=JobState.PENDING))
    found = [entry for decision in decide(world, CONFIG).decisions for entry in entries(decision, world)]
    assert {entry.rung for entry in found} <= {Rung.VIEW_CHANGE}
