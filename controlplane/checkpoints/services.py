"""Checkpoints on the trust ladder: reported by ranks, verified by us. The only writer."""

from datetime import datetime

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.present import checkpoint_summary
from controlplane.checkpoints.verify import Verdict, verify_directory
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.services import refresh_job
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState
from controlplane.runtime import events, guard
from controlplane.runtime.clock import after, now
from controlplane.runtime.ids import new_id

VERIFY_DELAY_S = 0.5
KINDS = ("scheduled", "emergency", "manual", "preemption")


def report(job: Job, attempt: Attempt, said: CheckpointReport, *, at: datetime, fenced: bool) -> Checkpoint:
    """A rank's word about a save. `fenced`: it comes from an incarnation that is out, so
    a completed one is not to be trusted."""
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
            started_at=at,
        )
        publish_checkpoint(row, "checkpoint.writing", f"A save of step {said.step} began.")
    if row.state != CheckpointState.WRITING:
        return row
    if fenced or said.state == "failed":
        why = "its writer was evicted before it was complete" if fenced else f"the save failed: {said.error}"
        _move(row, CheckpointState.CORRUPT, why)
    elif said.state == "complete":
        guard.move(
            row,
            "checkpoint",
            CheckpointState.COMPLETE,
            committed_at=at,
            bytes=said.bytes,
            digest=said.digest[:128],
            blocking_s=said.blocking_s,
            total_s=said.total_s,
            verify_due_at=after(VERIFY_DELAY_S),
        )
        publish_checkpoint(row, "checkpoint.complete", f"Step {said.step} is saved ({said.bytes} bytes).")
    return row


def verify_due(limit: int = 4) -> int:
    """Read back what is due; returns how many were looked at. The disk is read outside of
    any transaction."""
    rows = list(Checkpoint.objects.filter(verify_due_at__lte=now()).select_related("job")[:limit])
    for row in rows:
        claimed = Checkpoint.objects.filter(pk=row.pk, verify_due_at=row.verify_due_at).update(verify_due_at=None)
        if claimed:
            apply_verdict(row, verify_directory(row.path, job_id=row.job_id, step=row.step, epoch=row.epoch))
    return len(rows)


def apply_verdict(row: Checkpoint, verdict: Verdict) -> None:
    """Up or off the ladder. A directory this machine cannot see stays `complete`."""
    if verdict.ok is None:
        with events.unit_of_work():
            Checkpoint.objects.filter(pk=row.pk).update(state_reason=verdict.detail)
            publish_checkpoint(row, "checkpoint.unseen", "")
        return
    with events.unit_of_work():
        if verdict.ok and row.state == CheckpointState.COMPLETE:
            _move(row, CheckpointState.VERIFIED, verdict.detail)
        elif not verdict.ok and row.state != CheckpointState.CORRUPT:
            _move(row, CheckpointState.CORRUPT, verdict.detail)


def recheck(job_id: str) -> int:
    """Verify every trusted checkpoint of the job again, soon; returns how many."""
    trusted = (CheckpointState.COMPLETE, CheckpointState.VERIFIED)
    return Checkpoint.objects.filter(job_id=job_id, state__in=trusted).update(verify_due_at=now())


def distrust_if_damaged(job: Job, path: str) -> bool:
    """Read a checkpoint back before anything resumes from it. True when it is damaged: it is
    off the ladder now, and something else must be chosen."""
    trusted = (CheckpointState.COMPLETE, CheckpointState.VERIFIED)
    row = Checkpoint.objects.filter(job=job, path=path, state__in=trusted).first()
    if row is None:
        return False
    verdict = verify_directory(row.path, job_id=row.job_id, step=row.step, epoch=row.epoch)
    if verdict.ok is not False:
        return False
    _move(row, CheckpointState.CORRUPT, verdict.detail)
    return True


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
