"""One that was left out of a view that nobody has entered is taken back when those in it fail."""

import pytest

from controlplane.policy.membership import install, next_view
from controlplane.policy.plan import AnnounceView, StopReplica
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.membership import Install, Member
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
    install_of,
    job,
    node,
    only,
    running,
    signal,
    spec,
    with_replica,
)
from .test_relief import WHY

OUT_S = NOW_S - 2.0


def waits(*, needed: int = 1, role=CONTRIBUTOR, lost: tuple[int, ...] = (0, 2), **fields) -> JobSnapshot:
    """Replica 1 is out of view 3, whose other members have not all answered it; the `lost` ones have ended."""
    before = running().view
    members = tuple(Member(index, 1, CONTRIBUTOR) for index in (0, 2))
    view = next_view(
        job_id="job_1", attempt=1, epoch=3, members=members, before=before, reason="", left_out=(Member(1, 1, role),)
    )
    snapshot = running(
        job=job(state=JobState.RECOVERING, epoch=3, spec=spec(min_replicas=needed), progressed_s=OUT_S - 0.5),
        view=view,
        install=None,
        view_since_s=OUT_S,
        signals=tuple(signal("rank_exit", i, replica=i, incarnation=1, rank=0, value=1.0) for i in lost),
    )
    out = {"state": ReplicaState.SUSPECT, "state_since_s": OUT_S, "contributing": False, "in_view": False}
    snapshot = with_replica(snapshot, 1, **(out | fields))
    for index in lost:
        snapshot = with_replica(snapshot, index, exited_ranks=2)
    return snapshot


@pytest.mark.parametrize("role", [CONTRIBUTOR, STANDBY])
def test_it_goes_on_as_what_it_was_and_nothing_restarts(role) -> None:
    snapshot = waits(role=role)
    decision, beside = decisions(snapshot, rule="replica_failure")
    view = action(decision, AnnounceView).view
    assert view.members == (Member(1, 1, role),) and not view.left_out and not view.returning
    assert decision.sentence.endswith("Replica 1 is taken back: nobody has entered the view that left it out.")
    assert "taken back" not in beside.sentence, "the view is the first one's"
    assert decisions(snapshot, rule="restart") == ()
    said = tuple(flush(1, rank, epoch=4, role=role) for rank in range(2))
    answer = install(view, said, {1: 2})
    assert isinstance(answer, Install) and (answer.step, answer.contributors) == (50, (1,))


def test_it_makes_up_the_number_that_must_train_and_is_left_out_else() -> None:
    view = action(only(waits(needed=2, lost=(2,)), "replica_failure"), AnnounceView).view
    assert [(each.replica, each.role) for each in view.members] == [(0, CONTRIBUTOR), (1, CONTRIBUTOR)]
    alone = action(only(waits(lost=(2,)), "replica_failure"), AnnounceView).view
    assert [each.replica for each in alone.members] == [0] and alone.waits(1, 1)


def test_one_that_a_person_wants_out_waits_for_another_then() -> None:
    snapshot = waits(ordered_out=WHY, ordered_s=OUT_S)
    view = action(decisions(snapshot, rule="replica_failure")[0], AnnounceView).view
    assert [each.replica for each in view.members] == [1]
    back = change(snapshot, view=view, view_since_s=NOW_S, signals=(), job=change(snapshot.job, epoch=4))
    for index in (0, 2):
        back = with_replica(back, index, state=ReplicaState.FORMING, incarnation=2, exited_ranks=0, joined_ranks=0)
    decision = only(with_replica(back, 1, in_view=True), "ordered_eviction")
    assert decision.choice == "wait" and not actions(decision, StopReplica)


def test_a_blind_server_takes_back_who_is_connected_and_not_called_silent() -> None:
    """For a while after its start it knows of no node how long that was silent."""
    snapshot = waits()
    unknown = tuple(change(each, silent_s=None) for each in snapshot.nodes)
    blind = change(snapshot, blind=True, nodes=unknown)
    view = action(decisions(blind, rule="replica_failure")[0], AnnounceView).view
    assert view.members == (Member(1, 1, CONTRIBUTOR),)
    away = tuple(change(each, connected=each.id != "n1") for each in unknown)
    assert only(change(blind, nodes=away), "restart").reason_code == "no_contributor"


@pytest.mark.parametrize(
    "why", ["somebody has entered", "it is behind, or was catching up", "it is silent", "it has failed as well"]
)
def test_it_holds_the_newest_state_no_more_or_is_not_at_hand(why: str) -> None:
    snapshot = waits(role=JOINER if why == "it is behind, or was catching up" else CONTRIBUTOR)
    assert snapshot.view is not None
    if why == "somebody has entered":
        snapshot = change(snapshot, install=install_of(snapshot.view), installed_s=NOW_S - 1.0)
    if why == "it is silent":
        nodes = (node(1, free=False, connected=False, silent_s=3.0) if n.id == "n1" else n for n in snapshot.nodes)
        snapshot = change(snapshot, nodes=tuple(nodes))
    if why == "it has failed as well":
        gone = signal("rank_exit", 9, replica=1, incarnation=1, rank=0, value=1.0)
        snapshot = change(with_replica(snapshot, 1, exited_ranks=2), signals=(*snapshot.signals, gone))
    assert only(snapshot, "restart").reason_code == "no_contributor"


def test_it_stays_what_it_was_through_views_that_nobody_enters_and_is_behind_once_one_is_installed() -> None:
    snapshot = waits(lost=(2,))
    view = action(only(snapshot, "replica_failure"), AnnounceView).view
    assert view.left_out == (Member(1, 1, CONTRIBUTOR),)
    assert snapshot.view is not None
    entered = change(snapshot, install=install_of(snapshot.view), installed_s=NOW_S - 1.0)
    view = action(only(entered, "replica_failure"), AnnounceView).view
    assert view.left_out == (Member(1, 1, JOINER),)
