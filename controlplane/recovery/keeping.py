"""The checkpoint from before a fault, kept from the moment the incident opens until it is judged.

Retention counts saves, and a recovery may outlast any number of them: the checkpoint from which a step
is computed again (`recovery.recompute`) would be gone before anybody could ask for it. So it is
written down when the incident opens, and one of the job's ranks is told which checkpoints to keep beyond
their time (`trainer.checkpoint.keeper`): whoever saves finds that beside them. At most MAX_KEPT a job; the
oldest need gives way, and its certificate says so. It is let go once the certificate is final, the need
is given up, or the job ends. Called by `incidents`, `certificate`, `recompute`, `apply` and the sweep.
"""

import msgspec
from django.conf import settings
from django.db.models import Q, QuerySet

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, LOCAL_KIND
from controlplane.jobs.services import TERMINAL
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.commands import Body, KeepCheckpoints
from controlplane.protocol.keeping import KeptSave
from controlplane.protocol.states import CommandState, JobState
from controlplane.recovery import course, proof
from controlplane.recovery.course import Mark
from controlplane.recovery.models import Incident, KeptCheckpoint, Recomputation
from controlplane.runtime import events
from controlplane.runtime.clock import after, now

MAX_KEPT = 2
"""Checkpoints of a job, beyond its retention: each is a whole state on its storage."""
KIND = "keep_checkpoints"
REVISION = 3
"""Of the protocol: older agents do not know the order."""
LOST = (CommandState.FAILED, CommandState.SUPERSEDED, CommandState.EXPIRED)
MAX_LOST = 6
"""So often one replica's rank may fail to be told."""
SOON_S, CALM_S = 1.0, 15.0
MAX_DUE = 20


def need(incident: Incident) -> None:
    """Its fault may have to be judged from the checkpoint before it. In the unit of work that opens it."""
    job = incident.job
    if job is None or settings.RECOMPUTE_S <= 0 or job.trained or job.state in TERMINAL or not proof.judges(job):
        return
    base = _before(job, course.began(incident))
    if base is None:
        return
    KeptCheckpoint.objects.create(incident=incident, job=job, checkpoint=base, since=now(), due_at=now())
    _make_room(job)
    tend(job)


def let_go(incident: Incident, why: str = "") -> None:
    """Nobody computes from it any more: it was judged, or (`why`) given up."""
    row = KeptCheckpoint.objects.filter(incident=incident, let_go_at=None).select_related("job").first()
    if row is not None:
        _let_go(row, why)
        tend(row.job)


def end(job: Job) -> None:
    """The job ends otherwise than by its last step, or has ended: its ranks hear it before they leave."""
    rows = KeptCheckpoint.objects.filter(job=job).exclude(due_at=None)
    if not rows.exists():
        return
    rows.filter(let_go_at=None).update(let_go_at=now(), why="the job ended before it was judged")
    if not job.trained and job.state not in TERMINAL:
        tend(job)
    rows.update(due_at=None)


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


def tend_due() -> int:
    """See to it that the ranks of each job keep what they shall; returns how many jobs were looked at."""
    due = KeptCheckpoint.objects.filter(due_at__lte=now()).order_by("due_at")
    ids = list(dict.fromkeys(due.values_list("job_id", flat=True)[:MAX_DUE]))
    for job in Job.objects.filter(pk__in=ids):
        tend(job)
    return len(ids)


def tend(job: Job) -> None:
    """Tell a rank of the job what it shall keep, where it was not told yet or that was lost."""
    if job.state in TERMINAL:
        end(job)
        return
    with events.unit_of_work():
        rows = KeptCheckpoint.objects.filter(job=job).exclude(due_at=None)
        _follow_restart(job, rows)
        again_s = _tell(job, _saves(job))
        rows.filter(let_go_at=None).update(due_at=after(again_s or CALM_S))
        rows.exclude(let_go_at=None).update(due_at=None if again_s is None else after(again_s))


