"""Replicas leave for an urgent job: what is asked of them, who stays, and when one is taken back."""

import pytest

from controlplane.policy import budget
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.plan import (
    AnnounceView,
    AnswerRequest,
    OrderOut,
    SetJobState,
    SetYielded,
    StartReplica,
)
from controlplane.policy.queue.place import QueuePlace, Turn
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.rules import give_replicas, grow, ordered_eviction, preempt_request, replace, strength
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import AttemptState, JobState, ReplicaState, RequestKind, RequestState

from .builders import CONFIG, NOW_S, action, actions, attempt, change, job, only, replica, running, spec
from .test_requests import asked

FIRST = QueuePlace(place=1, waiting=1, turn=Turn.FIRST)
OUT = "queue: priority 900"


def wanted(state: RequestState = RequestState.OPEN, *gives: tuple[int, int], **fields: object) -> RequestFact:
    """Replica 2 is to leave, unless others are named."""
    taken = {"taken_s": NOW_S - 5.0} if state is RequestState.TAKEN else {}
    lives = gives or ((2, 1),)
    base = {"attempt": 1, "urgent": "urgent", "gives": lives}
    return asked(RequestKind.PREEMPT, 1, state=state, **base | taken | fields)


def leaving(**slot: object) -> JobSnapshot:
    """Replica 2 was ordered out for the urgent job, and has not left yet."""
    return world(
        wanted(RequestState.TAKEN),
        attempt=attempt(yielded=1),
        replicas=(replica(0), replica(1), replica(2, ordered_out=OUT, **slot)),
    )


def world(*requests: RequestFact, least: int = 1, **fields: object) -> JobSnapshot:
    """Three replicas train."""
    return running(**{"requests": requests, "job": job(spec=spec(min_replicas=least))} | fields)


def without(**fields: object) -> JobSnapshot:
    """Replica 2 has left, and nobody asks for more."""
    gone: dict[str, object] = {"state": ReplicaState.EVICTED, "stopped": True, "ordered_out": OUT, "in_view": False}
    gone |= {"contributing": False, "joined_ranks": 0}
    base: dict[str, object] = {"attempt": attempt(yielded=1), "queue": FIRST}
    base |= {"replicas": (replica(0), replica(1), replica(2, **gone))}
    snapshot = world(**base | fields)
    assert snapshot.view is not None and snapshot.install is not None
    view = change(snapshot.view, members=snapshot.view.members[:2])
    return change(snapshot, view=view, install=change(snapshot.install, contributors=(0, 1)))


