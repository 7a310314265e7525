"""Reading checkpoints back: the edge of `changes.due.readback`, and the database as that reads it.

Called by the sweep (`verify_due`) and with agents' answers. What this machine reads itself it reads beside every
transaction, in processes of its own. Decides nothing.
"""

from collections.abc import Sequence

from django.db.models import Q

from controlplane.changes.due import readback
from controlplane.changes.due.kinds import ReadHere
from controlplane.changes.due.rows import Reading, Save
from controlplane.changes.outbox import LIVE
from controlplane.checkpoints import examine, places
from controlplane.checkpoints import services as checkpoints
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.readback import verdict_of
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import LOCAL_KIND
from controlplane.jobs.services import TERMINAL
from controlplane.policy import readers as policy
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CheckpointState, CommandState
from controlplane.recovery.commit import commit
from controlplane.recovery.row_facts import answered_of
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import TEXT, Prepared, Several

KIND = "verify_checkpoint"
REVISION = 3
"""Of the protocol: older agents do not know the order."""
MAX_HOLDERS = 8
"""Of a job's nodes so many are considered at a time."""

_SAVE: Prepared[Checkpoint] = Prepared(lambda save: Checkpoint.objects.filter(pk=save), save=TEXT)
_NODE: Prepared[Node] = Prepared(lambda node: Node.objects.filter(removed_at=None, pk=node), node=TEXT)
_AT_WORK: Prepared[str] = Prepared(
    lambda nodes: Command.objects.filter(kind=KIND, state__in=LIVE, node_id__in=nodes)
    .values_list("node_id", flat=True),
    nodes=Several(TEXT),
)  # fmt: skip


class ReadingRows(JobRows):
    """Of a job, whose row is locked before what belongs to it, as everywhere."""

    def saved(self, save_id: str) -> Save | None:
        """With what this machine knows of it."""
        return self._save_of(lock_row(Checkpoint, save_id))

    def save_of(self, reader: str) -> Save | None:
        """There is one at most."""
        return self._save_of(Checkpoint.objects.select_for_update().filter(reader=reader).first())

    def _save_of(self, row: Checkpoint | None) -> Save | None:
        """Of the job that is locked no second row is read."""
        if row is not None and self._job is not None and row.job_id == self._job.pk:
            row.job = self._job
        return _save_of(row)

    def holders(self, save_id: str) -> Sequence[policy.Holder]:
        """As the rows are now."""
        return _holders(_SAVE.get(save=save_id))

    def readings(self, save_id: str) -> Sequence[Reading]:
        """By id."""
        return [
            Reading(
                row.node.name,
                row.state in LIVE,
                row.detail,
                self.verdict(row.data) if row.state == CommandState.SUCCEEDED else None,
            )
            for row in _orders(_SAVE.get(save=save_id))
        ]

    def verdict(self, data: str) -> Verdict | None:
        """By strict types, as its reader has seen a job's files."""
        return verdict_of(data)


def verify_due(limit: int = 4) -> int:
    """Everything that is due, up to so many; returns how many there were. Reads no checkpoint itself: it may
    take hours."""
    claimed = checkpoints.claim_due(limit)
    for row in claimed:
        attend(row)
    return len(claimed)


def attend(row: Checkpoint) -> None:
    """To one that was claimed."""
    here = None
    with events.unit_of_work():
        rows = ReadingRows(lock_row(Job, row.job_id))
        for change in readback.due(rows, row.pk):
            if isinstance(change, ReadHere):
                here = change
            else:
                commit([change], rows)
    if here is not None:
        _read(row, here)


def _read(row: Checkpoint, wanted: ReadHere) -> None:
    """By this machine, which may need many turns."""
    row.refresh_from_db()
    verdict = examine.examine(row)
    with events.unit_of_work():
        rows = ReadingRows(lock_row(Job, row.job_id))
        commit(readback.found_here(rows, wanted, verdict), rows)


def answered(command: Command) -> None:
    """In the caller's unit of work."""
    # Jobs are locked before what belongs to them, everywhere; the ingest holds it already.
    rows = ReadingRows(lock_row(Job, command.job_id or ""))
    commit(readback.answered(rows, answered_of(command, None)), rows)


def _save_of(row: Checkpoint | None) -> Save | None:
    if row is None:
        return None
    return Save(
        id=row.pk,
        job_id=row.job_id,
        owner=row.job.owner,
        attempt=row.attempt,
        path=row.path,
        step=row.step,
        epoch=row.epoch,
        state=CheckpointState(row.state),
        reason=row.state_reason,
        doubt=row.doubt,
        written_on=row.written_on,
        reader=row.reader,
        heard_s=row.heard_at.timestamp() if row.heard_at is not None else None,
        round_s=row.round_at.timestamp() if row.round_at is not None else None,
        read_s=row.read_s,
        limit_s=float(examine.limit_s(row)),
        shared=not places.is_remote(row.path) and row.kind != LOCAL_KIND,
        ours=not places.why_not_readable(row),
        here=examine.is_under_way(row),
        loads=examine.wants_load(row),
        over=row.job.state in TERMINAL,
    )


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
    writer = _NODE.first(node=row.written_on)
    away = [writer] if writer is not None and not writer.connected else list(mine.filter(connected=False)[:1])
    known = {node.pk: node for node in (*filter(None, (writer,)), *here, *away)}
    busy = set(_AT_WORK(nodes=known))
    told = {order.node_id for order in orders if order.state == CommandState.SUCCEEDED}
    return [
        policy.Holder(
            node_id=node.pk, connected=node.connected, able=node.revision >= REVISION,
            busy=node.pk in busy, asked=node.pk in asked, told=node.pk in told,
        )
        for node in known.values()
    ]  # fmt: skip
