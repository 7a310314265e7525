"""One whose agent speaks and whose ranks work on while all others wait: left out first, ended later (R30)."""

from typing import Any

import pytest

from controlplane.policy.decide import decide
from controlplane.policy.membership import next_view
from controlplane.policy.plan import AnnounceView, SetReplicaState, StartReplica, StopReplica
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes
from controlplane.policy.stuck import Alone, alone_at_work
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Member
from controlplane.protocol.states import JobState, Phase, RankState, ReplicaState, Section

from .builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    STANDBY,
    action,
    attempt,
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
    view_of,
    with_replica,
)

ENDS = (StopReplica, StartReplica)


def held_up(stood_s: float, *, longest_s: float | None = 0.5, **fields: Any) -> JobSnapshot:
    """Replica 1 works on a step for `stood_s`, the others wait for it; every node is heard."""
    learned = LearnedTimes(step_s=longest_s, step_max_s=longest_s)
    snapshot = running(learned=learned, **{"job": job(progressed_s=NOW_S - stood_s), **fields})
    rows = tuple(
        change(row, waiting=row.index != 1, working_since_s=NOW_S - stood_s if row.index == 1 else None)
        for row in snapshot.replicas
    )
    return change(snapshot, replicas=rows)


def late(seen_s: float) -> Any:
    """Its agent has found a rank of it late."""
    return signal(
        "rank_overdue", replica=1, incarnation=1, rank=0, value=5.0, threshold=5.0, seen_s=seen_s,
        evidence={"section": "step", "phase": "compute", "step": 50},
    )  # fmt: skip


def out(**fields: Any) -> JobSnapshot:
    """It was left out in view 3; the others train."""
    members = tuple(Member(index, 1, CONTRIBUTOR) for index in (0, 2))
    view = next_view(
        job_id="job_1", attempt=1, epoch=3, members=members, before=running().view, reason="",
        left_out=(Member(1, 1, JOINER),),
    )  # fmt: skip
    base: dict[str, Any] = {"job": job(state=JobState.RECOVERING, epoch=3, progressed_s=NOW_S - 0.1)}
    snapshot = running(view=view, install=install_of(view), **(base | fields))
    return with_replica(
        snapshot, 1, state=ReplicaState.SUSPECT, contributing=False, in_view=False, times_out=1,
        working_since_s=NOW_S - 4.0,
    )  # fmt: skip


def ends(snapshot: JobSnapshot) -> list[object]:
    return [act for decision in decisions(snapshot) for act in decision.actions if isinstance(act, ENDS)]


def test_who_holds_all_others_up_is_left_out_within_2_s_of_a_step_that_cannot_last_so_long():
    assert decisions(held_up(2.4)) == ()
    decision = only(held_up(2.6), "leave_out")
    view = action(decision, AnnounceView).view
    assert [member.replica for member in view.members] == [0, 2]
    assert view.waits(1, 1)
    assert action(decision, SetReplicaState).to is ReplicaState.SUSPECT
    assert (decision.reason_code, ends(held_up(2.6))) == ("stuck", [])
    assert "silence" not in decision.sentence


@pytest.mark.parametrize(("stood_s", "leaves"), [(27.5, False), (37.4, False), (37.6, True)])
def test_a_long_step_must_have_lasted_half_as_long_again(stood_s: float, leaves: bool):
    assert bool(decisions(held_up(stood_s, longest_s=25.0), rule="leave_out")) is leaves


def test_the_moment_is_looked_at_though_nothing_rings_then():
    due_s = decide(held_up(1.0), CONFIG).next_pass_s
    assert due_s is not None
    assert NOW_S < due_s <= NOW_S + 1.5 + 0.01


