"""Checkpoints are read back by whoever has the bytes: a node of the job, else the server's own machine.

Called by the sweep (`verify_due`) and with agents' answers. `policy.readers` chooses; the order is a
signed command as any other, its answers are rows, and a row's `reader` is the only order that counts for
it, so what comes late or twice changes nothing. A reader that says nothing any more is called off and
another is asked. Nothing waits here, and no restart waits for any of it.
"""

from django.db.models import Q

from controlplane.changes.outbox import LIVE
from controlplane.checkpoints import places
from controlplane.checkpoints import services as checkpoints
from controlplane.checkpoints.examine import is_under_way, limit_s
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.readback import verdict_of
from controlplane.checkpoints.verify import Verdict
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.jobs.services import TERMINAL
from controlplane.policy import readers as policy
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.states import CommandState
from controlplane.runtime import events
from controlplane.runtime.clock import age_s
from controlplane.runtime.locks import lock_row

KIND = "verify_checkpoint"
REVISION = 3
"""Of the protocol: older agents do not know the order."""
MAX_HOLDERS = 8
"""Of a job's nodes so many are considered at a time."""
SAID_CHARS = 200


def verify_due(limit: int = 4) -> int:
    """Look at what is due; returns how many were looked at. Reads no checkpoint itself: it may
    take hours."""
    rows = checkpoints.claim_due(limit)
    for row in rows:
        _look(row)
    return len(rows)


def answered(command: Command) -> None:
    """Its agent told how far it is, or the end; or nobody answered in time. In the caller's unit of
    work. Only the order that the row waits for counts, and of a row that is gone or off the ladder
    (retention has removed it meanwhile) no word does."""
    # Jobs are locked before what belongs to them, everywhere; the ingest holds it already.
    lock_row(Job, command.job_id or "")
    row = Checkpoint.objects.select_for_update().filter(reader=command.pk).first()
    if row is None or _is_settled(row):
        return
    name = command.node.name
    if command.state == CommandState.ACKNOWLEDGED:
        words = f"node {name} is reading it back" + (f": {command.detail}" if command.data else "")
        checkpoints.handed_to(row, command.pk, words, look_s=policy.SILENT_S)
        return
    found = verdict_of(command.data) if command.state == CommandState.SUCCEEDED else None
    wrote = command.node_id == row.written_on
    if found is None or not policy.is_believed(ok=found.ok, absent=found.absent, wrote_it=wrote):
        checkpoints.handed_to(row, "", row.state_reason, look_s=0.0)
        return
    checkpoints.judge(row, Verdict(ok=found.ok, detail=f"{found.detail}, on node {name}"))


def _look(row: Checkpoint) -> None:
    """One look at a claimed row."""
    with events.unit_of_work():
        lock_row(Job, row.job_id)
        fresh = lock_row(Checkpoint, row.pk)
        if fresh is None or _is_settled(fresh) or _is_with_a_node(fresh):
            return
        holders = _holders(fresh)
    again = policy.is_worth_another_round(holders) and fresh.job.state not in TERMINAL
    checkpoints.look_here(fresh, others=_said(fresh), again_s=policy.LATER_S if again else None)


def _is_settled(row: Checkpoint) -> bool:
    """It left the ladder: whoever reads it may stop."""
    if row.state in checkpoints.TRUSTED_READABLE:
        return False
    _call_off(row)
    Checkpoint.objects.filter(pk=row.pk).update(round_at=None, reader="", heard_at=None, verify_due_at=None)
    return True


def _is_with_a_node(row: Checkpoint) -> bool:
    """A node reads it, was asked to just now, or will be."""
    if row.reader:
        heard_s = age_s(row.heard_at) or 0.0
        if not policy.is_silent(heard_s=heard_s):
            checkpoints.look_again(row, policy.SILENT_S - heard_s)
            return True
        _call_off(row)
        checkpoints.handed_to(row, "", row.state_reason, look_s=policy.SILENT_S)
    if not checkpoints.is_read_by_nodes(row) or is_under_way(row) or places.why_not_readable(row):
        return False
    checkpoints.begin_round(row)
    match policy.next_reader(_holders(row)):
        case policy.Ask(node_id=node_id):
            _ask(row, node_id)
        case policy.Wait():
            checkpoints.look_again(row, checkpoints.LOOK_AGAIN_S)
        case policy.Here():
            return False
    return True


def _ask(row: Checkpoint, node_id: str) -> None:
    job = row.job
    body = VerifyCheckpoint(
        job_id=job.id, path=row.path, step=row.step, epoch=row.epoch, limit_s=float(limit_s(row)), user=job.owner
    )
    # No fence: whether bytes are as they were committed is right to ask at any time.
    command = dispatch.enqueue(body, node_id=node_id, job_id=job.id, attempt=row.attempt)
    words = f"node {command.node.name} was asked to read it back"
    checkpoints.handed_to(row, command.pk, words, look_s=policy.SILENT_S)


def _call_off(row: Checkpoint) -> None:
    """The order that it waits for is at work, or not even received, for nothing."""
    command = Command.objects.filter(pk=row.reader, state__in=LIVE).first()
    if command is not None:
        dispatch.enqueue(EndVerification(order=command.pk), node_id=command.node_id, job_id=command.job_id)


def _orders(row: Checkpoint) -> list[Command]:
    """Of this round, oldest first."""
    if row.round_at is None:
        return []
    rows = Command.objects.filter(kind=KIND, job_id=row.job_id, body__path=row.path, created_at__gte=row.round_at)
    return list(rows.select_related("node").order_by("id"))


def _holders(row: Checkpoint) -> list[policy.Holder]:
    """Nodes of the job, the one that wrote first; of those away, one stands for all."""
    orders = _orders(row)
    asked = {order.node_id for order in orders}
    nodes = Node.objects.filter(removed_at=None)
    ours = Q(pk=row.written_on) | Q(ranks__replica__attempt__job_id=row.job_id) | Q(pk__in=asked)
    mine = nodes.filter(ours).distinct()
    here = list(mine.filter(connected=True).order_by("id")[: MAX_HOLDERS + len(asked)])
    writer = nodes.filter(pk=row.written_on).first()
    away = [writer] if writer is not None and not writer.connected else list(mine.filter(connected=False)[:1])
    known = {node.pk: node for node in (*filter(None, (writer,)), *here, *away)}
    at_work = Command.objects.filter(kind=KIND, state__in=LIVE, node_id__in=list(known))
    busy = set(at_work.values_list("node_id", flat=True))
    told = {order.node_id for order in orders if order.state == CommandState.SUCCEEDED}
    return [
        policy.Holder(
            node_id=node.pk, connected=node.connected, able=node.revision >= REVISION,
            busy=node.pk in busy, asked=node.pk in asked, told=node.pk in told,
        )
        for node in known.values()
    ]  # fmt: skip


def _said(row: Checkpoint) -> str:
    """What the nodes that were asked have made of it, for people."""
    words = []
    for order in _orders(row):
        found = verdict_of(order.data) if order.state == CommandState.SUCCEEDED else None
        told = order.detail if order.state not in LIVE else ""
        why = found.detail if found is not None else told or "it says nothing any more"
        words.append(f"node {order.node.name}: {why[:SAID_CHARS]}")
    return "; ".join(words)
