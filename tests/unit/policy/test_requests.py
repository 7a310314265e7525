"""What people ask for is answered by rules: a snapshot in, an answer and its moves out."""

import pytest

from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.plan import (
    AnnounceView,
    AnswerRequest,
    AskEviction,
    InjectFault,
    OrderOut,
    RequestCheckpoint,
    SettleSignals,
    StopReplica,
)
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.rules import evict_request
from controlplane.policy.rules.strength import stale_signals
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.spec import Resiliency
from controlplane.protocol.states import CheckpointState, JobState, NodeState, ReplicaState, RequestKind, RequestState

from .builders import (
    CONFIG,
    NOW_S,
    action,
    actions,
    change,
    checkpoint,
    decisions,
    job,
    only,
    running,
    signal,
    spec,
    with_replica,
)
from .test_relief import LONG, TOLD
from .test_relief_orders import SHRINKS

WHO, WHY = "user:ada", "rack 7"


def asked(kind: RequestKind = RequestKind.EVICT, number: int = 1, **fields: object) -> RequestFact:
    """About replica 1, ten seconds ago."""
    life = {"attempt": 1, "replica": 1, "incarnation": 1} if kind in (RequestKind.EVICT, RequestKind.FAULT) else {}
    told: dict[str, object] = {
        "id": f"ask_{number}", "kind": kind, "state": RequestState.OPEN, "who": WHO, "reason": WHY,
        "asked_s": NOW_S - 10.0, "valid_until_s": NOW_S + 600.0,
    }  # fmt: skip
    return RequestFact(**told | life | fields)  # type: ignore[arg-type]


def world(*requests: RequestFact, spares: int = 1, **fields: object) -> JobSnapshot:
    """Three replicas train; these things are asked of them."""
    return running(spares=spares, attempt=TOLD, requests=requests, **{"job": job(spec=LONG)} | fields)


def answer_of(snapshot: JobSnapshot, rule: str) -> RequestState:
    return action(only(snapshot, rule), AnswerRequest).to


def taken(request: RequestFact, **fields: object) -> RequestFact:
    return change(request, state=RequestState.TAKEN, **fields)


def test_an_eviction_is_taken_as_an_order_and_nothing_ends_by_it() -> None:
    decision = only(world(asked()), "evict_request")
    order = action(decision, OrderOut)
    assert (order.replica, order.incarnation, order.by, order.at_once) == (1, 1, "user:ada: rack 7", False)
    assert order.asked_s == NOW_S - 10.0
    assert (decision.choice, decision.reason_code, decision.routine) == ("taken", "asked", True)
    assert "user:ada: rack 7" in decision.sentence
    assert not actions(decision, StopReplica) and not actions(decision, AnnounceView)


def test_asked_for_again_before_anybody_looked_the_newest_says_that_it_waits_for_no_other() -> None:
    first, second = decisions(world(asked(), asked(number=2)), rule="evict_request")
    assert not actions(first, OrderOut)
    assert action(second, OrderOut).at_once


@pytest.mark.parametrize(
    "change_of",
    [{"state": ReplicaState.CATCHING_UP}, {"ordered_out": "user:bob: slow"}, {"state": ReplicaState.FORMING}],
)
def test_one_that_does_not_train_or_was_ordered_out_before_waits_for_no_other(change_of: dict[str, object]) -> None:
    assert action(only(with_replica(world(asked()), 1, **change_of), "evict_request"), OrderOut).at_once


@pytest.mark.parametrize(
    ("snapshot", "to"),
    [
        (with_replica(world(asked()), 1, incarnation=2), RequestState.REFUSED),
        (with_replica(world(asked()), 1, state=ReplicaState.EVICTED), RequestState.REFUSED),
        (world(asked(valid_until_s=NOW_S)), RequestState.LAPSED),
        (world(asked(withdrawn_by="user:bob")), RequestState.WITHDRAWN),
        (world(asked(), job=job(spec=LONG, finished=True)), RequestState.REFUSED),
        (with_replica(world(taken(asked())), 1, incarnation=2), RequestState.DONE),
        (with_replica(world(taken(asked())), 1, state=ReplicaState.EVICTED, stopped=True), RequestState.DONE),
        (world(taken(asked())), RequestState.REFUSED),
    ],
    ids=["another life", "evicted", "too late", "taken back", "over", "gone", "ended", "nobody could end it"],
)
def test_an_eviction_ends_as_the_world_has_it(snapshot: JobSnapshot, to: RequestState) -> None:
    (decision,) = evict_request.rule(snapshot, CONFIG)
    assert action(decision, AnswerRequest).to is to
    assert not actions(decision, OrderOut)


