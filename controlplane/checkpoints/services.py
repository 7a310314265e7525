"""Checkpoints on the trust ladder: reported by ranks, verified by us. The only writer."""

import contextlib
from datetime import datetime

from django.db.models import Q

from controlplane.checkpoints import places
from controlplane.checkpoints.examine import examine, wants_load
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.places import is_remote
from controlplane.checkpoints.present import checkpoint_summary
from controlplane.checkpoints.readback import read_back
from controlplane.checkpoints.verify import Verdict
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND, spec_of
from controlplane.jobs.services import refresh_job
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState
from controlplane.runtime import events, guard
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import LostRace
from controlplane.runtime.ids import new_id

REFUSED = "checkpoint.refused"
VERIFY_DELAY_S = 0.5
LOOK_AGAIN_S = 1.0
LEASE_S = 600.0
"""How long a checkpoint that is being read counts as taken; then another worker begins anew."""
KINDS = ("scheduled", "emergency", "manual", "preemption", LOCAL_KIND)
TRUSTED_READABLE = (CheckpointState.COMPLETE, CheckpointState.VERIFIED, CheckpointState.RESTORE_TESTED)


class NotOurs(Exception):
    """A rank has named a place that is none of its job's. The message is for people."""


def report(job: Job, attempt: Attempt, said: CheckpointReport, *, at: datetime, fenced: bool) -> Checkpoint:
    """A rank's word about a save. `fenced`: it comes from an incarnation that is out, so
    a completed one is not to be trusted. Raises NotOurs: nothing was stored, and nothing is read."""
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
            started_at=at,
        )
        if row.kind != LOCAL_KIND:
            publish_checkpoint(row, "checkpoint.writing", f"A save of step {said.step} began.")
    if row.state != CheckpointState.WRITING:
        return row
    if fenced or said.state == "failed":
        why = "its writer was evicted before it was complete" if fenced else f"the save failed: {said.error}"
        _move(row, CheckpointState.CORRUPT, why)
    elif said.state == "complete":
        local = row.kind == LOCAL_KIND
        guard.move(
            row,
            "checkpoint",
            CheckpointState.COMPLETE,
            committed_at=at,
            bytes=said.bytes,
            digest=said.digest[:128],
            holders=[sorted(set(nodes)) for nodes in said.holders] if local else [],
            blocking_s=said.blocking_s,
            total_s=said.total_s,
            verify_due_at=None if local else after(VERIFY_DELAY_S),
        )
        publish_checkpoint(row, "checkpoint.complete", f"Step {said.step} is saved ({said.bytes} bytes).")
        if local:
            _climb_local(row, wanted=spec_of(job).spec.checkpoint.local.copies)
        _mark_pruned(job, local=local, oldest_kept=said.oldest_kept)
    return row


def _tell_refused(job: Job, why: str) -> None:
    """Once a job: what a rank can repeat as often as it likes is counted, not told again."""
    if not events.was_told(REFUSED, job.id):
        sentence = f"A checkpoint was refused: {why}. Save below the job's own directory, which its ranks are told."
        events.publish(REFUSED, sentence, job_id=job.id)


def _climb_local(row: Checkpoint, *, wanted: int) -> None:
    """Every node has compared what it holds with the digest before it said so; how many hold
    each shard is in the report."""
    fewest = min((len(nodes) for nodes in row.holders), default=0)
    if fewest < 1:
        _move(row, CheckpointState.CORRUPT, "a shard of it is on no node")
        return
    _move(row, CheckpointState.VERIFIED, "each node compared what it holds with the digest")
    if fewest > max(1, wanted):
        _move(row, CheckpointState.REPLICATED, f"each shard is on {fewest} nodes")


def _mark_pruned(job: Job, *, local: bool, oldest_kept: tuple[int, int]) -> None:
    """What retention has taken from this tier is off the ladder: no page and no restart offers
    it. `oldest_kept` is (epoch, step), (0, 0) where nothing was said; what a report that was
    lost did not say, the next one does."""
    epoch, step = oldest_kept
    older = Checkpoint.objects.filter(Q(epoch__lt=epoch) | Q(epoch=epoch, step__lt=step), job=job)
    tier = older.filter(kind=LOCAL_KIND) if local else older.exclude(kind=LOCAL_KIND)
    for row in tier.filter(state__in=(*GOOD_CHECKPOINTS, CheckpointState.CORRUPT), committed_at__isnull=False):
        was = "" if row.state != CheckpointState.CORRUPT else f"; it was corrupt: {row.state_reason}"
        Checkpoint.objects.filter(pk=row.pk).update(verify_due_at=None)
        # A worker may be reading it back: whoever comes second finds it moved.
        with contextlib.suppress(LostRace):
            guard.move(row, "checkpoint", CheckpointState.PRUNED, state_reason=f"retention removed it{was}")
            publish_checkpoint(row, "checkpoint.pruned", "")


