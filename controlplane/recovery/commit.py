"""Changes to rows, commands and events: the database behind the write side's core.

The one place where what `changes` tells becomes rows: each move by its table and compare-and-set, with
its event, in the caller's unit of work. A change raises LostRace, Conflict, IllegalTransition or
IntegrityError, and the caller undoes all of them. Locks are taken in the order of `runtime.locks`: the job's row
is held, node and request rows are locked as they are moved.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from controlplane.access import services as access
from controlplane.changes import kinds
from controlplane.changes.disruption_kinds import CloseBreaker, CountActs, OpenBreaker
from controlplane.changes.due import kinds as due
from controlplane.changes.end_kinds import NoteEnd
from controlplane.changes.kinds import (
    AttemptKey,
    DeviceKey,
    IncidentKey,
    JobKey,
    NodeKey,
    RankKey,
    ReplicaKey,
    RequestKey,
    ViewKey,
)
from controlplane.checkpoints import services as checkpoints
from controlplane.dispatch import services as dispatch
from controlplane.fleet import ends, sessions
from controlplane.fleet.models import Device, Node
from controlplane.fleet.services import bar_device, mark_device_lost, return_device, set_device_health, take_out
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.services import (
    publish_job,
    publish_rank,
    publish_replica,
    refresh_job,
    transition_attempt,
    transition_job,
    transition_rank,
    transition_replica,
    wake_job,
)
from controlplane.protocol.commands import Body, EndVerification, StopRanks
from controlplane.recovery import breaker_rows, diagnostics, holding, incidents, kept, late, request_rows, signals
from controlplane.recovery.models import Incident, MarkedLines, Signal, ViewRow
from controlplane.recovery.row_queries import DEVICE_THERE, FINDINGS_NAMED
from controlplane.recovery.rows import JobRows
from controlplane.runtime import counters, events, keys
from controlplane.runtime.clock import after, from_s, now
from controlplane.runtime.locks import lock_row
from controlplane.scheduling import services as scheduling

Columns = dict[str, Any]


def commit(changes: Iterable[kinds.Change | due.Deadline], rows: JobRows) -> None:
    """Carry them out in their order, in this unit of work."""
    for change in changes:
        HANDLERS[type(change)](rows, change)


def _columns(columns: Any) -> Columns:
    """As the tables hold them: moments as such, structs as JSON."""
    found: Columns = {}
    for name, value in columns.items():
        if name.endswith("_s") and name not in kinds.LENGTHS:
            found[f"{name.removesuffix('_s')}_at"] = None if value is None else from_s(value)
        else:
            found[name] = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    return found


def _transition(rows: JobRows, change: kinds.Transition) -> None:
    columns = _columns(change.columns)
    match change.subject:
        case JobKey():
            transition_job(rows.locked, change.to, change.reason)
        case AttemptKey(number=number):
            transition_attempt(rows.attempt_row(number), change.to, change.reason, **columns)
        case ReplicaKey() as key:
            transition_replica(rows.replica_row(key), change.to, change.reason, **columns)
        case RankKey() as process:
            transition_rank(rows.rank_row(process), change.to, change.reason, **columns)
        case NodeKey(id=node_id):
            node = lock_row(Node, node_id)
            if node is not None:
                take_out(node, change.to, change.reason)
        case RequestKey(id=request_id):
            request_rows.move(request_id, change.to, decision_id=rows.decision_id, **columns)


def _observe(rows: JobRows, change: kinds.Observe) -> None:
    columns = _columns(change.columns)
    match change.subject:
        case JobKey():
            Job.objects.filter(pk=rows.locked.pk).update(**columns)
            for name, value in columns.items():
                setattr(rows.locked, name, value)
            if change.publish:
                refresh_job(rows.locked.id)
        case RankKey() as process:
            rank = rows.rank_row(process)
            Rank.objects.filter(pk=rank.pk).update(**columns)
            for name, value in columns.items():
                setattr(rank, name, value)
        case AttemptKey(number=number):
            Attempt.objects.filter(job=rows.locked, number=number).update(**columns)
        case ViewKey(epoch=epoch):
            ViewRow.objects.filter(job=rows.locked, epoch=epoch).update(**columns)
        case DeviceKey(node_id=node_id, index=index):
            Device.objects.filter(node_id=node_id, index=index).update(**columns)
        case IncidentKey(id=incident_id):
            Incident.objects.filter(pk=incident_id).update(**columns)
        case ReplicaKey() as key:
            row = rows.replica_row(key)
            Replica.objects.filter(pk=row.pk).update(**columns)
            if rows.heard is not None:
                rows.heard.ranks.clear()
            if change.publish == "replica":
                publish_replica(row, "replica.refreshed", "")
            elif change.publish:
                refresh_job(rows.locked.id)


def _fence(rows: JobRows, change: kinds.Fence) -> None:
    """The epoch only ever grows, and the row lock makes us its one writer."""
    job = rows.locked
    assert change.epoch > job.epoch, f"epoch {change.epoch} does not follow {job.epoch}"
    Job.objects.filter(pk=job.pk).update(epoch=change.epoch)
    job.epoch = change.epoch


def _create_attempt(rows: JobRows, change: kinds.CreateAttempt) -> None:
    new, job = change.attempt, rows.locked
    Attempt.objects.create(
        job=job,
        number=new.number,
        layout=msgspec.to_builtins(new.layout),
        replicas=new.replicas,
        resume_step=new.resume_step,
        resume_path=new.resume_path,
        checkpoint_dir=new.checkpoint_dir,
        max_contributors=new.max_contributors,
        yielded=new.yielded,
    )
    Job.objects.filter(pk=job.pk).update(committed_step=new.resume_step)
    job.committed_step = new.resume_step


def _create_view(rows: JobRows, change: kinds.CreateView) -> None:
    view = change.view
    ViewRow.objects.create(
        job=rows.locked, attempt=view.attempt, epoch=view.epoch, view=msgspec.to_builtins(view), announced_at=now()
    )


def _enqueue(rows: JobRows, change: kinds.Enqueue) -> None:
    if change.attempt is None:
        dispatch.enqueue_each(change.commands, decision_id=rows.decision_id, ttl_s=change.ttl_s)
        return
    job = rows.locked
    signed = {key: _signed(body) for key, body in {id(body): body for _, body in change.commands}.items()}
    dispatch.enqueue_each(
        [(node, signed[id(body)]) for node, body in change.commands],
        job_id=job.id,
        attempt=change.attempt,
        epoch=job.epoch,
        decision_id=rows.decision_id,
        ttl_s=change.ttl_s,
    )


def _signed(body: Body) -> Body:
    """An order that ends the job says so under our signature."""
    if not isinstance(body, StopRanks) or not body.final:
        return body
    return msgspec.structs.replace(body, end_signature=keys.sign_end(body.job_id, body.attempt, body.final))


def _resolve(rows: JobRows, change: kinds.Resolve) -> None:
    if change.incident:
        incidents.close(change.incident, change.note, change.outcome)
    else:
        incidents.resolve(rows.locked, change.note, change.outcome)


def _release(rows: JobRows, change: kinds.Release) -> None:
    if change.nodes is None:
        scheduling.release_all(rows.locked)
    else:
        scheduling.release_nodes(rows.locked, change.nodes)


def _bar(rows: JobRows, change: kinds.Bar) -> None:
    device = DEVICE_THERE.get(node=change.subject.node_id, index=change.subject.index)
    bar_device(device, change.why, reset=change.reset)


def _audit(rows: JobRows, change: kinds.Audit) -> None:
    subject, data = change.subject or rows.locked.id, dict(change.data)
    access.audit(
        change.actor, change.action, subject, reason=change.reason, decision_id=rows.decision_id, data=data,
        before=change.before, after=change.after,
    )  # fmt: skip


def _publish(rows: JobRows, change: kinds.Publish) -> None:
    match change.subject:
        case RankKey() as process:
            publish_rank(rows.rank_row(process), change.kind, change.sentence)
            return
        case ReplicaKey() as key:
            publish_replica(rows.replica_row(key), change.kind, change.sentence)
            return
    if change.beside is not None:
        place = {"job_id": rows.job_id, "node_id": change.beside}
        events.publish(change.kind, change.sentence, **place, data=dict(change.data))
        return
    if not change.node:
        publish_job(rows.locked, change.kind, change.sentence)
        return
    events.publish(
        change.kind, change.sentence, node_id=change.node, job_id=rows.job_id, entity="node", entity_id=change.node
    )


def _judge(rows: JobRows, change: kinds.Judge) -> None:
    device = DEVICE_THERE.get(node=change.subject.node_id, index=change.subject.index)
    if change.works:
        return_device(device, change.why)
    else:
        set_device_health(device, healthy=False, reason=change.why)


def _lose(rows: JobRows, change: kinds.Lose) -> None:
    device = DEVICE_THERE.get(node=change.subject.node_id, index=change.subject.index)
    mark_device_lost(device, change.why)


def _raise(rows: JobRows, change: kinds.Raise) -> None:
    raised = signals.raise_signal(change.found, seen_at=rows.seen_at)
    if raised is not None and change.late:
        late.join(raised)


def _amend(rows: JobRows, change: kinds.Amend) -> None:
    row = Signal.objects.get(pk=change.signal)
    signals.amend(row, dict(change.evidence), change.sentence)


def _mark(rows: JobRows, change: kinds.Mark) -> None:
    said = change.marked
    at = from_s(said.said_s) if said.said_s is not None else None
    fields = {"lines": said.lines, "reports": said.reports, "last": dict(said.last), "told_at": at}
    MarkedLines.objects.update_or_create(job=rows.locked, marker=said.marker, defaults=fields)


def _free(rows: JobRows, change: kinds.Free) -> None:
    assert rows.heard is not None, "nodes are heard in batches"
    rows.heard.freed = True


def _wake(rows: JobRows, change: kinds.Wake) -> None:
    """Once, after the batch of events where there is one."""
    if rows.heard is not None:
        rows.heard.wake(change.job or rows.job_id, sure=change.sure)
    else:
        wake_job(change.job or rows.job_id, sure=change.sure)


def _keep(rows: JobRows, change: kinds.Keep) -> None:
    assert rows.heard is not None, "reports come in batches"
    kept.keep(rows.heard, rows.locked, rows.rank_row(change.subject), change.said)


def _note_end(rows: JobRows, change: NoteEnd) -> None:
    """Its jobs are locked, as the batch that tells of it is."""
    assert rows.heard is not None, "nodes are heard in batches"
    node = rows.heard.node
    assert node.id == change.node, "a node speaks for itself alone"
    if change.leaves_s is not None:
        ends.note(node, change.leaves_s, change.reason)
    else:
        ends.stays(node, change.reason)
    for job_id in rows.heard.jobs:
        rows.heard.wake(job_id, sure=True)


def _create_preemption(rows: JobRows, change: kinds.CreatePreemption) -> None:
    request_rows.ask_to_yield(rows.locked, change)


def _withdraw(rows: JobRows, change: kinds.Withdraw) -> None:
    request_rows.take_back(change.request, change.by)


def _ask_reader(rows: JobRows, change: due.AskReader) -> None:
    body, attempt = change.body, change.attempt
    command = dispatch.enqueue(body, node_id=change.node_id, job_id=rows.job_id, attempt=attempt)
    columns = {"reader": command.pk, "heard_at": now(), "verify_due_at": after(change.within_s)}
    checkpoints.observe(change.save, {**columns, "state_reason": change.words}, "checkpoint.reading")


HANDLERS: dict[type, Callable[[JobRows, Any], None]] = {
    kinds.Transition: _transition,
    kinds.Observe: _observe,
    kinds.Fence: _fence,
    kinds.CreateAttempt: _create_attempt,
    kinds.CreateReplica: lambda rows, change: holding.create(rows.attempt_row(change.key.attempt), change),
    kinds.CreateView: _create_view,
    kinds.CreateEviction: lambda rows, change: request_rows.ask_of_drain(rows.replica_row(change.key), change.drain),
    kinds.CreatePreemption: _create_preemption,
    kinds.Withdraw: _withdraw,
    kinds.Enqueue: _enqueue,
    kinds.Publish: _publish,
    kinds.Settle: lambda rows, change: signals.settle(FINDINGS_NAMED(signals=change.signals), change.why),
    kinds.Resolve: _resolve,
    kinds.Reserve: lambda rows, change: scheduling.reserve_nodes(rows.locked, change.nodes),
    kinds.Release: _release,
    kinds.Demote: lambda rows, change: checkpoints.demote(rows.locked, change.checkpoint, change.reason),
    kinds.Suspect: lambda rows, change: checkpoints.suspect(rows.locked, change.checkpoint, change.step),
    kinds.Bar: _bar,
    kinds.Audit: _audit,
    kinds.Judge: _judge,
    kinds.Lose: _lose,
    kinds.Raise: _raise,
    kinds.Amend: _amend,
    kinds.Mark: _mark,
    kinds.Free: _free,
    kinds.Wake: _wake,
    kinds.Keep: _keep,
    kinds.KeepDiagnostic: lambda rows, change: diagnostics.keep(rows.locked, change.found),
    kinds.Refuse: lambda rows, change: checkpoints.refused(rows.locked, change.path, said=change.said),
    kinds.Close: lambda rows, change: dispatch.answer(change.node, change.command, change.state, change.detail, ""),
    NoteEnd: _note_end,
    CountActs: lambda rows, change: breaker_rows.note(change.acts, rows.decision_id),
    OpenBreaker: lambda rows, change: breaker_rows.open_breaker(
        change.code, change.segment, change.sentence, rows.decision_id
    ),
    CloseBreaker: lambda rows, change: breaker_rows.close_over(change.breaker, change.reason),
    kinds.Count: lambda rows, change: counters.count(
        change.node, change.what, number=change.number, detail=change.detail
    ),
    due.CloseSession: lambda rows, change: sessions.close_session(change.node_id, change.session),
    due.ObserveSave: lambda rows, change: checkpoints.observe(change.save, _columns(change.columns), change.publish),
    due.MoveSave: lambda rows, change: checkpoints.move(change.save, change.to, change.reason),
    due.AskReader: _ask_reader,
    due.EndReading: lambda rows, change: dispatch.enqueue(
        EndVerification(order=change.command), node_id=change.node_id, job_id=rows.job_id
    ),
}
assert set(HANDLERS) == {*kinds.Change.__args__, *due.Deadline.__args__}, "every change is committed"