def test_nothing_is_told_while_its_processes_are_not_proved_gone() -> None:
    out = with_replica(world(taken(asked())), 1, state=ReplicaState.EVICTED, stopped=False)
    assert decisions(out, rule="evict_request") == ()


def test_taken_back_it_stays_as_long_as_the_others_count_on_it() -> None:
    back = taken(asked(), withdrawn_by="user:bob")
    trains = with_replica(world(back), 1, ordered_out="user:ada: rack 7", relieved="user:ada: rack 7")
    decision = only(trains, "evict_request")
    assert (action(decision, OrderOut).by, action(decision, AnswerRequest).to) == ("", RequestState.WITHDRAWN)
    out = with_replica(trains, 1, in_view=False, state=ReplicaState.SUSPECT, relieved="")
    out = change(out, view=change(out.view, members=out.view.members[:1] + out.view.members[2:]))
    assert decisions(out, rule="evict_request") == ()


def test_taken_back_by_one_it_leaves_all_the_same_for_another_who_asks() -> None:
    mine, theirs = taken(asked(), withdrawn_by="user:ada"), taken(asked(number=2, who="user:bob"))
    leaves = with_replica(world(mine, theirs), 1, ordered_out="user:bob: rack 7", relieved="user:bob: rack 7")
    decision = only(leaves, "evict_request")
    assert action(decision, AnswerRequest) == AnswerRequest(request="ask_1", to=RequestState.WITHDRAWN)
    assert not actions(decision, OrderOut)


def test_a_checkpoint_is_ordered_when_a_view_is_installed_and_done_when_a_newer_one_is_committed() -> None:
    save = asked(RequestKind.CHECKPOINT)
    decision = only(world(save), "checkpoint_request")
    assert (action(decision, RequestCheckpoint).kind, action(decision, AnswerRequest).to) == ("manual", "taken")
    assert decisions(world(save, install=None), rule="checkpoint_request") == ()
    older = (checkpoint(40, committed_s=NOW_S - 11.0),)
    assert decisions(world(taken(save), checkpoints=older), rule="checkpoint_request") == ()
    for worthless in ({"state": CheckpointState.CORRUPT}, {"holders": (("n1",), ("n2",))}):
        broken = (checkpoint(50, committed_s=NOW_S - 1.0, **worthless),)
        assert decisions(world(taken(save), checkpoints=broken), rule="checkpoint_request") == ()
    newer = (checkpoint(50, committed_s=NOW_S - 1.0),)
    assert answer_of(world(taken(save), checkpoints=newer), "checkpoint_request") is RequestState.DONE
    failed = world(taken(save, carried="failed: disk full"), checkpoints=older)
    assert "disk full" in only(failed, "checkpoint_request").sentence
    late = world(taken(save, valid_until_s=NOW_S), checkpoints=older)
    assert answer_of(late, "checkpoint_request") is RequestState.LAPSED


def test_a_fault_is_given_where_the_job_allows_it_and_told_by_its_agent() -> None:
    allows = job(spec=spec(resiliency=Resiliency(allow_faults=True)))
    wish = asked(RequestKind.FAULT, rank=0, fault="hang", value=2.0)
    given = action(only(world(wish, job=allows), "fault_request"), InjectFault)
    assert (given.replica, given.rank, given.fault, given.value, given.request) == (1, 0, "hang", 2.0, "ask_1")
    refuses = job(spec=spec(resiliency=Resiliency(allow_faults=False)))
    assert "does not allow faults" in only(world(wish, job=refuses), "fault_request").sentence
    gone = with_replica(world(wish, job=allows), 1, incarnation=2)
    assert answer_of(gone, "fault_request") is RequestState.REFUSED
    assert decisions(world(taken(wish), job=allows), rule="fault_request") == ()
    done = world(taken(wish, carried="succeeded"), job=allows)
    assert answer_of(done, "fault_request") is RequestState.DONE
    silent = world(taken(wish, valid_until_s=NOW_S), job=allows)
    assert answer_of(silent, "fault_request") is RequestState.LAPSED
    lost = world(taken(wish, carried="expired"), job=allows)
    assert answer_of(lost, "fault_request") is RequestState.REFUSED


