"""A node is known to leave: what is on it goes before, in the cheapest way that fits in the time that is left."""

import msgspec
import pytest

from controlplane.policy import leaving, prices
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.plan import (
    AnnounceView,
    AnswerRequest,
    EndAttempt,
    OrderOut,
    ParkJob,
    PlaceAttempt,
    SetJobState,
    StartReplica,
)
from controlplane.policy.rules import registry
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes
from controlplane.protocol.spec import Scheduling
from controlplane.protocol.states import EndSource, JobState, RequestKind, RequestState

from .builders import CONFIG, NOW_S, action, actions, change, checkpoint, decisions, job, only, pending, spec
from .builders import with_replica as with_
from .test_relief import LONG, TOLD
from .test_requests import asked, world

RULE = "known_end"
MEASURED = LearnedTimes(step_s=1.0, step_max_s=1.0, start_replica_s=6.0, catch_up_s=4.0, save_p95_s=2.0)
LEAVE_S, RELIEVE_S, SAVE_S = 0.45 + 3.0, 6.0 + 4.0 + 0.45 + 3.0, 2.0 * 1.5 + 2.0
"""By hand: two ways of a view and three steps; a start and a catch-up besides; a save and its margin."""
ANY_TWO = spec(min_replicas=2, training=LONG.training)


def end(in_s: float, source: EndSource = EndSource.SPOT, **fields: object) -> KnownEnd:
    fields_of: dict[str, object] = {
        "id": "end_1", "source": source, "leaves_s": NOW_S + in_s, "said_s": NOW_S - 1.0, "reason": "terminate",
    }  # fmt: skip
    return KnownEnd(**(fields_of | fields))  # type: ignore[arg-type]


def leaves(snapshot: JobSnapshot, known: KnownEnd | None, node_id: str = "n1") -> JobSnapshot:
    nodes = tuple(change(each, end=known) if each.id == node_id else each for each in snapshot.nodes)
    return change(snapshot, nodes=nodes)


def notice(in_s: float = 30.0, source: EndSource = EndSource.SPOT, *, spares: int = 1, **fields: object) -> JobSnapshot:
    """Three replicas train, measured; the node of replica 1 leaves."""
    base: dict[str, object] = {"spares": spares, "learned": MEASURED, "job": job(spec=ANY_TWO)}
    return leaves(world(**(base | fields)), end(in_s, source))


def way(snapshot: JobSnapshot) -> str:
    return only(snapshot, RULE).choice


def test_what_each_way_needs_is_what_this_job_was_measured_to_take() -> None:
    assert leaving.needs_of(notice(), CONFIG) == pytest.approx((RELIEVE_S, LEAVE_S, SAVE_S))


def test_a_notice_of_30_s_has_another_started_beside_it_at_once_where_there_is_room() -> None:
    decision = only(notice(), RULE)
    move = action(decision, OrderOut)
    assert (decision.choice, move.replica, move.at_once) == ("relieve", 1, False)
    assert move.by == "its node leaves: node-1, terminate"
    stakes = prices.Stakes(gpus=2, asked=3, missing=1, started=0, placeable=0)
    times = prices.times_of(notice(), CONFIG)
    assert decision.cost_gpu_s == prices.beside_s(times, stakes, late_s=0.0) == pytest.approx(2 * 3 * (0.9 + 1.0 / 3))
    assert [other.action for other in decision.alternatives] == ["leave", "yield"]
    assert decision.evidence["left_s"] == 30.0 and decision.evidence["needs_s"] == pytest.approx(RELIEVE_S)
    assert decision.sentence.startswith("node-1 leaves in 30 s (a notice of its provider: terminate). Replica 1 trains")


def test_its_successor_starts_on_a_node_that_stays_and_the_order_is_no_fault() -> None:
    ordered = with_(notice(), 1, ordered_out="its node leaves: node-1, x", relieved="its node leaves: node-1, x")
    (start,) = (d for d in decisions(ordered) if actions(d, StartReplica))
    assert {place.node_id for place in action(start, StartReplica).placements} == {"n3"}
    assert start.rule == RULE and RULE not in registry.TOLD and RULE not in registry.FAULT
    nowhere = leaves(ordered, end(40.0, id="end_3"), "n3")
    assert not any(actions(d, StartReplica) for d in decisions(nowhere)), "nor on another that leaves"