def test_asked_for_a_replica_it_orders_that_one_out_and_is_to_run_with_fewer() -> None:
    decision = only(world(wanted()), give_replicas.RULE)
    order = action(decision, OrderOut)
    assert (order.replica, order.incarnation, order.at_once) == (2, 1, True)
    assert action(decision, SetYielded) == SetYielded(number=1, replicas=1)
    assert action(decision, AnswerRequest).to is RequestState.TAKEN
    assert "2 replicas train on and lose nothing" in decision.sentence
    assert not preempt_request.rule(world(wanted()), CONFIG), "its attempt does not end"


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (world(wanted(), least=3), "would be left"),
        (world(wanted(RequestState.OPEN, (0, 1), (1, 1), (2, 1))), "would be left"),
        (world(wanted(RequestState.OPEN, (2, 7))), "None of these replicas"),
        (world(wanted(), job=job(state=JobState.RECOVERING)), "it gives nothing now"),
        (world(wanted(), attempt=attempt(state=AttemptState.STOPPING)), "does not run"),
        (world(wanted(attempt=3)), "started again since"),
    ],
    ids=["least", "all", "another life", "recovering", "stopping", "attempt"],
)
def test_what_it_cannot_give_is_refused_with_the_reason(snapshot: JobSnapshot, why: str) -> None:
    (decision,) = give_replicas.rule(snapshot, CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.REFUSED
    assert why in decision.sentence
    assert not actions(decision, OrderOut)


def test_while_a_view_is_on_its_way_nobody_is_ordered_out() -> None:
    assert not give_replicas.rule(world(wanted(), install=None), CONFIG)


def test_the_view_without_it_is_no_fault_and_no_recovery() -> None:
    (decision,) = ordered_eviction.rule(leaving(), CONFIG)
    assert decision.rule == give_replicas.RULE, "so it opens no incident"
    assert [member.replica for member in action(decision, AnnounceView).view.members] == [0, 1]
    assert not actions(decision, SetJobState)
    by_person = change(leaving(), requests=())
    (ordered,) = ordered_eviction.rule(by_person, CONFIG)
    assert ordered.rule == ordered_eviction.RULE and actions(ordered, SetJobState)


def test_withdrawn_in_time_it_stays_and_afterwards_it_has_left() -> None:
    taken = wanted(RequestState.TAKEN, withdrawn_by="urgent, which is cancelled,")
    (decision,) = give_replicas.rule(change(leaving(), requests=(taken,)), CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.WITHDRAWN
    assert (action(decision, OrderOut).by, action(decision, SetYielded).replicas) == ("", 0)
    (done,) = give_replicas.rule(without(requests=(taken,)), CONFIG)
    assert action(done, AnswerRequest).to is RequestState.DONE


def test_where_another_fails_meanwhile_so_that_too_few_would_be_left_it_stays() -> None:
    snapshot = leaving()
    few = change(snapshot, job=job(spec=spec(min_replicas=2)), replicas=(replica(0), snapshot.replicas[2]))
    (decision,) = give_replicas.rule(few, CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.REFUSED
    assert (action(decision, OrderOut).by, action(decision, SetYielded).replicas) == ("", 0)


def test_one_whose_processes_no_agent_could_end_stays() -> None:
    refused = change(leaving(), replicas=(replica(0), replica(1), replica(2)))
    (decision,) = give_replicas.rule(refused, CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.REFUSED
    assert action(decision, SetYielded).replicas == 0


def test_a_request_of_an_attempt_that_has_ended_is_done() -> None:
    (decision,) = give_replicas.rule(change(leaving(), attempt=attempt(number=2)), CONFIG)
    assert action(decision, AnswerRequest).to is RequestState.DONE


def test_its_slot_stays_empty_and_the_job_is_not_missing_it() -> None:
    yields = without(queue=None)
    assert not replace.rule(yields, CONFIG)
    assert not grow.rule(yields, CONFIG)
    recovering = without(job=job(state=JobState.RECOVERING))
    (decision,) = strength.rule(recovering, CONFIG)
    assert action(decision, SetJobState).to is JobState.RUNNING
    assert "2 of 3 replicas train" in decision.sentence and decision.choice == "shrunk"
    assert "1 starts when the queue has room for it" in decision.sentence, "nobody may have its devices now"
    due_s = next_pass_s(yields, CONFIG, False)
    assert due_s is not None and due_s <= NOW_S + CONFIG.capacity_retry_s


def test_it_is_taken_back_when_the_queue_leaves_room_and_nothing_is_charged() -> None:
    decision = only(without(), grow.RULE)
    start = action(decision, StartReplica)
    assert (start.replica, start.incarnation) == (2, 2)
    assert action(decision, SetYielded) == SetYielded(number=1, replicas=0, grows=True)
    assert [entry.charged for entry in budget.entries(decision, without())] == [False]


def test_a_replica_that_has_never_run_starts_as_a_slot_of_its_own() -> None:
    two = change(without(), replicas=(replica(0), replica(1)))
    start = action(only(two, grow.RULE), StartReplica)
    assert (start.replica, start.incarnation) == (2, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": QueuePlace(place=2, waiting=2, turn=Turn.BEHIND, may_start=False, behind="head")},
        {"queue": QueuePlace(place=1, waiting=1, turn=Turn.NO_ROOM)},
        {"job": job(state=JobState.RECOVERING)},
        {"job": job(cancel_requested=True)},
        {"attempt": attempt()},
        {"requests": (asked(RequestKind.PREEMPT, 3),)},
        {"requests": (asked(RequestKind.EVICT, 3, replica=1, incarnation=1),)},
        {"install": None},
        {"spares": 0},
    ],
    ids=["head", "no room", "recovering", "cancelled", "has all", "preempted", "evicted", "view", "no device"],
)
def test_it_does_not_grow(fields: dict[str, object]) -> None:
    spares = fields.pop("spares", 1)
    snapshot = without(**{name: value for name, value in fields.items() if name != "install"})
    if "install" in fields:
        snapshot = change(snapshot, install=None)
    if not spares:
        snapshot = change(snapshot, nodes=snapshot.nodes[:2])
    assert not [d for d in grow.rule(snapshot, CONFIG) if d.rule == grow.RULE]
