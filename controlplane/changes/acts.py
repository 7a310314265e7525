"""Actions of a plan to changes: what carrying a decision out means, in every store.

`carry_out` is called for each action of a decision in turn, after the changes of the one before were carried
out. What is announced (a view, an install) is a row before its order is, and the epoch moves before both.
"""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.changes import replicas
from controlplane.changes.disruption_kinds import CloseBreaker, CountActs, OpenBreaker
from controlplane.changes.kinds import (
    AttemptKey,
    Bar,
    Change,
    CreateEviction,
    CreatePreemption,
    Demote,
    DeviceKey,
    Enqueue,
    JobKey,
    NodeKey,
    Observe,
    Release,
    Reserve,
    Resolve,
    Settle,
    Suspect,
    Transition,
    Withdraw,
)
from controlplane.changes.turn import ASK_TTL_S, Turn, answer, key_of, to_all, warm
from controlplane.policy import plan
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.findings import KINDS as HARDWARE
from controlplane.protocol.commands import RequestSave, ResetDevice
from controlplane.protocol.states import QUEUED_JOB, JobState, RequestKind, RequestState

RESET_TTL_S = 60.0
FOR_DEVICES = "The node returns with its devices."
"""In the reason for which a node left service: who may bring it back."""
XID_ENDED_IT = "xid_fatal"


def _request_checkpoint(turn: Turn, act: plan.RequestCheckpoint) -> Iterator[Change]:
    job, number = turn.rows.job(), turn.rows.attempt().number
    body = RequestSave(job_id=job.id, attempt=number, save_kind=act.kind, reason=turn.decision.sentence)
    ttl_s = job.spec.checkpoint.emergency.deadline_s if act.kind == "emergency" else ASK_TTL_S
    yield to_all(body, turn.rows.homes(number), number, ttl_s)


def _demote_checkpoint(turn: Turn, act: plan.DemoteCheckpoint) -> Iterator[Change]:
    yield Demote(act.checkpoint_id, act.reason)


def _suspect_checkpoint(turn: Turn, act: plan.SuspectCheckpoint) -> Iterator[Change]:
    yield Suspect(act.checkpoint_id, act.step)


def _keep_spares(turn: Turn, act: plan.KeepSpares) -> Iterator[Change]:
    yield Release(act.release)
    yield Reserve(act.reserve)
    yield warm(turn, turn.rows.attempt().number, act.warm)


def _ask_eviction(turn: Turn, act: plan.AskEviction) -> Iterator[Change]:
    yield CreateEviction(key_of(turn.rows.replica(act.replica, act.incarnation)), act.request)


def _ask_preemption(turn: Turn, act: plan.AskPreemption) -> Iterator[Change]:
    yield CreatePreemption(act.victim, act.attempt, act.lost_gpu_s, act.why, act.gives)


def _set_yielded(turn: Turn, act: plan.SetYielded) -> Iterator[Change]:
    grown = {"grown_s": turn.rows.now_s} if act.grows else {}
    yield Observe(AttemptKey(act.number), {"yielded": act.replicas, **grown})


def _park_job(turn: Turn, act: plan.ParkJob) -> Iterator[Change]:
    yield Observe(JobKey(), {"parked_by": act.by}, publish="job")


def _answer_request(turn: Turn, act: plan.AnswerRequest) -> Iterator[Change]:
    yield from answer(turn.rows, turn.rows.request(act.request), act.to, turn.decision.sentence)


def _set_job_state(turn: Turn, act: plan.SetJobState) -> Iterator[Change]:
    """With its end everything that was asked of it ends. What was found about hardware is true without the job:
    the fleet's own pass deals with it."""
    rows = turn.rows
    if rows.job().state == act.to:
        return
    yield Transition(JobKey(), act.to, turn.decision.sentence)
    if act.to not in QUEUED_JOB:
        # Whoever was to make room for it may stay.
        yield from (Withdraw(request, f"{name}, which is {act.to},") for request, name in rows.makes_room())
    if act.to is JobState.PREEMPTED:
        yield Release()
    if act.to not in TERMINAL_JOB:
        return
    yield Release()
    mine = tuple(signal for signal, kind in rows.findings() if kind not in HARDWARE)
    yield Settle(mine, f"the job is {act.to}")
    for request in rows.requests():
        left = request.kind in (RequestKind.EVICT, RequestKind.PREEMPT) and request.state == RequestState.TAKEN
        to = RequestState.DONE if left else RequestState.REFUSED
        yield from answer(rows, request, to, f"The job is {act.to}.")


