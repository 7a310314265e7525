"""batch_mode "spares": enough replicas compute, the others stand by and are promoted at once."""

from controlplane.policy.plan import AnnounceView, EndAttempt, SendInstall, SetJobState, SetReplicaState
from controlplane.protocol.membership import Install, MemberRole
from controlplane.protocol.spec import Training
from controlplane.protocol.states import JobState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    STANDBY,
    action,
    actions,
    change,
    decisions,
    flush,
    job,
    only,
    replica,
    running,
    signal,
    spec,
    view_of,
)

SPARES = spec(min_replicas=2, training=Training(steps=100, global_batch=6, batch_mode="spares"))
MEMBERS = ((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, STANDBY))


def standing_by(*, members=MEMBERS, **fields):
    """Replicas 0 and 1 train, 2 stands by."""
    view = view_of(*members)
    rows = (replica(0), replica(1), replica(2, state=ReplicaState.SPARE, contributing=False))
    base = {
        "job": job(spec=SPARES),
        "view": view,
        "install": Install("job_1", 1, view.epoch, 50, (0, 1), (), (2,)),
        "replicas": rows,
    }
    return running(**(base | fields))


def flushed(view, **roles):
    return tuple(
        flush(m.replica, rank, epoch=view.epoch, incarnation=m.incarnation, role=m.role)
        for m in view.members
        for rank in range(2)
    )


def died(index):
    return signal("rank_exit", replica=index, incarnation=1, rank=0, value=137.0)


def test_the_first_install_lets_the_surplus_stand_by():
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    rows = tuple(replica(i, state=ReplicaState.FORMING, contributing=False) for i in range(3))
    decision = only(
        standing_by(view=view, install=None, view_since_s=NOW_S, replicas=rows, flushes=flushed(view)),
        "membership_install",
    )
    order = action(decision, SendInstall).install
    assert (order.contributors, order.standbys) == ((0, 1), (2,))
    states = {move.replica: move.to for move in actions(decision, SetReplicaState)}
    assert states == {0: ReplicaState.ACTIVE, 1: ReplicaState.ACTIVE, 2: ReplicaState.SPARE}


def test_standing_by_is_full_strength():
    decision = only(standing_by(job=job(spec=SPARES, state=JobState.RECOVERING)), "strength")
    assert action(decision, SetJobState).to is JobState.RUNNING


def test_a_lost_contributor_costs_no_restart_while_one_stands_by():
    decision = only(standing_by(signals=(died(0),)), "replica_failure")
    roles = {member.replica: member.role for member in action(decision, AnnounceView).view.members}
    assert roles == {1: CONTRIBUTOR, 2: STANDBY}


def test_the_view_without_it_promotes_the_standby():
    view = view_of((1, 1, CONTRIBUTOR), (2, 1, STANDBY), epoch=3)
    rows = (replica(0, state=ReplicaState.EVICTED), *standing_by().replicas[1:])
    snapshot = standing_by(
        view=view, install=None, view_since_s=NOW_S, replicas=rows, flushes=flushed(view), job=job(spec=SPARES, epoch=3)
    )
    decision = only(snapshot, "membership_install")
    assert action(decision, SendInstall).install.contributors == (1, 2)
    assert {(move.replica, move.to) for move in actions(decision, SetReplicaState)} == {(2, ReplicaState.ACTIVE)}


def test_a_lost_standby_takes_no_contributor_with_it():
    view = action(only(standing_by(signals=(died(2),)), "replica_failure"), AnnounceView).view
    assert {member.replica: member.role for member in view.members} == {0: CONTRIBUTOR, 1: CONTRIBUTOR}


def test_too_few_to_compute_end_the_attempt():
    snapshot = standing_by(signals=(died(0), died(2)))
    assert any(actions(decision, EndAttempt) for decision in decisions(snapshot, rule="restart"))


def test_a_standby_is_a_standby_in_the_next_view_even_if_the_first_view_called_it_a_contributor():
    members = ((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    view = action(only(standing_by(members=members, signals=(died(0),)), "replica_failure"), AnnounceView).view
    assert {member.replica: member.role for member in view.members} == {1: CONTRIBUTOR, 2: STANDBY}


def catching_up(**fields):
    rows = (replica(0), replica(1), replica(2, state=ReplicaState.CATCHING_UP, contributing=False, **fields))
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR), (2, 1, JOINER))
    return standing_by(view=view, install=Install("job_1", 1, 2, 50, (0, 1)), replicas=rows)


def test_a_joiner_that_ends_in_standing_by_becomes_a_spare():
    decision = only(catching_up(standby=True), "admit_joiner")
    assert action(decision, SetReplicaState).to is ReplicaState.SPARE


def test_a_joiner_that_stands_by_is_one_in_the_next_view():
    view = action(only(change(catching_up(standby=True), signals=(died(0),)), "replica_failure"), AnnounceView).view
    assert {member.replica: member.role for member in view.members} == {1: CONTRIBUTOR, 2: MemberRole.STANDBY}
