"""Keeping the checkpoint from before a fault: the edge of `changes.due.keeping`, and the database as that reads it.

Called by `incidents`, `certificate`, `recompute`, `apply` and the sweep; `kept_saves` writes. What the ranks do about
it is `trainer.checkpoint.keeper`'s. Decides nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec
from django.conf import settings
from django.db.models import Q, QuerySet

from controlplane.changes.due import keeping as core
from controlplane.changes.due.kinds import Keeps
from controlplane.changes.due.rows import Need, Saver, Sent
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.commands import Body, KeepCheckpoints
from controlplane.protocol.states import CommandState
from controlplane.recovery import course, kept_saves, proof
from controlplane.recovery.course import Mark
from controlplane.recovery.models import Incident, KeptCheckpoint, Recomputation
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events
from controlplane.runtime.clock import now

KIND = "keep_checkpoints"
REVISION = 3
"""Of the protocol: older agents do not know the order."""
MAX_DUE = 20


class KeepingRows(JobRows):
    """Of a job."""

    def base_before(self, incident: str) -> str | None:
        """By the mark of its beginning."""
        job = self.locked
        if settings.RECOMPUTE_S <= 0 or not proof.judges(job):
            return None
        base = _before(job, course.began(Incident.objects.get(pk=incident)))
        return base.pk if base is not None else None

    def needs(self) -> Sequence[Need]:
        """By when each began."""
        rows = KeptCheckpoint.objects.filter(job=self.locked).exclude(due_at=None)
        open_ = Recomputation.objects.filter(job=self.locked, why="").exclude(ordered_at=None)
        taken = set(open_.values_list("incident_id", flat=True))
        return [
            Need(
                incident=row.incident_id,
                checkpoint=row.checkpoint_id,
                path=row.checkpoint.path,
                step=row.checkpoint.step,
                attempt=course.began(row.incident).attempt,
                let_go=row.let_go_at is not None,
                taken=row.incident_id in taken,
            )
            for row in rows.select_related("checkpoint", "incident__job").order_by("since", "pk")
        ]

    def keeps_sent(self, limit: int) -> Sequence[Sent]:
        """By when they were written."""
        rows = Command.objects.filter(job=self.locked, kind=KIND).order_by("-created_at", "-id")[:limit]
        return [Sent(_body(row), CommandState(row.state), row.detail) for row in rows]

    def saver(self) -> Saver | None:
        """Of the replica with the lowest index that computes."""
        ranks = Rank.objects.filter(
            replica__attempt__job=self.locked, replica__attempt__ended_at=None, replica__state__in=LIVE_REPLICA,
            replica__contributing=True, rank=0, released_at=None, node__revision__gte=REVISION,
        ).select_related("replica__attempt")  # fmt: skip
        row = ranks.order_by("-replica__attempt__number", "replica__index").first()
        if row is None:
            return None
        return Saver(row.node_id, row.replica.attempt.number, row.replica.index, row.replica.incarnation)

    def computing(self, path: str) -> Sequence[tuple[int, int]]:
        """Of orders that are open."""
        rows = Recomputation.objects.filter(job=self.locked, path=path, why="").exclude(ordered_at=None)
        return [(row.replica, row.incarnation) for row in rows if row.is_open]

    def resumed(self) -> tuple[int, str] | None:
        """By path and step."""
        attempt = self.locked.attempts.order_by("-number").first()
        if attempt is None or not attempt.resume_path:
            return None
        base = _trusted(self.locked).filter(path=attempt.resume_path, step=attempt.resume_step).first()
        return (attempt.number, base.pk) if base is not None else None


def need(incident: Incident) -> None:
    """Its fault may have to be judged from the checkpoint before it. In the unit of work that opens it."""
    if incident.job is not None:
        rows = KeepingRows(incident.job)
        _commit(core.needed(rows, incident.pk), incident.job)


def let_go(incident: Incident) -> None:
    """Nobody computes from it any more."""
    if incident.job is not None:
        _commit(core.let_go(KeepingRows(incident.job), incident.pk), incident.job)


def end(job: Job) -> None:
    """The job ends otherwise than by its last step, or has ended."""
    _commit(core.ended(KeepingRows(job)), job)


def tend(job: Job) -> None:
    """Its ranks keep what they shall."""
    _commit(core.tended(KeepingRows(job)), job)


def tend_due() -> int:
    """Of each job that is due; returns how many were."""
    due = KeptCheckpoint.objects.filter(due_at__lte=now()).order_by("due_at")
    ids = list(dict.fromkeys(due.values_list("job_id", flat=True)[:MAX_DUE]))
    for job in Job.objects.filter(pk__in=ids):
        tend(job)
    return len(ids)


def _commit(changes: Iterable[Keeps], job: Job) -> None:
    with events.unit_of_work():
        for change in changes:
            kept_saves.carry_out(job, change)


def _body(row: Command) -> KeepCheckpoints | None:
    body = msgspec.convert(row.body, Body)
    return body if isinstance(body, KeepCheckpoints) else None


def base_of(incident: Incident, attempt: Attempt) -> Checkpoint | None:
    """What the recovery is computed again from: what a restart resumed from, else the newest trusted
    checkpoint from before the fault, there still or not (`why_gone`). None: there is none that a single
    replica can load."""
    if attempt.number > course.began(incident).attempt:
        rows = _trusted(attempt.job)
        return rows.filter(path=attempt.resume_path, step=attempt.resume_step).first()
    kept = KeptCheckpoint.objects.filter(incident=incident).select_related("checkpoint").first()
    return kept.checkpoint if kept is not None else _before(attempt.job, course.began(incident))


def why_gone(incident: Incident, base: Checkpoint) -> str:
    """Why nothing can be computed from the base any more; "" where it can."""
    kept = KeptCheckpoint.objects.filter(incident=incident).first()
    if kept is not None and kept.why:
        return kept.why
    if base.state not in GOOD_CHECKPOINTS:
        return f"the checkpoint of step {base.step} from before the fault is {base.state}: {base.state_reason}"
    return ""


def _trusted(job: Job) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(job=job, state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND)


def _before(job: Job, began: Mark) -> Checkpoint | None:
    """The newest one that is complete, of those with no step in it that was committed after `began`."""
    saved = Q(attempt__lt=began.of_attempt) | Q(attempt=began.of_attempt, step__lte=began.step + 1)
    return _trusted(job).filter(saved).order_by("-step", "-epoch").first()