@pytest.mark.parametrize(("in_s", "choice"), [(RELIEVE_S - 0.1, "plan_leave"), (RELIEVE_S + 0.1, "relieve")])
def test_another_is_started_only_where_it_is_in_before_the_node_leaves(in_s: float, choice: str) -> None:
    found = only(notice(in_s), RULE)
    assert found.choice == choice
    if choice == "plan_leave":
        assert f"not relieved, as that takes {RELIEVE_S:.0f} s and {in_s:.0f} s are left" in found.sentence


def test_without_room_it_leaves_by_a_view_at_the_last_moment_that_is_safe_and_says_why_not_the_cheaper_way() -> None:
    lead_s = 1.5 * LEAVE_S + 5.0
    early, due = notice(lead_s + 0.1, spares=0), notice(lead_s - 0.1, spares=0)
    assert way(early) == "plan_leave" and not only(early, RULE).actions
    assert next_pass_s(early, CONFIG, False) <= NOW_S + 0.1 + 1e-6
    decision = only(due, RULE)
    assert decision.choice == "leave" and action(decision, OrderOut).at_once
    assert "(not relieved, as no device is free for another replica on a node that stays)" in decision.sentence


def test_it_leaves_the_view_by_no_fault_and_nobody_is_blamed() -> None:
    out = with_(notice(5.0, spares=0), 1, ordered_out="its node leaves: node-1, x", ordered_s=NOW_S)
    found = [d for d in decisions(out) if actions(d, AnnounceView)]
    assert [(d.rule, d.choice) for d in found] == [(RULE, "leave")]
    assert "requested" not in found[0].sentence
    assert [m.replica for m in action(found[0], AnnounceView).view.members] == [0, 2]


def test_where_all_must_train_and_no_room_comes_the_job_saves_in_its_grace_and_yields() -> None:
    all_three = {"spares": 0, "job": job(spec=LONG), "checkpoints": (checkpoint(40),)}
    early, due = notice(SAVE_S + 5.1, **all_three), notice(SAVE_S + 4.9, **all_three)
    assert way(early) == "plan_yield"
    decision = only(due, RULE)
    assert action(decision, EndAttempt).grace_s == pytest.approx(SAVE_S + 4.9)
    assert action(decision, SetJobState).to is JobState.PREEMPTED
    assert decision.reason_code == "preempted", "so that neither it nor the next attempt is charged"
    assert "The job's ranks save 10 steps and leave" in decision.sentence
    assert "not left out by a view, as without it 2 replicas would be left" in decision.sentence


def test_a_job_that_is_to_yield_has_yielded_when_its_node_leaves_first_and_stays_parked_where_a_person_asked() -> None:
    """Else it is placed again as soon as there is room, and that attempt has to end for the request."""
    all_three = {"spares": 0, "job": job(spec=LONG), "checkpoints": (checkpoint(40),)}
    for urgent in ("", "urgent"):
        taken = {"state": RequestState.TAKEN, "attempt": 1, "taken_s": NOW_S - 1.0, "urgent": urgent}
        request = asked(RequestKind.PREEMPT, **taken)
        decision = only(change(notice(SAVE_S + 4.9, **all_three), requests=(request,)), RULE)
        assert action(decision, SetJobState).to is JobState.PREEMPTED
        answered = action(decision, AnswerRequest)
        assert (answered.request, answered.to) == (request.id, RequestState.DONE)
        assert [act.by for act in actions(decision, ParkJob)] == ([] if urgent else [request.by])
        assert ("holdfast job resume" in decision.sentence) is (not urgent)


def test_with_too_little_time_for_a_save_it_saves_what_it_can_and_says_so() -> None:
    decision = only(notice(SAVE_S - 2.0, spares=0, job=job(spec=LONG), checkpoints=(checkpoint(40),)), RULE)
    assert decision.choice == "yield"
    assert "a save takes up to 5 s: what is not saved by then is lost" in decision.sentence


def test_what_ranks_that_wait_for_a_view_would_save_is_not_promised() -> None:
    """Their step has no end at which they could."""
    between = {"install": None, "job": job(spec=LONG), "checkpoints": (checkpoint(40),)}
    decision = only(notice(SAVE_S, spares=0, **between), RULE)
    assert decision.choice == "yield"
    assert "ranks leave, and it waits in the queue; they wait for a view, and 10 steps may be lost" in decision.sentence


