"""A decision to rows, commands and events: the other border of the policy.

Called under the job's row lock, inside one unit of work a decision. The key makes a
decision once per job. What is announced (a view, an install) is a row before its command
is, and the fencing epoch moves in the same transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from django.db import transaction
from django.db.models import F, QuerySet

from controlplane.checkpoints import services as checkpoints
from controlplane.dispatch import services as dispatch
from controlplane.fleet.models import Node
from controlplane.fleet.services import take_out
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.services import (
    TERMINAL,
    publish_job,
    refresh_job,
    transition_attempt,
    transition_job,
    transition_replica,
)
from controlplane.policy import flaps, plan
from controlplane.policy.rules.device_fault import KINDS as HARDWARE
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import number_of
from controlplane.protocol.bounds import JobEnd
from controlplane.protocol.commands import (
    CollectStacks,
    DeliverInstall,
    DeliverView,
    RequestSave,
    StopRanks,
)
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.looks import HANG
from controlplane.protocol.states import AttemptState, Mode, ReplicaState
from controlplane.recovery import devices, incidents, keeping, ledger, orders, requests, signals, spares
from controlplane.recovery.audited import audit_decision
from controlplane.recovery.decided import new_row, publish_decision
from controlplane.recovery.models import Decision, Signal, ViewRow
from controlplane.runtime import events, keys, metrics
from controlplane.runtime.clock import now
from controlplane.scheduling import services as scheduling

STOP_TTL_S = 3600.0
VIEW_TTL_S = 120.0
ASK_TTL_S = 30.0


@dataclass(slots=True, kw_only=True)
class Context:
    """What the actions of one decision share. `job` is locked. `terms` of its starts, once one
    has needed them. `final`: how the job ends with this decision, "" if it does not."""

    job: Job
    decision_id: str
    rule: str
    reason_code: str
    sentence: str
    terms: orders.Terms | None = None
    final: JobEnd = ""


def already_taken(job: Job, decision: plan.Decision) -> bool:
    """This decision was made before."""
    return Decision.objects.filter(job=job, key=decision.key[:200]).exists()


def apply_decision(
    job: Job, decision: plan.Decision, snapshot: JobSnapshot, *, version: str, decide_s: float
) -> Decision:
    """Record the decision; unless its mode only recommends, carry its actions out. Everything
    is undone if one action fails (LostRace, Conflict, IllegalTransition, IntegrityError)."""
    acts = decision.mode is Mode.ENFORCE
    with events.unit_of_work():
        before = job.epoch
        state_before = {"state": job.state, "epoch": job.epoch}
        row = new_row(job, decision, snapshot, version=version, decide_s=decide_s)
        row.incident = incidents.incident_for(job, decision, row.at)
        row.save(force_insert=True)
        if acts:
            ends = (str(a.to) for a in decision.actions if isinstance(a, plan.SetJobState) and a.to in TERMINAL)
            context = Context(
                job=job, final=cast(JobEnd, next(ends, "")), decision_id=row.id, rule=decision.rule,
                reason_code=decision.reason_code, sentence=decision.sentence,
            )  # fmt: skip
            if context.final:
                keeping.end(job)
            for action in decision.actions:
                HANDLERS[type(action)](context, action)
            ledger.write(job, row, decision, snapshot)
            if job.epoch != before:
                row.epoch_after = job.epoch
                row.save(update_fields=["epoch_after"])
        publish_decision(row)
        audit_decision(row, state_before)
        if row.incident is not None:
            incidents.progress(row.incident_id, acted=acts and bool(decision.actions))
    waited_s = _waited_s(row, decision)
    transaction.on_commit(lambda: _count(decision, waited_s))
    return row


def _waited_s(row: Decision, decision: plan.Decision) -> float | None:
    """Since the first finding that it answers showed itself; None where none did."""
    first = Signal.objects.filter(id__in=decision.signal_ids).order_by("seen_at").first()
    return (row.at - first.seen_at).total_seconds() if first is not None else None


def _count(decision: plan.Decision, waited_s: float | None) -> None:
    """Once it is committed: a pass that lost a race is not counted. A clock that was set back since
    the finding says nothing about the time that it took."""
    mode = str(decision.mode)
    metrics.DECISIONS.labels(action=decision.choice, trigger=decision.reason_code, mode=mode, result="ok").inc()
    if waited_s is not None and waited_s >= 0.0:
        metrics.DECISION_LATENCY.observe(waited_s)


def _attempt(job: Job, number: int | None = None) -> Attempt:
    rows = job.attempts.filter(number=number) if number is not None else job.attempts.order_by("-number")
    attempt = rows.first()
    assert attempt is not None, "the plan names an attempt that exists"
    return attempt


def _nodes_of(ranks: QuerySet[Rank]) -> list[str]:
    return sorted(set(ranks.order_by().values_list("node_id", flat=True).distinct()))


def _unreleased(attempt: Attempt) -> QuerySet[Rank]:
    return Rank.objects.filter(replica__attempt=attempt, released_at=None)


def _send(context: Context, body: Any, node_ids: Sequence[str], attempt: Attempt, ttl_s: float) -> None:
    dispatch.enqueue_all(
        body,
        node_ids=node_ids,
        job_id=context.job.id,
        attempt=attempt.number,
        epoch=context.job.epoch,
        decision_id=context.decision_id,
        ttl_s=ttl_s,
    )


def _set_epoch(job: Job, epoch: int) -> None:
    """Fence: the epoch only ever grows, and the row lock makes us its one writer."""
    assert epoch > job.epoch, f"epoch {epoch} does not follow {job.epoch}"
    Job.objects.filter(pk=job.pk).update(epoch=epoch)
    job.epoch = epoch


def _place_attempt(context: Context, action: plan.PlaceAttempt) -> None:
    job = context.job
    for old in job.attempts.exclude(state=AttemptState.ENDED):
        # Its processes are fenced by the epoch, and its agents end them before they start ours.
        transition_attempt(old, AttemptState.ENDED, f"attempt {action.number} takes its place")
    _set_epoch(job, action.epoch)
    attempt = Attempt.objects.create(
        job=job,
        number=action.number,
        layout=msgspec.to_builtins(action.layout),
        replicas=len(action.placements),
        resume_step=action.resume_step,
        resume_path=action.resume_path or "",
        checkpoint_dir=orders.checkpoint_dir(job, orders.spec_of(job).spec),
        max_contributors=orders.most_contributors(job, len(action.placements)),
    )
    # What is committed from here on starts at the checkpoint; what came after it is lost work.
    Job.objects.filter(pk=job.pk).update(committed_step=action.resume_step)
    job.committed_step = action.resume_step
    publish_job(job, "attempt.placed", f"Attempt {action.number} of {job.name} is placed. {context.sentence}")
    scheduling.release_all(job)
    terms = orders.terms_of(job, attempt, context.decision_id)
    for index, placements in enumerate(action.placements):
        orders.start_replica(terms, index, orders.next_incarnation(job, index), placements)
    scheduling.reserve_nodes(job, action.spare_nodes)
    if orders.spec_of(job).spec.resources.spares.warm:
        spares.warm(job, attempt, action.spare_nodes, decision_id=context.decision_id)


def _announce_view(context: Context, action: plan.AnnounceView) -> None:
    """The row first, then the orders to everybody in it and to everybody it leaves out."""
    job, view = context.job, action.view
    attempt = _attempt(job, view.attempt)
    _set_epoch(job, view.epoch)
    ViewRow.objects.create(
        job=job, attempt=view.attempt, epoch=view.epoch, view=msgspec.to_builtins(view), announced_at=now()
    )
    publish_job(job, "view.announced", f"View {view.epoch}: {number_of(len(view.members), 'replica')}. {view.reason}")
    _send(context, DeliverView(view=view), _nodes_of(_unreleased(attempt)), attempt, VIEW_TTL_S)


def _send_install(context: Context, action: plan.SendInstall) -> None:
    job, install = context.job, action.install
    attempt = _attempt(job, install.attempt)
    row = ViewRow.objects.get(job=job, epoch=install.epoch)
    ViewRow.objects.filter(pk=row.pk).update(install=msgspec.to_builtins(install), ordered_at=now())
    members = {(m["replica"], m["incarnation"]) for m in row.view["members"]}
    for replica in attempt.replica_rows.all():
        member = (replica.index, replica.incarnation) in members
        holds = member and replica.index in (*install.contributors, *install.standbys)
        _set_contributing(replica, member and replica.index in install.contributors, holds=holds)
    if attempt.state == AttemptState.STARTING:
        transition_attempt(attempt, AttemptState.RUNNING, "its first view is installed")
    publish_job(job, "view.installed", f"View {install.epoch} continues at step {install.step}.")
    homes = _unreleased(attempt).order_by().values_list("replica__index", "replica__incarnation", "node_id").distinct()
    nodes = sorted({node_id for index, incarnation, node_id in homes if (index, incarnation) in members})
    _send(context, DeliverInstall(install=install), nodes, attempt, VIEW_TTL_S)


def _set_contributing(replica: Replica, counts: bool, *, holds: bool) -> None:
    """`holds` the state: a start that came so far has not failed."""
    changes: dict[str, Any] = {"contributing": counts} | ({"contributed": True} if holds else {})
    if Replica.objects.filter(pk=replica.pk).exclude(**changes).update(**changes):
        refresh_job(replica.attempt.job_id)


def _start_replica(context: Context, action: plan.StartReplica) -> None:
    if context.terms is None:
        context.terms = orders.terms_of(context.job, _attempt(context.job), context.decision_id)
    orders.start_replica(context.terms, action.replica, action.incarnation, action.placements)


def _replica(context: Context, index: int, incarnation: int) -> Replica:
    rows = Replica.objects.filter(attempt__job=context.job, index=index, incarnation=incarnation)
    replica = rows.select_related("attempt").order_by("-attempt__number").first()
    assert replica is not None, "the plan names an incarnation that exists"
    return replica


def _stop_replica(context: Context, action: plan.StopReplica) -> None:
    replica = _replica(context, action.replica, action.incarnation)
    Replica.objects.filter(pk=replica.pk).update(stop_requested=True)
    body = StopRanks(
        job_id=context.job.id,
        attempt=replica.attempt.number,
        replica=action.replica,
        incarnation=action.incarnation,
        grace_s=action.grace_s,
        reason=context.sentence,
    )
    _send(context, body, _nodes_of(replica.ranks.filter(released_at=None)), replica.attempt, STOP_TTL_S)


def _set_replica_state(context: Context, action: plan.SetReplicaState) -> None:
    replica = _replica(context, action.replica, action.incarnation)
    if replica.state != action.to:
        transition_replica(replica, action.to, context.sentence)
    if action.to == ReplicaState.ACTIVE:
        _set_contributing(replica, True, holds=True)
    if action.to == ReplicaState.SUSPECT:
        # Left out: should it come back, it catches up anew.
        out_s = replica.out_at.timestamp() if replica.out_at else None
        times = flaps.times_out(replica.times_out, out_s, now().timestamp())
        Replica.objects.filter(pk=replica.pk).update(contributing=False, caught_up=None, times_out=times, out_at=now())
        refresh_job(context.job.id)


def _request_checkpoint(context: Context, action: plan.RequestCheckpoint) -> None:
    attempt = _attempt(context.job)
    body = RequestSave(job_id=context.job.id, attempt=attempt.number, save_kind=action.kind, reason=context.sentence)
    deadline_s = orders.spec_of(context.job).spec.checkpoint.emergency.deadline_s
    ttl_s = deadline_s if action.kind == "emergency" else ASK_TTL_S
    _send(context, body, _nodes_of(_unreleased(attempt)), attempt, ttl_s)


def _demote_checkpoint(context: Context, action: plan.DemoteCheckpoint) -> None:
    checkpoints.demote(context.job, action.checkpoint_id, action.reason)


def _gather_stacks(context: Context, action: plan.GatherStacks) -> None:
    body = CollectStacks(
        job_id=context.job.id, replica=action.replica, incarnation=action.incarnation, look=action.look
    )
    if action.replica == -1:
        attempt = _attempt(context.job)  # An older agent reads no order for all.
        ranks = _unreleased(attempt).filter(node__revision__gte=PROTOCOL_MAX)
    else:
        replica = _replica(context, action.replica, action.incarnation)
        attempt, ranks = replica.attempt, replica.ranks.filter(released_at=None)
    _send(context, body, _nodes_of(ranks), attempt, ASK_TTL_S)


def _look_at_ranks(context: Context, action: plan.LookAtRanks) -> None:
    Job.objects.filter(pk=context.job.pk).update(looks_taken=F("looks_taken") + 1, looked_at=now())
    replica = _replica(context, action.replica, action.incarnation)
    for rank in replica.ranks.filter(released_at=None, rank__in=action.ranks).order_by("rank"):
        body = CollectStacks(
            job_id=context.job.id, replica=action.replica, incarnation=action.incarnation, rank=rank.rank, look=HANG
        )
        _send(context, body, [rank.node_id], replica.attempt, ASK_TTL_S)


def _end_attempt(context: Context, action: plan.EndAttempt) -> None:
    attempt = _attempt(context.job, action.number)
    nodes = _nodes_of(_unreleased(attempt))
    body = StopRanks(
        job_id=context.job.id,
        attempt=attempt.number,
        replica=-1,
        incarnation=-1,
        grace_s=action.grace_s,
        reason=context.sentence,
        final=context.final,
        end_signature=keys.sign_end(context.job.id, attempt.number, context.final) if context.final else "",
    )
    _send(context, body, nodes, attempt, STOP_TTL_S)
    if attempt.state in (AttemptState.STARTING, AttemptState.RUNNING):
        Attempt.objects.filter(pk=attempt.pk).update(end_code=context.reason_code)
        transition_attempt(attempt, AttemptState.STOPPING if nodes else AttemptState.ENDED, context.sentence)


def _set_job_state(context: Context, action: plan.SetJobState) -> None:
    if context.job.state == action.to:
        return
    transition_job(context.job, action.to, context.sentence)
    if action.to in TERMINAL:
        scheduling.release_all(context.job)
        # What was found about hardware is true without the job: the fleet's own pass deals with it.
        mine = Signal.objects.filter(job=context.job, settled_at=None).exclude(kind__in=HARDWARE)
        signals.settle(list(mine), f"the job is {action.to}")
        requests.end_with(context.job, context.decision_id)


def _set_node_state(context: Context, action: plan.SetNodeState) -> None:
    node = Node.objects.select_for_update().get(pk=action.node_id)
    take_out(node, action.to, devices.reason_of(context.rule, context.reason_code, context.sentence))


def _settle_signals(context: Context, action: plan.SettleSignals) -> None:
    signals.settle(list(Signal.objects.filter(id__in=action.signal_ids)), context.sentence)


def _resolve_incident(context: Context, action: plan.ResolveIncident) -> None:
    incidents.resolve(context.job, action.note, action.outcome)


HANDLERS: dict[type, Callable[[Context, Any], None]] = {
    plan.PlaceAttempt: _place_attempt,
    plan.AnnounceView: _announce_view,
    plan.SendInstall: _send_install,
    plan.StartReplica: _start_replica,
    plan.StopReplica: _stop_replica,
    plan.SetReplicaState: _set_replica_state,
    plan.Relieve: lambda context, act: orders.relieve(_replica(context, act.replica, act.incarnation), act.reason),
    plan.RequestCheckpoint: _request_checkpoint,
    plan.DemoteCheckpoint: _demote_checkpoint,
    plan.GatherStacks: _gather_stacks,
    plan.LookAtRanks: _look_at_ranks,
    plan.KeepSpares: lambda context, act: spares.keep(
        context.job, _attempt(context.job), act, decision_id=context.decision_id
    ),
    plan.InjectFault: lambda context, act: requests.inject(
        _replica(context, act.replica, act.incarnation), act, context.sentence, context.decision_id
    ),
    plan.OrderOut: lambda context, act: orders.order_out(_replica(context, act.replica, act.incarnation), act),
    plan.AskEviction: lambda context, act: requests.ask_of_drain(
        _replica(context, act.replica, act.incarnation), act.request
    ),
    plan.AnswerRequest: lambda context, act: requests.answer(act, context.sentence, context.decision_id),
    plan.EndAttempt: _end_attempt,
    plan.SetJobState: _set_job_state,
    plan.SetNodeState: _set_node_state,
    plan.BarDevice: lambda context, action: devices.bar(action, context.sentence),
    plan.ResetDevice: lambda context, action: devices.order_reset(action, context.decision_id),
    plan.SettleSignals: _settle_signals,
    plan.ResolveIncident: _resolve_incident,
}
assert set(HANDLERS) == set(plan.Action.__args__), "every action has its handler"


def settle_stopping(job: Job) -> None:
    """A stopping attempt ends when every process is proved gone, or its node out of reach and so
    fenced by its epoch."""
    attempt = job.attempts.filter(state=AttemptState.STOPPING).first()
    if attempt is None:
        return
    if Rank.objects.filter(replica__attempt=attempt, released_at=None, node__connected=True).exists():
        return
    transition_attempt(attempt, AttemptState.ENDED, "every process is gone")
