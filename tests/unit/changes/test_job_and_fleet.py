"""The job itself, what is asked of it, what is known about it, and the fleet below it."""

import typing

import pytest

from controlplane.changes import kinds
from controlplane.changes.acts import FOR_DEVICES, HANDLERS
from controlplane.changes.kinds import DeviceKey, NodeKey, RequestKey
from controlplane.changes.rows import Device
from controlplane.policy import plan
from controlplane.policy.plan import (
    AnswerRequest,
    AskEviction,
    BarDevice,
    DemoteCheckpoint,
    KeepSpares,
    RequestCheckpoint,
    ResetDevice,
    ResolveIncident,
    SetJobState,
    SetNodeState,
    SettleSignals,
    SuspectCheckpoint,
)
from controlplane.policy.transitions import TABLES
from controlplane.protocol.commands import RequestSave, WarmHost
from controlplane.protocol.states import (
    IncidentOutcome,
    JobState,
    NodeState,
    RequestKind,
    RequestState,
)
from controlplane.simulator.rows import JOB_ID

from .builders import SENTENCE, World, finding, training


def ask(world: World, kind: RequestKind, **subject: object) -> str:
    return world.asked.ask(kind, "user:ada", "rack 7", **subject)


def test_every_action_of_a_plan_is_carried_out() -> None:
    assert set(HANDLERS) == set(typing.get_args(plan.Action))


def test_every_row_that_moves_has_its_table() -> None:
    assert set(kinds.MACHINES) == set(typing.get_args(kinds.Moved))
    assert set(kinds.MACHINES.values()) <= set(TABLES)


def test_a_state_that_the_job_has_is_no_transition() -> None:
    assert training().told(SetJobState(to=JobState.RUNNING)) == []


def test_a_job_that_recovers_keeps_all_that_is_its_own() -> None:
    world = training()
    changes = world.told(SetJobState(to=JobState.RECOVERING))
    assert [type(change).__name__ for change in changes] == ["Transition"]


