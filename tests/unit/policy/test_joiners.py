"""A replica that comes back: when it is admitted, when its view begins, when it counts."""

import pytest

from controlplane.policy.decide import decide
from controlplane.policy.plan import AnnounceView, SetReplicaState
from controlplane.policy.snapshot import LearnedTimes
from controlplane.protocol.membership import Donor, MemberRole
from controlplane.protocol.states import ReplicaState

from .builders import CONFIG, NOW_S, action, catching_up, change, decisions, only, parked, signal


def test_a_replica_that_is_up_joins_with_a_donor():
    decision = only(parked(), "admit_joiner")
    view = action(decision, AnnounceView).view
    roles = {member.replica: member.role for member in view.members}
    assert roles == {0: MemberRole.CONTRIBUTOR, 1: MemberRole.JOINER, 2: MemberRole.CONTRIBUTOR}
    assert view.donors == (Donor(1, 0), Donor(1, 2))
    assert action(decision, SetReplicaState).to is ReplicaState.CATCHING_UP


@pytest.mark.parametrize("slot", [{"joined_ranks": 1}, {"exited_ranks": 1}])
def test_a_replica_that_is_not_wholly_up_does_not_join(slot):
    assert decisions(parked(**slot), rule="admit_joiner") == ()


def test_nobody_joins_before_the_view_is_installed():
    assert decisions(change(parked(), install=None, view_since_s=NOW_S), rule="admit_joiner") == ()


def test_a_failure_goes_before_a_joiner():
    dead = signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0)
    snapshot = change(parked(), signals=(dead,))
    assert next(d.rule for d in decisions(snapshot)) == "replica_failure"
    assert decisions(snapshot, rule="admit_joiner") == ()


@pytest.mark.parametrize(
    ("progressed_s", "waited_s", "admitted"),
    [(-5.0, 0.2, False), (-0.1, 0.2, True), (-5.0, 1.1, True), (None, 0.2, False)],
)
def test_a_joiner_waits_a_moment_for_the_first_step_of_the_view_before_it(
    progressed_s: float | None, waited_s: float, admitted: bool
) -> None:
    last_s = NOW_S + progressed_s if progressed_s is not None else None
    waits = parked()
    snapshot = change(waits, installed_s=NOW_S - waited_s, job=change(waits.job, progressed_s=last_s))
    assert bool(decisions(snapshot, rule="admit_joiner")) is admitted
    if not admitted:
        due_s = decide(snapshot, CONFIG).next_pass_s
        assert due_s is not None
        assert due_s <= NOW_S - waited_s + CONFIG.admit_patience_s + 1e-6


def in_step(since_s: float, *, step_s: float | None = 0.5, steps: int = 1000, progressed: bool = True):
    """A joiner is up; the last known commit, of step 40, is `since_s` old. Steps of the two that
    contribute take `step_s`, of all three two thirds of that."""
    waits = parked()
    spec = waits.job.spec
    spec = change(spec, training=change(spec.training, steps=steps))
    job = change(waits.job, spec=spec, committed_step=40, progressed_s=NOW_S - since_s if progressed else None)
    return change(waits, job=job, installed_s=NOW_S - 60.0, learned=LearnedTimes(step_s=step_s and step_s * 2 / 3))


@pytest.mark.parametrize(
    ("since_s", "step_s", "at_step"),
    [
        (0.0, 0.5, 40),  # Time enough in the step that they are in.
        (0.1, 0.5, 41),  # Not any more: there when it is nearly over.
        (0.31, 0.5, 41),  # There at the beginning of the next.
        (0.45, 0.5, 41),
        (0.6, 0.5, 42),
        (0.05, 0.2, 42),  # Short steps are over before anything is answered.
        (0.0, 10.0, 40),
        (9.6, 10.0, 41),
        (9.9, 10.0, 41),  # There in the next, with all of it ahead.
        (19.0, 10.0, 41),  # Late, but as good as any guess.
        (21.0, 10.0, None),  # Something holds them up.
        (0.0, None, None),
    ],
)
def test_a_joiners_view_begins_with_a_step_that_leaves_time_for_its_orders(since_s, step_s, at_step):
    decision = only(in_step(since_s, step_s=step_s), "admit_joiner")
    assert action(decision, AnnounceView).view.at_step == at_step
    assert decision.evidence.get("at_step") == at_step
    assert (f"once {at_step} steps are committed" in decision.sentence) is (at_step is not None)


def test_a_joiners_view_names_no_step_beyond_the_jobs_last():
    decision = only(in_step(0.1, steps=41), "admit_joiner")
    assert action(decision, AnnounceView).view.at_step is None


def test_a_joiners_view_names_no_step_where_none_was_committed_since_the_install():
    snapshot = in_step(0.0)
    behind = change(snapshot, installed_s=NOW_S - 1.1, job=change(snapshot.job, progressed_s=NOW_S - 1.2))
    assert action(only(behind, "admit_joiner"), AnnounceView).view.at_step is None


def test_a_view_that_leaves_somebody_out_names_no_step():
    dead = signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0)
    decision = only(change(in_step(0.0), signals=(dead,)), "replica_failure")
    assert action(decision, AnnounceView).view.at_step is None


def test_who_has_caught_up_is_counted_in():
    decision = only(catching_up(contributing=True), "admit_joiner")
    assert action(decision, SetReplicaState).to is ReplicaState.ACTIVE
    assert decision.routine


def test_who_has_not_caught_up_is_left_to_it():
    assert decisions(catching_up(contributing=False)) == ()
