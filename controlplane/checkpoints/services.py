"""Checkpoints on the trust ladder: reported by ranks, read back by nodes or by us. The only writer.

Who reads is chosen above (`recovery.readers`), which hands rows to nodes and applies what they say.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q

from controlplane.changes.due.readback import LEASE_S, READABLE, VERIFY_DELAY_S
from controlplane.changes.saves import moves
from controlplane.checkpoints import places
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.places import is_remote
from controlplane.checkpoints.present import checkpoint_summary
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND, spec_of
from controlplane.jobs.services import refresh_job
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState
from controlplane.runtime import events, guard
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import LostRace
from controlplane.runtime.ids import new_id

REFUSED = "checkpoint.refused"
DOUBT_CHARS = 500
KINDS = ("scheduled", "emergency", "manual", "preemption", LOCAL_KIND)


class NotOurs(Exception):
    """A rank has named a place that is none of its job's. The message is for people."""


def report(
    job: Job, attempt: Attempt, said: CheckpointReport, *, at: datetime, fenced: bool, node_id: str = ""
) -> Checkpoint:
    """A rank's word about a save, from node `node_id`. `fenced`: it comes from an incarnation that is
    out, so a completed one is not to be trusted. Raises NotOurs: nothing was stored, and nothing is read."""
    if why := places.why_not_ours(attempt, said):
        _tell_refused(job, why)
        raise NotOurs(why)
    row = Checkpoint.objects.filter(job=job, path=said.path).first()
    if row is None:
        row = Checkpoint.objects.create(
            id=new_id("ckpt"),
            job=job,
            attempt=attempt.number,
            step=said.step,
            epoch=said.epoch,
            path=said.path,
            kind=said.kind if said.kind in KINDS else "scheduled",
            layout=attempt.layout,
            written_on=node_id,
            started_at=at,
        )
        if row.kind != LOCAL_KIND:
            publish_checkpoint(row, "checkpoint.writing", f"A save of step {said.step} began.")
    copies = spec_of(job).spec.checkpoint.local.copies
    found = moves(row.state, row.kind, said, fenced=fenced, copies=copies)
    for move in found:
        if move.to == CheckpointState.COMPLETE:
            _complete(row, said, at=at, node_id=node_id)
        else:
            _move(row, move.to, move.why)
    if any(move.to == CheckpointState.COMPLETE for move in found):
        _mark_pruned(job, local=row.kind == LOCAL_KIND, oldest_kept=said.oldest_kept, kept=said.kept)
    return row


def _complete(row: Checkpoint, said: CheckpointReport, *, at: datetime, node_id: str) -> None:
    """Its marker is committed, as the rank of this node reports."""
    local = row.kind == LOCAL_KIND
    guard.move(
        row,
        "checkpoint",
        CheckpointState.COMPLETE,
        committed_at=at,
        bytes=said.bytes,
        digest=said.digest[:128],
        written_on=node_id,
        holders=[sorted(set(nodes)) for nodes in said.holders] if local else [],
        blocking_s=said.blocking_s,
        total_s=said.total_s,
        verify_due_at=None if local else after(VERIFY_DELAY_S),
    )
    publish_checkpoint(row, "checkpoint.complete", f"Step {said.step} is saved ({said.bytes} bytes).")


def told_by(job: Job, path: str) -> str:
    """The node whose rank told of it; "": nobody has."""
    return Checkpoint.objects.filter(job=job, path=path).values_list("written_on", flat=True).first() or ""


def pruned(job: Job, said: CheckpointsPruned) -> None:
    """A rank's word about a removal that came with no save."""
    _mark_pruned(job, local=False, oldest_kept=said.oldest_kept, kept=said.kept)


def _tell_refused(job: Job, why: str) -> None:
    """Once a job: what a rank can repeat as often as it likes is counted, not told again."""
    if not events.was_told(REFUSED, job.id):
        sentence = f"A checkpoint was refused: {why}. Save below the job's own directory; its ranks receive the path."
        events.publish(REFUSED, sentence, job_id=job.id)


def _mark_pruned(job: Job, *, local: bool, oldest_kept: tuple[int, int], kept: Sequence[tuple[int, int]]) -> None:
    """What retention has taken from this tier is off the ladder: no page and no restart offers
    it. `oldest_kept` is (epoch, step), (0, 0) where nothing was said, and `kept` are those older ones
    that stay; what a report that was lost did not say, the next one does."""
    epoch, step = oldest_kept
    older = Checkpoint.objects.filter(Q(epoch__lt=epoch) | Q(epoch=epoch, step__lt=step), job=job)
    tier = older.filter(kind=LOCAL_KIND) if local else older.exclude(kind=LOCAL_KIND)
    for number in kept:
        tier = tier.exclude(epoch=number[0], step=number[1])
    for row in tier.filter(state__in=(*GOOD_CHECKPOINTS, CheckpointState.CORRUPT), committed_at__isnull=False):
        was = "" if row.state != CheckpointState.CORRUPT else f"; it was corrupt: {row.state_reason}"
        _let_go(row)
        # A worker may be reading it back: whoever comes second finds it moved.
        with contextlib.suppress(LostRace):
            guard.move(row, "checkpoint", CheckpointState.PRUNED, state_reason=f"retention removed it{was}")
            publish_checkpoint(row, "checkpoint.pruned", "")


