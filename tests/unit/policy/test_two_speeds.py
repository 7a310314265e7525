"""R30: what is reversible is done on the first evidence, what is destructive waits for the lease."""

import pytest

from controlplane.policy import flaps
from controlplane.policy.clock import on_one_clock
from controlplane.policy.decide import decide
from controlplane.policy.membership import install, next_view
from controlplane.policy.plan import AnnounceView, SetJobState, SetReplicaState, StartReplica, StopReplica
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes
from controlplane.protocol.membership import Install, Member
from controlplane.protocol.spec import Resiliency, Timeouts
from controlplane.protocol.states import JobState, ReplicaState

from .builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    action,
    actions,
    change,
    decisions,
    flush,
    install_of,
    job,
    only,
    replica,
    running,
    signal,
    spec,
    with_replica,
)

ENDS = (StopReplica, StartReplica)


def cut(silent_s: float, *, still_s: float, step_s: float | None, connected: bool = False, **fields) -> JobSnapshot:
    """Node 1 is not heard for `silent_s`; the others wait for it; no step for `still_s`."""
    found = signal("node_silent", node_id="n1", value=silent_s, threshold=2.0, seen_s=NOW_S - silent_s + 2.0)
    snapshot = running(
        signals=(found,), learned=LearnedTimes(step_s=step_s), **{"job": job(progressed_s=NOW_S - still_s), **fields}
    )
    rows = tuple(change(row, waiting=row.index != 1) for row in snapshot.replicas)
    nodes = tuple(change(n, connected=connected) if n.id == "n1" else n for n in snapshot.nodes)
    return change(snapshot, replicas=rows, nodes=nodes)


def left_out(silent_s: float | None = None, *, step_s: float = 25.0, **fields) -> JobSnapshot:
    """Replica 1 was left out in view 3, which is installed and commits steps."""
    before = running().view
    members = tuple(Member(index, 1, CONTRIBUTOR) for index in (0, 2))
    view = next_view(
        job_id="job_1", attempt=1, epoch=3, members=members, before=before, reason="", left_out=(Member(1, 1, JOINER),)
    )
    found = signal("node_silent", node_id="n1", value=silent_s or 0.0, threshold=2.0)
    snapshot = running(
        job=job(state=JobState.RECOVERING, epoch=3, progressed_s=NOW_S - 0.5),
        view=view,
        install=install_of(view),
        signals=() if silent_s is None else (found,),
        learned=LearnedTimes(step_s=step_s),
        **fields,
    )
    waits = silent_s is None
    snapshot = with_replica(snapshot, 1, state=ReplicaState.SUSPECT, contributing=False, in_view=False, waiting=waits)
    nodes = tuple(change(n, connected=silent_s is None) if n.id == "n1" else n for n in snapshot.nodes)
    return change(snapshot, nodes=nodes)


def ended(snapshot: JobSnapshot) -> list[type]:
    return [type(act) for decision in decisions(snapshot) for act in decision.actions if isinstance(act, ENDS)]


def test_with_25_s_steps_a_link_that_is_cut_for_11_s_gets_nobody_ended():
    assert ended(cut(11.0, still_s=20.0, step_s=25.0)) == []
    assert ended(left_out(11.0)) == []


def test_who_is_out_of_reach_is_left_out_after_2_s_and_nothing_of_it_is_ended():
    decision = only(cut(2.5, still_s=2.5, step_s=25.0), "leave_out")
    view = action(decision, AnnounceView).view
    assert [member.replica for member in view.members] == [0, 2]
    assert view.waits(1, 1)
    assert action(decision, SetReplicaState).to is ReplicaState.SUSPECT
    assert action(decision, SetJobState).to is JobState.RECOVERING
    assert "within 50 s" in decision.sentence


@pytest.mark.parametrize(
    ("step_s", "silent_s", "ends"),
    [
        (25.0, 49.9, False),
        (25.0, 50.0, True),
        (0.2, 9.9, False),
        (0.2, 10.0, True),
        (None, 59.0, False),
        (None, 60.0, True),
    ],
)
def test_the_lease_follows_the_measured_step(step_s: float | None, silent_s: float, ends: bool):
    assert bool(ended(cut(silent_s, still_s=silent_s, step_s=step_s))) is ends


def test_in_the_first_step_of_a_job_silence_leaves_out_and_only_a_told_death_ends():
    """Nothing was measured yet, so the lease is a minute; an exception of the program is a death that is told."""
    first = {"job": job(progressed_s=None), "view_since_s": NOW_S - 30.0, "installed_s": NOW_S - 20.0}
    out = cut(4.5, still_s=0.0, step_s=None, **first)
    assert "within 60 s" in only(out, "leave_out").sentence
    assert ended(out) == []
    raised = signal("rank_exit", replica=1, incarnation=1, rank=0, node_id="n1", value=1.0)
    decision = only(running(signals=(raised,), learned=LearnedTimes(), **first), "replica_failure")
    assert [type(act) for act in decision.actions if isinstance(act, ENDS)] == [StopReplica, StartReplica]