def test_an_unmeasured_save_gets_the_grace_of_the_spec() -> None:
    settings = msgspec.structs.replace(LONG, scheduling=Scheduling(preempt_grace_s=25.0))
    unknown = change(MEASURED, save_p95_s=None)
    assert way(notice(30.1, spares=0, learned=unknown, job=job(spec=settings))) == "plan_yield"
    assert way(notice(29.9, spares=0, learned=unknown, job=job(spec=settings))) == "yield"


def test_a_window_begins_so_early_that_it_is_done_when_it_starts_and_not_earlier() -> None:
    lead_s = 1.5 * RELIEVE_S + 5.0
    assert way(notice(lead_s + 1.0, EndSource.WINDOW)) == "plan_relieve"
    assert next_pass_s(notice(3600.0, EndSource.WINDOW), CONFIG, False) is not None
    assert way(notice(lead_s - 1.0, EndSource.WINDOW)) == "relieve"


def test_a_successor_that_is_late_is_not_waited_for_beyond_the_last_safe_moment() -> None:
    by = "its node leaves: node-1, terminate"
    late = with_(notice(6.0), 1, ordered_out=by, relieved=by)
    assert action(only(late, RULE), OrderOut).at_once
    comes = with_(notice(13.0), 1, ordered_out=by, relieved=by)
    assert not any(actions(d, OrderOut) for d in decisions(comes)), "there is time for the other way still"


def test_two_on_one_node_do_not_both_leave_where_one_must_stay() -> None:
    both = leaves(notice(5.0, spares=0), end(5.0, id="end_2"), "n2")
    found = decisions(both, rule=RULE)
    assert [d.choice for d in found] == ["leave", "plan_yield"] or found[-1].choice == "yield"


def test_a_notice_that_is_withdrawn_takes_the_order_back_and_a_persons_order_stays() -> None:
    by = "its node leaves: node-1, terminate"
    back = leaves(with_(notice(), 1, ordered_out=by, relieved=by), None)
    assert action(only(back, RULE), OrderOut).by == ""
    person = asked(state=RequestState.TAKEN)
    kept = leaves(with_(world(person, learned=MEASURED), 1, ordered_out=by, relieved=by), None)
    assert not decisions(kept, rule=RULE)
    assert person.kind is RequestKind.EVICT


def test_after_the_end_nothing_is_ordered_and_nothing_is_placed_there() -> None:
    assert not decisions(notice(-0.1), rule=RULE)
    alone = leaves(pending(), end(-5.0), "n0")
    placed = action(only(alone, "lifecycle"), PlaceAttempt)
    assert "n0" not in {place.node_id for replica in placed.placements for place in replica}


@pytest.mark.parametrize(("in_s", "taken"), [(599.0, False), (601.0, True)])
def test_a_job_that_is_over_before_the_node_leaves_may_start_there(in_s: float, taken: bool) -> None:
    limited = msgspec.structs.replace(spec(), scheduling=Scheduling(time_limit_s=600.0))
    waits = pending(job=job(spec=limited, state=JobState.PENDING, epoch=0, committed_step=0))
    waits = change(waits, nodes=waits.nodes[:3])
    found = only(leaves(waits, end(in_s, EndSource.WINDOW), "n0"), "lifecycle")
    assert bool(actions(found, PlaceAttempt)) is taken


def test_it_takes_work_again_when_the_window_is_over() -> None:
    over = end(-100.0, EndSource.WINDOW, back_s=NOW_S)
    waits = change(pending(), nodes=pending().nodes[:3])
    assert actions(only(leaves(waits, over, "n0"), "lifecycle"), PlaceAttempt)
    still = change(over, back_s=NOW_S + 1.0)
    assert not actions(only(leaves(waits, still, "n0"), "lifecycle"), PlaceAttempt)


def test_a_notice_moves_with_the_servers_clock_and_a_window_does_not() -> None:
    set_back = {"clock_set_s": NOW_S - 0.5, "clock_step_s": 3600.0}
    gone = change(notice(-3570.0), **set_back)
    assert only(gone, RULE).choice == "relieve", "30 s are left by the clock that it was heard with"
    assert not decisions(change(notice(-3570.0, EndSource.WINDOW), **set_back), rule=RULE)


def test_an_older_release_leaves_by_a_view_as_nothing_can_be_started_beside_it() -> None:
    older = change(notice(5.0), attempt=change(TOLD, max_contributors=None))
    assert "an older release" in only(older, RULE).sentence