def claim_due(limit: int = 4) -> list[Checkpoint]:
    """Those that must be looked at now, each taken by one caller: he hands it on, or reads here."""
    due = Checkpoint.objects.filter(verify_due_at__lte=now()).order_by("verify_due_at")
    rows = list(due.select_related("job")[:limit])
    return [
        row
        for row in rows
        if Checkpoint.objects.filter(pk=row.pk, verify_due_at=row.verify_due_at).update(verify_due_at=after(LEASE_S))
    ]


def observe(checkpoint_id: str, columns: dict[str, Any], kind: str = "") -> None:
    """Columns that are no state; an event of this kind says so, where there is one."""
    Checkpoint.objects.filter(pk=checkpoint_id).update(**columns)
    if kind:
        publish_checkpoint(Checkpoint.objects.get(pk=checkpoint_id), kind, "")


def move(checkpoint_id: str, to: str, reason: str) -> None:
    """Up or off the ladder. Raises LostRace where it is not in the state that was read, IllegalTransition."""
    _move(Checkpoint.objects.get(pk=checkpoint_id), to, reason)


def _let_go(row: Checkpoint) -> None:
    """It is off the ladder: nobody looks at it again, but to end whoever reads it."""
    rows = Checkpoint.objects.filter(pk=row.pk)
    rows.filter(reader="").update(verify_due_at=None)
    rows.exclude(reader="").update(verify_due_at=now())


def distrust_if_outside(job: Job, path: str) -> bool:
    """Before anything resumes from a checkpoint: is its path still one of its job's? True when it is
    not, and off the ladder now. Reads no byte of it: what is damaged, its own verification finds,
    and the ranks, who compare every file before they train on it."""
    row = Checkpoint.objects.filter(job=job, path=path, state__in=READABLE).exclude(kind=LOCAL_KIND).first()
    why = places.why_not_readable(row) if row is not None else ""
    if row is None or not why:
        return False
    _move(row, CheckpointState.CORRUPT, why)
    return True


def refused(job: Job, path: str, *, said: str) -> None:
    """A rank could not load what its attempt resumes from. One that this machine can read is
    doubted until it was read back, as work of its own: a fault of the software must not burn sound
    checkpoints. Of any other the rank's word is all there is."""
    row = Checkpoint.objects.filter(job=job, path=path, state__in=GOOD_CHECKPOINTS).first()
    if row is None:
        return
    if not is_remote(row.path) and row.kind != LOCAL_KIND:
        Checkpoint.objects.filter(pk=row.pk).update(doubt=said[:DOUBT_CHARS] or "it says nothing", verify_due_at=now())
        publish_checkpoint(
            row,
            "checkpoint.doubted",
            f"Its ranks could not load the checkpoint of step {row.step}; it is read back: {said}",
        )
        return
    # Another of its ranks may have said so at the same moment.
    with contextlib.suppress(LostRace):
        _move(row, CheckpointState.CORRUPT, f"its ranks refused it: {said}")


def demote(job: Job, checkpoint_id: str, why: str) -> None:
    """Its bytes are right and its numbers are not: nothing resumes from it again."""
    row = Checkpoint.objects.filter(job=job, id=checkpoint_id, state__in=GOOD_CHECKPOINTS).first()
    if row is None:
        return
    _let_go(row)
    # Retention may take it at the same moment.
    with contextlib.suppress(LostRace):
        _move(row, CheckpointState.CORRUPT, f"its bytes are right, its numbers are not: {why}")


def suspect(job: Job, checkpoint_id: str, step: int) -> None:
    """Its numbers may be wrong: those of the save of `step`, which was trained from it, went bad."""
    row = Checkpoint.objects.filter(job=job, id=checkpoint_id, state__in=GOOD_CHECKPOINTS).first()
    if row is None:
        return
    Checkpoint.objects.filter(pk=row.pk).update(suspect_step=step)
    publish_checkpoint(
        row,
        "checkpoint.suspect",
        f"The checkpoint of step {row.step} is suspect: what was trained from it, and saved at step {step}, went bad.",
    )


def _move(row: Checkpoint, to: str, reason: str) -> None:
    guard.move(row, "checkpoint", to, state_reason=reason)
    publish_checkpoint(row, f"checkpoint.{to}", f"Checkpoint of step {row.step} is {to}: {reason}")


def publish_checkpoint(row: Checkpoint, kind: str, sentence: str) -> None:
    """An event with the checkpoint's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=row.job_id,
        entity="checkpoint",
        entity_id=row.id,
        patch=lambda: checkpoint_summary(Checkpoint.objects.get(pk=row.pk)),
    )
    refresh_job(row.job_id)