def drained(snapshot: JobSnapshot, **fields: object) -> JobSnapshot:
    """The node of replica 1 is to be emptied."""
    home = snapshot.replica_by_index[1].node_ids[0]
    nodes = tuple(change(each, state=NodeState.DRAINING) if each.id == home else each for each in snapshot.nodes)
    return change(
        snapshot, nodes=nodes, requests=(asked(RequestKind.DRAIN, node_id=home, **fields), *snapshot.requests)
    )


def test_a_drain_asks_for_the_next_replica_of_a_job_that_runs_undisturbed() -> None:
    decision = only(drained(world()), "drain_request")
    ask = action(decision, AskEviction)
    assert (ask.request, ask.replica, ask.incarnation) == ("ask_1", 1, 1)
    assert decision.actions == (ask,)


@pytest.mark.parametrize(
    "snapshot",
    [
        drained(world(asked(number=2, replica=0))),
        drained(with_replica(world(), 0, ordered_out="user:bob: slow")),
        drained(with_replica(world(), 0, relieved="it is slow")),
        drained(with_replica(world(), 0, incarnation=2, in_view=False, contributing=False, state=ReplicaState.FORMING)),
        drained(world(install=None)),
        drained(world(job=job(spec=LONG, state=JobState.RECOVERING))),
        drained(world(signals=(signal("rank_exit", replica=0, incarnation=1, rank=0, value=1.0),))),
        drained(world(job=job(spec=LONG, cancel_requested=True))),
        drained(world(), withdrawn_by="user:bob"),
    ],
    ids=["asked for another", "ordered", "relieved", "comes", "view", "recovers", "failed", "cancelled", "taken back"],
)
def test_a_drain_asks_for_nobody_while_another_is_on_its_way_or_anything_is_wrong(snapshot: JobSnapshot) -> None:
    assert not [d for d in decisions(snapshot, rule="drain_request") if actions(d, AskEviction)]


def test_a_drain_keeps_what_the_job_cannot_spare_and_says_why() -> None:
    whole = drained(world(spares=0, job=job(spec=spec(min_replicas=3))))
    decision = only(whole, "drain_request")
    assert (decision.choice, decision.actions) == ("wait", ())
    assert "no device is free for another replica" in decision.sentence
    assert actions(only(drained(world(spares=0, job=job(spec=SHRINKS))), "drain_request"), AskEviction)


def test_a_drain_asks_once_for_each_life_and_goes_on_with_the_others() -> None:
    both = drained(world(), kept=((1, 1, 1),))
    only_one = only(both, "drain_request")
    assert (only_one.choice, only_one.actions) == ("wait", ())
    assert "`holdfast job evict-replica" in only_one.sentence
    home = both.replica_by_index[1].node_ids[0]
    two = with_replica(both, 2, placements=tuple(change(p, node_id=home) for p in both.replica_by_index[2].placements))
    assert action(only(two, "drain_request"), AskEviction).replica == 2


def test_the_last_moment_of_a_request_is_a_deadline() -> None:
    late = world(asked(RequestKind.CHECKPOINT, valid_until_s=NOW_S + 3.0), install=None)
    due_s = next_pass_s(late, CONFIG, False)
    assert due_s is not None and due_s <= NOW_S + 3.0


def test_what_is_found_of_an_evicted_slot_that_stays_empty_is_history() -> None:
    late = signal("rank_overdue", replica=1, incarnation=1, rank=0)
    gone = with_replica(world(signals=(late,)), 1, state=ReplicaState.EVICTED, in_view=False)
    assert stale_signals(gone) == (late.id,)
    assert stale_signals(world(signals=(late,))) == ()


def test_who_forms_in_the_first_view_is_not_left_out_of_it() -> None:
    forming = with_replica(world(install=None), 1, state=ReplicaState.FORMING, ordered_out="user:ada: rack 7")
    assert decisions(forming, rule="ordered_eviction") == ()


def test_requests_settle_no_findings() -> None:
    for snapshot in (world(asked()), drained(world())):
        found = [d for d in decisions(snapshot) if d.rule.endswith("_request")]
        assert found and not [a for d in found for a in d.actions if isinstance(a, SettleSignals)]