def verify_due(limit: int = 4) -> int:
    """Read back what is due, and have loaded what is to be; returns how many were looked at.
    The disk is read outside of any transaction."""
    rows = list(Checkpoint.objects.filter(verify_due_at__lte=now()).select_related("job")[:limit])
    for row in rows:
        lease = after(LEASE_S)
        if Checkpoint.objects.filter(pk=row.pk, verify_due_at=row.verify_due_at).update(verify_due_at=lease):
            _look(row)
    return len(rows)


def _look(row: Checkpoint) -> None:
    """One look at a claimed row: read it here, or have it examined in a process of its own."""
    verdict: Verdict | None
    if is_remote(row.path) or (row.state == CheckpointState.VERIFIED and wants_load(row)):
        verdict = examine(row)
    else:
        verdict = read_back(row)
    if verdict is None:
        _due(row, LOOK_AGAIN_S)
        return
    try:
        apply_verdict(row, verdict)
    except LostRace:
        return  # Removed by retention meanwhile, or refused by its ranks: there is nothing to climb.
    # The rung above: what has read back here is loaded next, if the job wants that.
    climbs = bool(verdict.ok) and row.state == CheckpointState.VERIFIED and not verdict.loaded
    _due(row, VERIFY_DELAY_S if climbs and wants_load(row) else None)


def _due(row: Checkpoint, in_s: float | None) -> None:
    Checkpoint.objects.filter(pk=row.pk).update(verify_due_at=None if in_s is None else after(in_s))


def apply_verdict(row: Checkpoint, verdict: Verdict) -> None:
    """Up or off the ladder. What cannot be judged from here stays where it is, with the reason."""
    if verdict.ok is None:
        with events.unit_of_work():
            Checkpoint.objects.filter(pk=row.pk).update(state_reason=verdict.detail)
            publish_checkpoint(row, "checkpoint.unseen", "")
        return
    with events.unit_of_work():
        if verdict.ok and row.state == CheckpointState.COMPLETE:
            _move(row, CheckpointState.VERIFIED, verdict.detail)
        if verdict.loaded and row.state == CheckpointState.VERIFIED:
            _move(row, CheckpointState.RESTORE_TESTED, verdict.detail)
        elif not verdict.ok and row.state != CheckpointState.CORRUPT:
            _move(row, CheckpointState.CORRUPT, verdict.detail)


def recheck(job_id: str) -> int:
    """Verify every trusted checkpoint of the job again, soon; returns how many."""
    rows = Checkpoint.objects.filter(job_id=job_id, state__in=TRUSTED_READABLE)
    return rows.exclude(kind=LOCAL_KIND).update(verify_due_at=now())


def distrust_if_damaged(job: Job, path: str) -> bool:
    """Read a checkpoint back before anything resumes from it. True when it is damaged: it is
    off the ladder now, and something else must be chosen."""
    row = Checkpoint.objects.filter(job=job, path=path, state__in=TRUSTED_READABLE).exclude(kind=LOCAL_KIND).first()
    if row is None:
        return False
    if is_remote(row.path):
        # Ranks compare what they fetch before they train on it, and say so (`refused`).
        why = places.why_not_readable(row)
        verdict = Verdict(ok=False if why else None, detail=why)
    else:
        verdict = read_back(row)
    if verdict.ok is not False:
        return False
    _move(row, CheckpointState.CORRUPT, verdict.detail)
    return True


def refused(job: Job, path: str, *, said: str) -> None:
    """A rank could not load what its attempt resumes from. One that this machine can read is
    judged by what reads back: a fault of the software must not burn sound checkpoints. Of any
    other the rank's word is all there is; one that could not read the storage says nothing here."""
    row = Checkpoint.objects.filter(job=job, path=path, state__in=GOOD_CHECKPOINTS).first()
    if row is None:
        return
    elsewhere = is_remote(row.path) or row.kind == LOCAL_KIND
    verdict = Verdict(ok=None, detail="it is not visible from here") if elsewhere else read_back(row)
    if verdict.ok:
        return
    # Another of its ranks may have said so at the same moment.
    with contextlib.suppress(LostRace):
        _move(row, CheckpointState.CORRUPT, verdict.detail if verdict.ok is False else f"its ranks refused it: {said}")


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