def _tell(job: Job, saves: tuple[KeptSave, ...]) -> float | None:
    """Seconds until it is to be looked at again; None: the ranks keep what they shall."""
    sent = list(Command.objects.filter(job=job, kind=KIND).order_by("-created_at", "-id")[:MAX_LOST])
    last = msgspec.convert(sent[0].body, Body) if sent else None
    handed_over = bool(sent) and sent[0].state == CommandState.SUCCEEDED
    if not saves and (last is None or (handed_over and isinstance(last, KeepCheckpoints) and not last.saves)):
        return None
    whom = _whom(job)
    if whom is None:
        return CALM_S if job.state == JobState.PENDING else SOON_S
    replica = whom.replica
    body = KeepCheckpoints(
        job_id=job.id, attempt=replica.attempt.number, replica=replica.index, incarnation=replica.incarnation,
        saves=saves,
    )  # fmt: skip
    if last == body and sent[0].state not in LOST:
        return None if handed_over else SOON_S
    if len(sent) == MAX_LOST and all(row.state in LOST and msgspec.convert(row.body, Body) == body for row in sent):
        why = f"the checkpoint from before the fault was not kept: the command to its ranks failed: {sent[0].detail}"
        KeptCheckpoint.objects.filter(job=job, let_go_at=None).update(let_go_at=now(), why=why)
        return None
    dispatch.enqueue(body, node_id=whom.node_id, job_id=job.id, attempt=body.attempt, epoch=job.epoch)
    return SOON_S


def _saves(job: Job) -> tuple[KeptSave, ...]:
    """What is to be kept, with who computes from it."""
    by: dict[str, set[tuple[int, int]]] = {
        row.checkpoint.path: set()
        for row in KeptCheckpoint.objects.filter(job=job, let_go_at=None).select_related("checkpoint")
    }
    for row in Recomputation.objects.filter(job=job, path__in=by, why="").exclude(ordered_at=None):
        if row.is_open:
            by[row.path].add((row.replica, row.incarnation))
    return tuple(KeptSave(path.rpartition("/")[2], tuple(sorted(by[path]))) for path in sorted(by))


def _whom(job: Job) -> Rank | None:
    """Rank 0 of the replica that saves."""
    ranks = Rank.objects.filter(
        replica__attempt__job=job, replica__attempt__ended_at=None, replica__state__in=LIVE_REPLICA,
        replica__contributing=True, rank=0, released_at=None, node__revision__gte=REVISION,
    ).select_related("replica__attempt")  # fmt: skip
    return ranks.order_by("-replica__attempt__number", "replica__index").first()


def _follow_restart(job: Job, rows: QuerySet[KeptCheckpoint]) -> None:
    """What a restart resumed from is what its recovery is judged from."""
    attempt = job.attempts.order_by("-number").first()
    if attempt is None or not attempt.resume_path:
        return
    base = _trusted(job).filter(path=attempt.resume_path, step=attempt.resume_step).first()
    if base is not None:
        since = rows.filter(let_go_at=None, incident__began__attempt__lt=attempt.number)
        since.update(checkpoint=base)


def _make_room(job: Job) -> None:
    """The oldest need gives way, of those that nobody computes from already."""
    ordered = Recomputation.objects.filter(job=job, why="").exclude(ordered_at=None).values("incident_id")
    rows = list(KeptCheckpoint.objects.filter(job=job, let_go_at=None).select_related("checkpoint").order_by("since"))
    free = [row for row in rows if row.incident_id not in {each["incident_id"] for each in ordered}]
    while len({row.checkpoint_id for row in rows}) > MAX_KEPT and free:
        gone = free.pop(0)
        rows.remove(gone)
        step = gone.checkpoint.step
        _let_go(
            gone,
            f"the checkpoint of step {step} from before the fault was given up for those of other faults:"
            f" {MAX_KEPT} of a job are kept beyond its retention",
        )


def _let_go(row: KeptCheckpoint, why: str) -> None:
    KeptCheckpoint.objects.filter(pk=row.pk).update(let_go_at=now(), why=why, due_at=now())


def _trusted(job: Job) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(job=job, state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND)


def _before(job: Job, began: Mark) -> Checkpoint | None:
    """The newest one that is complete, of those with no step in it that was committed after `began`."""
    saved = Q(attempt__lt=began.of_attempt) | Q(attempt=began.of_attempt, step__lte=began.step + 1)
    return _trusted(job).filter(saved).order_by("-step", "-epoch").first()