def test_the_lease_can_be_given():
    given = spec(resiliency=Resiliency(timeouts=Timeouts(lease_s=120.0)))
    wish = job(spec=given, progressed_s=NOW_S - 119.0)
    assert ended(cut(119.0, still_s=119.0, step_s=1.0, job=wish)) == []
    assert ended(cut(120.0, still_s=120.0, step_s=1.0, job=change(wish, progressed_s=NOW_S - 120.0)))


def test_a_node_that_comes_back_within_its_lease_rejoins_as_it_is():
    decision = only(left_out(), "admit_joiner")
    view = action(decision, AnnounceView).view
    assert Member(1, 1, JOINER) in view.members
    assert (view.returning, view.left_out) == ((1,), ())
    assert {pair.joiner for pair in view.donors} == {1}
    assert action(decision, SetReplicaState).to is ReplicaState.CATCHING_UP
    assert ended(left_out()) == []


def flapping(times_out: int, *, out_for_s: float) -> JobSnapshot:
    """Replica 1 waits to come back, out since `out_for_s`, so often lately."""
    out_s = NOW_S - out_for_s
    return with_replica(left_out(), 1, times_out=times_out, out_s=out_s, state_since_s=out_s)


@pytest.mark.parametrize(("times_out", "pause_s"), [(0, 0.0), (1, 0.0), (2, 5.0), (3, 10.0), (6, 80.0), (1000, 80.0)])
def test_one_that_comes_and_goes_is_taken_back_later_each_time(times_out: int, pause_s: float):
    if pause_s:
        early = flapping(times_out, out_for_s=pause_s - 0.5)
        assert decisions(early, rule="admit_joiner") == ()
        assert decide(early, CONFIG).next_pass_s == pytest.approx(NOW_S + 0.5), "nothing else rings for it"
        assert ended(early) == []
    assert only(flapping(times_out, out_for_s=pause_s), "admit_joiner").choice == "admit"


def test_the_pause_follows_a_clock_that_was_set_back():
    world = change(flapping(3, out_for_s=-27.0), clock_set_s=NOW_S - 1.0, clock_step_s=-30.0)
    moved = on_one_clock(world).replicas[1]
    assert (moved.state_since_s, moved.out_s) == (NOW_S - 3.0, NOW_S - 3.0)
    assert decisions(world, rule="admit_joiner") == ()
    later = change(world, now_s=NOW_S + 7.0)
    assert only(later, "admit_joiner").choice == "admit", "10 s after it was left out, not 37"


def test_a_long_time_without_a_leave_out_begins_the_count_anew():
    assert flaps.times_out(5, NOW_S - flaps.WINDOW_S, NOW_S) == 6
    assert flaps.times_out(5, NOW_S - flaps.WINDOW_S - 1.0, NOW_S) == 1
    assert flaps.times_out(0, None, NOW_S) == 1
    assert flaps.times_out(flaps.MAX_TIMES, NOW_S, NOW_S) == flaps.MAX_TIMES


def test_who_leaves_it_out_again_says_when_it_may_come_back():
    again = with_replica(cut(2.5, still_s=2.5, step_s=25.0), 1, times_out=2, out_s=NOW_S - 30.0)
    sentence = only(again, "leave_out").sentence
    assert sentence.endswith(
        "Replica 1 was left out 3 times within 10 min of each other: it comes back 10 s from now at the earliest."
    )
    assert "times" not in only(cut(2.5, still_s=2.5, step_s=25.0), "leave_out").sentence


def test_one_whose_node_is_still_not_heard_does_not_rejoin():
    assert decisions(left_out(3.0), rule="admit_joiner") == ()


def test_one_that_is_left_out_is_ended_and_placed_elsewhere_when_its_lease_is_over():
    decision = only(left_out(50.0), "replica_failure")
    assert action(decision, StopReplica).replica == 1
    assert {place.node_id for place in action(decision, StartReplica).placements} == {"n3"}
    assert actions(decision, AnnounceView) == ()


def test_steps_of_the_others_prove_nothing_about_one_that_is_left_out():
    assert ended(change(left_out(50.0), job=job(state=JobState.RECOVERING, epoch=3, progressed_s=NOW_S)))


def test_a_death_that_is_told_ends_it_at_once():
    gone = with_replica(left_out(3.0), 1, exited_ranks=2)
    assert only(gone, "replica_failure").reason_code == "rank_exit"


def test_it_is_looked_at_again_when_the_lease_ends():
    due_s = decide(left_out(11.0), CONFIG).next_pass_s
    assert due_s is not None
    assert due_s <= NOW_S + 39.0


def test_nobody_is_left_out_where_too_few_would_be_left():
    needs_all = job(spec=spec(min_replicas=3), progressed_s=NOW_S - 2.5)
    assert decisions(cut(2.5, still_s=2.5, step_s=25.0, job=needs_all)) == ()


def test_a_forming_replica_on_a_dead_node_is_started_elsewhere_though_others_train():
    snapshot = with_replica(left_out(60.0), 1, state=ReplicaState.FORMING, joined_ranks=0)
    assert only(snapshot, "replica_failure").reason_code == "node_silent"