@pytest.mark.parametrize(
    ("why", "snapshot"),
    [
        ("another works too", with_replica(held_up(9.0), 2, waiting=False)),
        ("it saves, fetches or is out of its step", with_replica(held_up(9.0), 1, working_since_s=None)),
        ("it has begun another phase", with_replica(held_up(9.0), 1, working_since_s=NOW_S - 1.0)),
        ("no step was measured", held_up(9.0, longest_s=None)),
        ("the first step of a view", held_up(9.0, installed_s=NOW_S - 8.0)),
        ("it was left out before in this life", with_replica(held_up(9.0), 1, times_out=1)),
        ("too few would be left", held_up(9.0, job=job(spec=spec(min_replicas=3), progressed_s=NOW_S - 9.0))),
        ("we are blind", held_up(9.0, blind=True)),
    ],
)
def test_nobody_is_left_out_where_it_cannot_be_told_from_work(why: str, snapshot: JobSnapshot):
    assert decisions(snapshot, rule="leave_out") == (), why


def test_the_word_of_the_others_must_be_of_now():
    snapshot = held_up(2.6)
    nodes = tuple(change(n, silent_s=1.9) if n.id == "n2" else n for n in snapshot.nodes)
    assert decisions(change(snapshot, nodes=nodes), rule="leave_out") == ()


def test_those_that_compute_nothing_accuse_nobody():
    view = view_of((0, 1, STANDBY), (1, 1, CONTRIBUTOR), (2, 1, STANDBY))
    snapshot = held_up(9.0, view=view, install=install_of(view))
    for index in (0, 2):
        snapshot = with_replica(snapshot, index, contributing=False, standby=True)
    assert decisions(snapshot, rule="leave_out") == ()


def test_one_that_is_silent_is_judged_as_silent():
    found = signal("node_silent", node_id="n1", value=2.6, threshold=2.0)
    assert only(held_up(2.6, signals=(found,)), "leave_out").reason_code == "node_silent"


def test_it_comes_back_when_it_waits_and_not_while_it_works_on():
    assert decisions(out(), rule="admit_joiner") == ()
    back = only(with_replica(out(), 1, waiting=True, working_since_s=None), "admit_joiner")
    view = action(back, AnnounceView).view
    assert (view.returning, view.left_out) == ((1,), ())
    due_s = decide(out(), CONFIG).next_pass_s
    assert due_s is not None
    assert due_s <= NOW_S + CONFIG.capacity_retry_s


def test_it_is_ended_when_its_agent_finds_it_late_whatever_the_others_commit():
    decision = only(out(signals=(late(NOW_S - 2.0),)), "replica_failure")
    assert (decision.reason_code, action(decision, StopReplica).replica) == ("hang", 1)


def test_a_second_one_gets_stuck_while_the_first_is_out():
    snapshot = out()
    stuck = job(state=JobState.RECOVERING, epoch=3, progressed_s=NOW_S - 9.0)
    snapshot = change(snapshot, job=stuck, learned=LearnedTimes(step_s=0.5, step_max_s=0.5))
    snapshot = with_replica(with_replica(snapshot, 0, waiting=True), 2, working_since_s=NOW_S - 9.0)
    view = action(only(snapshot, "leave_out"), AnnounceView).view
    assert [member.replica for member in view.members] == [0]
    assert view.waits(1, 1)
    assert view.waits(2, 1)


def test_one_of_1000_replicas():
    base = held_up(2.6)
    rows = tuple(
        replica(index, waiting=index != 1, working_since_s=NOW_S - 2.6 if index == 1 else None) for index in range(1000)
    )
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(1000)))
    nodes = tuple(change(base.nodes[0], id=f"n{index}", name=f"node-{index}") for index in range(1000))
    big = change(base, replicas=rows, view=view, install=install_of(view), nodes=nodes)
    assert len(action(only(big, "leave_out"), AnnounceView).view.members) == 999


# --- a view that it does not answer ---------------------------------------------------------------