def _settle_signals(turn: Turn, act: plan.SettleSignals) -> Iterator[Change]:
    yield Settle(act.signal_ids, turn.decision.sentence)


def _resolve_incident(turn: Turn, act: plan.ResolveIncident) -> Iterator[Change]:
    yield Resolve(act.note, act.outcome, act.incident_id)


# --- the fleet ---


def _open_breaker(turn: Turn, act: plan.OpenBreaker) -> Iterator[Change]:
    yield OpenBreaker(act.code, act.segment, act.sentence)


def _close_breaker(turn: Turn, act: plan.CloseBreaker) -> Iterator[Change]:
    yield CloseBreaker(act.breaker, turn.decision.sentence)


def _set_node_state(turn: Turn, act: plan.SetNodeState) -> Iterator[Change]:
    decision = turn.decision
    for_devices = decision.rule == "device_fault" or decision.reason_code == XID_ENDED_IT
    # Everybody reads a node's reason. For whom a job yields is that job's own to know.
    said = f"{decision.title}." if decision.reason_code == plan.PREEMPTED else decision.sentence
    why = f"{said} {FOR_DEVICES}" if for_devices else said
    yield Transition(NodeKey(act.node_id), act.to, why)


def _bar_device(turn: Turn, act: plan.BarDevice) -> Iterator[Change]:
    if turn.rows.device(act.node_id, act.device_index) is not None:
        yield Bar(DeviceKey(act.node_id, act.device_index), turn.decision.sentence, act.reset)


def _reset_device(turn: Turn, act: plan.ResetDevice) -> Iterator[Change]:
    """One order for one wanted."""
    device = turn.rows.device(act.node_id, act.device_index)
    if device is None or not device.reset_wanted:
        return
    yield Observe(DeviceKey(act.node_id, act.device_index), {"reset_wanted_s": None})
    body = ResetDevice(device_index=act.device_index, uuid=device.uuid)
    yield Enqueue(((act.node_id, body),), None, RESET_TTL_S)


HANDLERS: dict[type, Callable[[Turn, Any], Iterator[Change]]] = {
    plan.PlaceAttempt: replicas.place_attempt,
    plan.AnnounceView: replicas.announce_view,
    plan.SendInstall: replicas.send_install,
    plan.StartReplica: replicas.start_replica,
    plan.StopReplica: replicas.stop_replica,
    plan.SetReplicaState: replicas.set_replica_state,
    plan.Relieve: replicas.relieve,
    plan.RequestCheckpoint: _request_checkpoint,
    plan.DemoteCheckpoint: _demote_checkpoint,
    plan.SuspectCheckpoint: _suspect_checkpoint,
    plan.GatherStacks: replicas.gather_stacks,
    plan.LookAtRanks: replicas.inspect_ranks,
    plan.KeepSpares: _keep_spares,
    plan.InjectFault: replicas.inject_fault,
    plan.OrderOut: replicas.order_out,
    plan.AskEviction: _ask_eviction,
    plan.AskPreemption: _ask_preemption,
    plan.SetYielded: _set_yielded,
    plan.ParkJob: _park_job,
    plan.AnswerRequest: _answer_request,
    plan.EndAttempt: replicas.end_attempt,
    plan.SetJobState: _set_job_state,
    plan.SetNodeState: _set_node_state,
    plan.BarDevice: _bar_device,
    plan.ResetDevice: _reset_device,
    plan.SettleSignals: _settle_signals,
    plan.ResolveIncident: _resolve_incident,
    plan.OpenBreaker: _open_breaker,
    plan.CloseBreaker: _close_breaker,
}
assert set(HANDLERS) == set(plan.Action.__args__), "every action has its handler"


def counted(decision: plan.Decision) -> list[Change]:
    """What the disruption budget counts of a decision that is carried out."""
    return [CountActs(decision.acts)] if decision.acts else []


def carry_out(turn: Turn, action: plan.Action) -> list[Change]:
    """What this action changes. LookupError: the plan names what is not there."""
    return list(HANDLERS[type(action)](turn, action))