@pytest.mark.parametrize("to", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_with_a_job_its_spares_findings_and_requests_end_and_hardware_stays_found(to: JobState) -> None:
    world = training()
    world.rows.nodes["node-3"].reserved_for = JOB_ID
    finding(world, "rank_exit", replica=1)
    kept = finding(world, "xid", node_id="node-1", device_index=0)
    save = ask(world, RequestKind.CHECKPOINT)
    world.do(SetJobState(to=to))
    assert world.rows.state is to
    assert list(world.rows.signals) == [kept]
    assert not world.rows.nodes["node-3"].reserved_for
    assert save not in world.rows.requests
    assert world.rows.answers == ["checkpoint:refused"]
    assert world.checkers.violations == []


def test_an_eviction_that_was_under_way_is_done_with_the_job() -> None:
    world = training()
    request = ask(world, RequestKind.EVICT, attempt=1, replica=1, incarnation=1)
    world.do(AnswerRequest(request=request, to=RequestState.TAKEN))
    world.do(SetJobState(to=JobState.SUCCEEDED))
    assert world.rows.answers == ["evict:taken", "evict:done"]


def test_a_drain_outlives_the_job() -> None:
    world = training()
    drain = ask(world, RequestKind.DRAIN, node_id="node-1")
    world.do(SetJobState(to=JobState.SUCCEEDED))
    assert list(world.rows.requests) == [drain]


@pytest.mark.parametrize("to", [RequestState.TAKEN, RequestState.DONE, RequestState.REFUSED, RequestState.LAPSED])
def test_an_answer_is_the_decisions_sentence_and_an_end_has_its_moment(to: RequestState) -> None:
    world = training()
    request = ask(world, RequestKind.CHECKPOINT)
    (changes,) = world.told(AnswerRequest(request=request, to=to))
    moment = {"taken_s" if to is RequestState.TAKEN else "ended_s": 1000.0}
    assert changes == kinds.Transition(RequestKey(request), to, SENTENCE, {"answer": SENTENCE} | moment)


def test_an_answer_to_what_is_gone_changes_nothing() -> None:
    assert training().told(AnswerRequest(request="ask_9", to=RequestState.DONE)) == []


def test_a_request_is_not_answered_twice() -> None:
    world = training()
    request = ask(world, RequestKind.CHECKPOINT)
    world.do(AnswerRequest(request=request, to=RequestState.TAKEN))
    world.do(AnswerRequest(request=request, to=RequestState.TAKEN))
    assert ["I-state" in text for text in world.checkers.violations] == [True]


def test_a_drain_asks_for_one_eviction_in_its_askers_name() -> None:
    world = training()
    drain = ask(world, RequestKind.DRAIN, node_id="node-1")
    world.do(AskEviction(request=drain, replica=1, incarnation=1))
    part = next(row for row in world.rows.requests.values() if row.drain == drain)
    assert (part.kind, part.who, part.reason) == (RequestKind.EVICT, "user:ada", "rack 7")
    assert (part.attempt, part.replica, part.incarnation) == (1, 1, 1)


@pytest.mark.parametrize("to", [RequestState.WITHDRAWN, RequestState.LAPSED, RequestState.DONE])
def test_with_a_drain_its_parts_are_taken_back_once(to: RequestState) -> None:
    world = training()
    drain = ask(world, RequestKind.DRAIN, node_id="node-1")
    parts = [ask(world, RequestKind.EVICT, drain=drain, replica=index) for index in (0, 1)]
    world.asked.withdraw(parts[0], "user:bob")
    changes = world.told(AnswerRequest(request=drain, to=to))
    assert changes[1:] == [kinds.Withdraw(parts[1], f"the drain {drain}, which is {to},")]
    world.do(AnswerRequest(request=drain, to=to))
    assert world.rows.requests[parts[0]].withdrawn_by == "user:bob"
    assert world.rows.requests[parts[1]].withdrawn_by == f"the drain {drain}, which is {to},"


def test_a_drain_that_is_taken_keeps_its_parts() -> None:
    world = training()
    drain = ask(world, RequestKind.DRAIN, node_id="node-1")
    ask(world, RequestKind.EVICT, drain=drain, replica=1)
    assert len(world.told(AnswerRequest(request=drain, to=RequestState.TAKEN))) == 1


def test_what_was_kept_of_a_drain_is_told_with_it() -> None:
    world = training()
    drain = ask(world, RequestKind.DRAIN, node_id="node-1")
    part = ask(world, RequestKind.EVICT, drain=drain, attempt=1, replica=1, incarnation=1)
    world.do(AnswerRequest(request=part, to=RequestState.REFUSED))
    assert world.rows.requests[drain].kept == ((1, 1, 1),)


@pytest.mark.parametrize("kind", ["emergency", "manual"])
def test_a_save_in_an_emergency_waits_as_long_as_that_lasts(kind: str) -> None:
    world = training()
    world.do(RequestCheckpoint(kind=kind))
    envelopes = [row.envelope for row in world.rows.commands.values()]
    deadline_s = world.rows.spec.checkpoint.emergency.deadline_s
    assert {envelope.ttl_s for envelope in envelopes} == {deadline_s if kind == "emergency" else 30.0}
    assert [(node, body.save_kind) for node, body in world.commands(RequestSave)] == [
        (f"node-{index}", kind) for index in range(3)
    ]


def test_a_demoted_checkpoint_is_resumed_from_no_more() -> None:
    world = training()
    (changes,) = world.told(DemoteCheckpoint(checkpoint_id="cp_1", reason="its numbers are wrong"))
    assert changes == kinds.Demote("cp_1", "its numbers are wrong")


def test_a_suspect_checkpoint_is_remembered_with_the_step_of_what_went_bad() -> None:
    world = training()
    (changes,) = world.told(SuspectCheckpoint(checkpoint_id="cp_1", step=44))
    assert changes == kinds.Suspect("cp_1", 44)


def test_spares_are_let_go_before_others_are_reserved_and_those_are_warmed() -> None:
    world = training()
    world.rows.nodes["node-3"].reserved_for = JOB_ID
    world.do(KeepSpares(release=("node-3",), reserve=("node-4",), warm=("node-4",)))
    assert [name for name, node in world.rows.nodes.items() if node.reserved_for] == ["node-4"]
    assert [(node, body.attempt) for node, body in world.commands(WarmHost)] == [("node-4", 1)]


def test_findings_that_are_dealt_with_are_open_no_more() -> None:
    world = training()
    first, second = finding(world, "rank_exit"), finding(world, "rank_overdue")
    world.do(SettleSignals(signal_ids=(first,)))
    assert list(world.rows.signals) == [second]


@pytest.mark.parametrize("incident", ["", "inc_1"])
def test_an_incident_is_closed_with_how_it_ended(incident: str) -> None:
    act = ResolveIncident(note="It is over.", outcome=IncidentOutcome.MITIGATED, incident_id=incident)
    (changes,) = training().told(act)
    assert changes == kinds.Resolve("It is over.", IncidentOutcome.MITIGATED, incident)


@pytest.mark.parametrize(
    ("rule", "code", "for_devices"),
    [
        ("device_fault", "row_remap", True),
        ("replica_failure", "xid_fatal", True),
        ("replica_failure", "rank_exit", False),
    ],
)
def test_a_node_that_leaves_for_its_devices_says_that_it_returns_with_them(
    rule: str, code: str, for_devices: bool
) -> None:
    act = SetNodeState(node_id="node-1", to=NodeState.CORDONED)
    (changes,) = training().told(act, rule=rule, reason_code=code)
    why = f"{SENTENCE} {FOR_DEVICES}" if for_devices else SENTENCE
    assert changes == kinds.Transition(NodeKey("node-1"), NodeState.CORDONED, why)


def test_a_node_under_a_job_that_yields_says_what_failed_and_not_who_needs_its_devices() -> None:
    act = SetNodeState(node_id="node-1", to=NodeState.CORDONED)
    fields = {"rule": "preempt_request", "reason_code": plan.PREEMPTED, "title": "node-1 is not heard"}
    (changes,) = training().told(act, sentence="urgent needs its devices (priority 900). It ends.", **fields)
    assert changes == kinds.Transition(NodeKey("node-1"), NodeState.CORDONED, "node-1 is not heard.")


def test_a_node_moves_once_in_its_table() -> None:
    world = training()
    for _ in range(2):
        world.do(SetNodeState(node_id="node-1", to=NodeState.CORDONED))
    assert world.rows.nodes["node-1"].state is NodeState.CORDONED
    assert world.checkers.violations == []


@pytest.mark.parametrize("busy", [True, False])
def test_a_node_that_a_drain_calls_empty_is_empty(busy: bool) -> None:
    world = training()
    world.rows.nodes["node-1"].state = NodeState.DRAINING
    if not busy:
        world.rows.replicas[1].exited = {0, 1}
    world.do(SetNodeState(node_id="node-1", to=NodeState.CORDONED), rule="drain_request")
    assert world.rows.nodes["node-1"].emptied
    assert ["I-drain" in text for text in world.checkers.violations] == ([True] if busy else [])


def test_a_device_is_barred_where_it_is_a_row() -> None:
    world = training()
    act = BarDevice(node_id="node-1", device_index=1, reset=True)
    assert world.told(act) == [kinds.Bar(DeviceKey("node-1", 1), SENTENCE, True)]


def test_a_device_that_is_gone_is_neither_barred_nor_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training()
    monkeypatch.setattr(type(world.store), "device", lambda self, node_id, index: None)
    assert world.told(BarDevice(node_id="node-1", device_index=1)) == []
    assert world.told(ResetDevice(node_id="node-1", device_index=1)) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_one_wish_is_one_order_to_reset(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    world = training()
    monkeypatch.setattr(type(world.store), "device", lambda self, node_id, index: Device("GPU-1", wanted))
    changes = world.told(ResetDevice(node_id="node-1", device_index=1))
    if not wanted:
        assert changes == []
        return
    assert changes[0] == kinds.Observe(DeviceKey("node-1", 1), {"reset_wanted_s": None})
    assert isinstance(changes[1], kinds.Enqueue)
    ((node, body),) = changes[1].commands
    assert (node, body.uuid, changes[1].attempt) == ("node-1", "GPU-1", None)


def test_the_same_decision_is_carried_out_once() -> None:
    world = training()
    decision = world.decision(SetJobState(to=JobState.RECOVERING))
    assert world.store.decision(decision)
    assert not world.store.decision(decision)
    assert world.rows.history.count("replica_failure:evict:rank_exit") == 4