def owing(age_s: float, *, longest_s: float | None = 0.5, at_step: int | None = None, **fields: Any) -> JobSnapshot:
    """Replica 1 alone has not answered the view of `age_s` ago; it is heard, and its ranks beat."""
    said = tuple(flush(index, rank) for index in (0, 2) for rank in range(2))
    view = change(view_of(*((index, 1, CONTRIBUTOR) for index in range(3))), at_step=at_step)
    learned = LearnedTimes(step_s=longest_s, step_max_s=longest_s)
    base: dict[str, Any] = {"install": None, "flushes": said, "view": view, "learned": learned}
    snapshot = running(view_since_s=NOW_S - age_s, **(base | fields))
    rows = tuple(change(row, waiting=True, silent_s=0.4) for row in snapshot.replicas)
    return change(snapshot, replicas=rows)


def test_who_alone_owes_an_answer_is_left_out_within_2_s_of_a_step_and_not_ended():
    assert decisions(owing(2.4)) == ()
    decision = only(owing(2.6), "leave_out")
    view = action(decision, AnnounceView).view
    assert [member.replica for member in view.members] == [0, 2]
    assert view.waits(1, 1)
    assert action(decision, SetReplicaState).to is ReplicaState.SUSPECT
    assert (decision.reason_code, ends(owing(2.6))) == ("unflushed", [])
    assert "view 2 waits for rank 0, 1 alone since 2.6 s, and its agent speaks" in decision.sentence
    assert "silence" not in decision.sentence
    assert "it comes back when it waits as the others do" in decision.sentence


def test_one_of_its_ranks_is_enough():
    snapshot = owing(2.6)
    said = (*snapshot.flushes, flush(1, 0))
    assert "waits for rank 1 alone" in only(change(snapshot, flushes=said), "leave_out").sentence


@pytest.mark.parametrize(
    ("age_s", "longest_s", "at_step", "leaves"),
    [
        (14.9, 25.0, None, False),
        (15.1, 25.0, None, True),
        (5.4, 0.5, 51, False),
        (5.6, 0.5, 51, True),
        (8.9, 6.0, None, False),
        (9.1, 6.0, None, True),
    ],
)
def test_an_answer_has_a_step_and_the_one_that_the_view_names(
    age_s: float, longest_s: float, at_step: int | None, leaves: bool
):
    snapshot = owing(age_s, longest_s=longest_s, at_step=at_step)
    assert bool(decisions(snapshot, rule="leave_out")) is leaves
    assert ends(snapshot) == []


def test_the_moment_at_which_an_answer_is_late_is_looked_at_though_nothing_rings_then():
    due_s = decide(owing(1.0), CONFIG).next_pass_s
    assert due_s == pytest.approx(NOW_S + 1.5)
    missing_two = change(owing(6.0), flushes=())
    assert decide(missing_two, CONFIG).next_pass_s == pytest.approx(NOW_S + CONFIG.outer_error_grace_s)


@pytest.mark.parametrize(
    ("why", "snapshot"),
    [
        ("another owes its answer too", change(owing(9.0), flushes=tuple(flush(0, rank) for rank in range(2)))),
        ("no step was measured", owing(9.0, longest_s=None)),
        ("it saves", with_replica(owing(9.0), 1, waiting=False, saving=True)),
        ("it fetches, or builds", with_replica(owing(9.0), 1, waiting=False)),
        ("its ranks are mute: their agent tells", with_replica(owing(9.0), 1, silent_s=3.1)),
        ("nothing is known of its ranks", with_replica(owing(9.0), 1, silent_s=None)),
        ("it was left out before in this life", with_replica(owing(9.0), 1, times_out=1)),
        ("too few would be left", owing(9.0, job=job(spec=spec(min_replicas=3)))),
        ("we are blind", owing(9.0, blind=True)),
        ("a node is silent", owing(9.0, signals=(signal("node_silent", node_id="n2", value=9.0, threshold=2.0),))),
    ],
)
def test_nobody_is_left_out_where_more_than_an_answer_is_missing(why: str, snapshot: JobSnapshot):
    assert decisions(snapshot, rule="leave_out") == (), why