def test_who_returns_is_a_joiner_whatever_it_says_and_its_steps_do_not_count():
    members = (Member(0, 1, CONTRIBUTOR), Member(1, 1, JOINER), Member(2, 1, CONTRIBUTOR))
    view = next_view(
        job_id="job_1", attempt=1, epoch=4, members=members, before=left_out().view, reason="", returning=(1,)
    )
    said = [flush(index, rank, epoch=4, committed_step=60) for index in (0, 2) for rank in range(2)]
    old = [flush(1, rank, epoch=4, committed_step=50, prepared=True) for rank in range(2)]
    answer = install(view, (*said, *old), {0: 2, 1: 2, 2: 2})
    assert isinstance(answer, Install)
    assert (answer.step, answer.contributors) == (60, (0, 2))


def test_it_returns_through_every_view_until_it_has_caught_up():
    back = only(left_out(), "admit_joiner")
    first = action(back, AnnounceView).view
    again = next_view(job_id="job_1", attempt=1, epoch=5, members=first.members, before=first, reason="")
    assert again.returning == (1,)
    level = tuple(change(member, role=CONTRIBUTOR) for member in first.members)
    assert next_view(job_id="job_1", attempt=1, epoch=6, members=level, before=again, reason="").returning == ()


def test_a_job_of_1000_replicas_leaves_one_out_and_goes_on():
    found = signal("node_silent", node_id="n1", value=2.5, threshold=2.0)
    base = cut(2.5, still_s=2.5, step_s=25.0)
    rows = tuple(replica(index, waiting=index != 1) for index in range(1000))
    members = tuple(Member(index, 1, CONTRIBUTOR) for index in range(1000))
    view = next_view(job_id="job_1", attempt=1, epoch=2, members=members, before=None, reason="")
    nodes = tuple(change(base.nodes[0], id=f"n{index}", name=f"node-{index}") for index in range(1000))
    nodes = tuple(change(n, silent_s=2.5, connected=False) if n.id == "n1" else n for n in nodes)
    big = change(base, replicas=rows, view=view, install=install_of(view), nodes=nodes, signals=(found,))
    assert len(action(only(big, "leave_out"), AnnounceView).view.members) == 999


# --- beside the other ways out ------------------------------------------------------------------


def test_where_all_must_train_the_lease_decides_and_the_others_then_wait_for_the_replacement():
    every = job(spec=spec(min_replicas=3, spares=2), progressed_s=NOW_S - 3.0)
    assert decisions(cut(3.0, still_s=3.0, step_s=25.0, job=every)) == ()
    late = cut(50.0, still_s=50.0, step_s=25.0, job=change(every, progressed_s=NOW_S - 50.0))
    decision = only(late, "replica_failure")
    assert decision.choice == "hold_and_replace"
    assert [member.replica for member in action(decision, AnnounceView).view.members] == [0, 2]


def test_who_is_left_out_is_awaited_when_a_second_failure_leaves_too_few_and_makes_up_the_number():
    two = job(state=JobState.RECOVERING, epoch=3, spec=spec(min_replicas=2), progressed_s=NOW_S - 0.5)
    gone = signal("rank_exit", 2, replica=2, incarnation=1, rank=0, value=1.0)
    world = left_out(3.0)
    world = change(with_replica(world, 2, exited_ranks=2), job=two, signals=(*world.signals, gone))
    decision = only(world, "replica_failure")
    view = action(decision, AnnounceView).view
    assert decision.choice == "hold_and_replace" and decisions(world, rule="restart") == ()
    assert [member.replica for member in view.members] == [0] and view.waits(1, 1)
    back = left_out()
    back = change(
        with_replica(back, 2, state=ReplicaState.EVICTED, in_view=False, contributing=False),
        job=change(two, epoch=4),
        view=view,
        install=None,
        view_since_s=NOW_S - 1.0,
        flushes=tuple(flush(0, rank, epoch=4) for rank in range(2)),
    )
    following = action(only(back, "admit_joiner"), AnnounceView).view
    assert [(member.replica, member.role) for member in following.members] == [(0, CONTRIBUTOR), (1, JOINER)]
    assert following.returning == (1,) and following.left_out == ()


def test_a_common_stall_is_told_though_one_is_out_of_reach_and_its_void_findings_do_not_count():
    def late(index: int, seen_s: float):
        return signal(
            "rank_overdue", replica=index, incarnation=1, rank=0, value=430.0, threshold=420.0, seen_s=seen_s,
            evidence={"section": "checkpointing"}, id=f"late_{index}",
        )  # fmt: skip

    still = job(state=JobState.RECOVERING, epoch=3, progressed_s=NOW_S - 440.0)
    world = change(left_out(3.0), job=still)
    stalled = change(world, signals=(*world.signals, late(0, NOW_S - 10.0), late(2, NOW_S - 9.0)))
    assert only(stalled, "common_stall").reason_code == "storage_stall"
    assert ended(stalled) == []
    moved = change(stalled, job=change(still, progressed_s=NOW_S - 1.0))
    assert decisions(moved, rule="common_stall") == () and ended(moved) == []
    assert only(moved, "void").evidence["findings"] == 2