def test_the_second_time_in_a_life_and_where_too_few_are_left_the_long_limit_ends_it():
    again = {"times_out": 1}
    assert ends(with_replica(owing(29.0), 1, **again)) == []
    decision = only(with_replica(owing(31.0), 1, **again), "replica_failure")
    assert (decision.reason_code, action(decision, StopReplica).replica) == ("unflushed", 1)


# --- when a pass is worth while -------------------------------------------------------------------


def told(index: int, rank: int, phase: Phase, **fields: Any) -> RankStatus:
    base: dict[str, Any] = {"section": Section.STEP, "step": 50, "phase_age_s": 1.2, "silent_s": 0.3}
    ref = RankRef("job_1", 1, index, 1, rank)
    return RankStatus(ref=ref, state=RankState.TRAINING, pid=1, device_index=0, phase=phase, **(base | fields))


WAITING = [told(index, rank, Phase.EXCHANGE) for index in (0, 2) for rank in range(2)]
STUCK = [told(1, 0, Phase.COMPUTE), told(1, 1, Phase.EXCHANGE)]


def test_one_alone_at_work_is_worth_a_pass():
    assert alone_at_work([*WAITING, *STUCK]) == {Alone("job_1", 1, 1, 50)}
    frozen = [told(1, rank, Phase.EXCHANGE, silent_s=3.5) for rank in range(2)]
    assert alone_at_work([*WAITING, *frozen]) == {Alone("job_1", 1, 1, 50)}


@pytest.mark.parametrize(
    "ranks",
    [
        [*WAITING, told(1, 0, Phase.COMPUTE, phase_age_s=0.4)],
        [*WAITING[1:], told(0, 0, Phase.EXCHANGE, phase_age_s=0.4), *STUCK],
        [*STUCK, told(2, 0, Phase.COMPUTE), told(2, 1, Phase.COMPUTE)],
        STUCK,
        WAITING,
        [*WAITING, told(1, 0, Phase.BUILDING, section=Section.SETUP)],
    ],
)
def test_work_is_not(ranks: list[RankStatus]):
    assert alone_at_work(ranks) == frozenset()


def test_micro_batches_are_not_parted_so_that_one_of_fewer_replicas_may_need_twice_as_long():
    """Four micro-batches over three replicas instead of four: one of the three computes two of them."""
    whole = spec(nodes=4, training=change(spec().training, global_batch=4, micro_batch=1))
    for stood_s, leaves in ((38.0, False), (39.5, True)):
        given = {"job": job(spec=whole, progressed_s=NOW_S - stood_s), "attempt": attempt(replicas=4)}
        assert bool(decisions(held_up(stood_s, longest_s=13.0, **given), rule="leave_out")) is leaves


@pytest.mark.parametrize(("state", "since_s"), [(ReplicaState.CATCHING_UP, 60.0), (ReplicaState.ACTIVE, 1.0)])
def test_one_that_counts_since_a_moment_ago_has_no_share_of_the_step_in_progress(state: ReplicaState, since_s: float):
    """Four micro-batches were dealt to three, and the fourth replica counts before they are done."""
    whole = spec(nodes=4, training=change(spec().training, global_batch=4, micro_batch=1))
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(4)))
    fourth = replica(3, state=state, state_since_s=NOW_S - since_s, waiting=True)
    given = {"job": job(spec=whole, progressed_s=NOW_S - 21.0), "attempt": attempt(replicas=4), "view": view}
    snapshot = held_up(21.0, longest_s=13.0, install=install_of(view), **given)
    assert decisions(change(snapshot, replicas=(*snapshot.replicas, fourth)), rule="leave_out") == ()
    settled = change(fourth, state=ReplicaState.ACTIVE, state_since_s=NOW_S - 60.0)
    assert decisions(change(snapshot, replicas=(*snapshot.replicas, settled)), rule="leave_out")
