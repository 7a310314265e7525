"""A sampled step of a recovery, computed again by another replica on the job's own devices.

Where the undisturbed run on the server's machine does not come, or would not get beyond the
recovery, one step after it is sampled, and a replica (not the one that was replaced, where there
is a choice) is ordered to compute from the checkpoint before the fault up to it, with the shares that
were recorded, once all steps of the job are committed and saved. The job's end waits for that, for
`RECOMPUTE_S` and a margin at most. `policy.recompute` chooses and judges. Called by `certificate`,
`checks`, `said` and `load`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings

from controlplane.changes.due.keeping import MAX_KEPT
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import numbers_of, spec_of
from controlplane.jobs.services import TERMINAL
from controlplane.jobs.step_rows import has_state_hashes, whole, with_parts
from controlplane.policy import recompute as policy
from controlplane.policy.recompute import Asked, Computed, Installed, Numbers, Told, Unclear
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.commands import OrderRecompute
from controlplane.protocol.rank import RecomputeReport
from controlplane.protocol.recompute import MAX_STEPS, Recompute
from controlplane.protocol.spec import Parallelism, micro_batch_count, ranks_per_replica
from controlplane.protocol.states import CommandState
from controlplane.recovery import course, keeping, proof
from controlplane.recovery.course import Mark
from controlplane.recovery.fencing import left_out
from controlplane.recovery.models import Incident, Recomputation, RecomputedRank, ViewRow
from controlplane.runtime import windows
from controlplane.runtime.clock import after, now
from controlplane.runtime.ids import new_id

REVISION = 3
"""Of the protocol: older agents do not know the order."""
MARGIN_S = 30.0
"""Over the limit that the ranks keep themselves: the checkpoint is loaded, the last step finished."""
SETTLE_S = 1.5
REACH = 4.0
"""So much faster than one of the job's devices a server is taken to be at most."""
TOLERANCE, TOLERANCE_BF16 = 1e-5, 1e-2
KIND = "order_recompute"
MAX_LOST = 6
"""So often the order may fail to reach a node's ranks."""
LOST = (CommandState.FAILED, CommandState.SUPERSEDED, CommandState.EXPIRED)


def of(incident: Incident) -> Recomputation | None:
    """What was decided for the incident; None: its losses are compared on the server."""
    return Recomputation.objects.filter(incident=incident).first()


def is_waiting(incident: Incident) -> bool:
    """A replica has the order and has not told yet; or nobody compares on the server, and the first
    steps after the recovery, of which one is to be sampled, are still to come."""
    row = of(incident)
    if row is not None:
        return row.is_open
    return not proof.comes(incident) and proof.read(incident) is None and _start_of(incident) is not None


def tend(incident: Incident) -> Recomputation | None:
    """Sample a step and order it, where that is due; order it again where the replica has gone; give
    it up where the job has ended. In the caller's unit of work."""
    row = of(incident)
    if row is None:
        return _begin(incident)
    if not row.is_open:
        return row
    if row.job.state in TERMINAL:
        if not _lives(row) or row.due_at is None or row.due_at <= now():
            row.why = "the job ended before the step was computed again"
            row.save(update_fields=["why"])
    elif not row.job.trained and (refused := _refused(row)):
        row.why = f"its ranks could not be asked: {refused}"
        row.save(update_fields=["why"])
    elif not row.job.trained and (not _lives(row) or _is_lost(row)):
        _order(row, incident)
    return row


def training_is_over(job: Job) -> None:
    """All steps are committed: from now on the job's end waits, and not for ever."""
    rows = _open_orders(job)
    for row in rows:
        # A replica carries its orders out one after the other.
        turns = sum(each.replica == row.replica for each in rows)
        due_at = after(turns * (settings.RECOMPUTE_S + MARGIN_S))
        Recomputation.objects.filter(pk=row.pk, due_at=None).update(due_at=due_at)
    if rows:
        waiting = Incident.objects.filter(recomputation__job=job, certificate_due_at__isnull=False)
        waiting.update(certificate_due_at=now())


def held_until(job: Job) -> datetime | None:
    """Until when the job's end waits for a replica that computes a step again; None: for nobody."""
    if not job.trained:
        return None
    rows = Recomputation.objects.filter(job=job, why="", due_at__isnull=False)
    return max((row.due_at for row in rows if row.due_at and row.is_open and _lives(row)), default=None)


def take(rank: Rank, said: RecomputeReport) -> bool:
    """What a rank of the replica tells. False: it was not asked, and it changes nothing."""
    replica = rank.replica
    row = Recomputation.objects.filter(
        pk=said.order_id, job_id=replica.attempt.job_id, attempt=replica.attempt.number,
        replica=replica.index, incarnation=replica.incarnation,
    ).first()  # fmt: skip
    if row is not None and not row.why:
        # A repeat changes nothing.
        report = RecomputedRank(recomputation=row, rank=rank.rank, report=msgspec.to_builtins(said))
        RecomputedRank.objects.bulk_create([report], ignore_conflicts=True)
    return row is not None


def verdict(row: Recomputation) -> policy.Verdict:
    """Of what was told so far, against what was committed."""
    sample = row.until_step - 1
    if row.is_open:
        words = f"replica {row.replica} computes steps {row.from_step} to {sample} again once all steps are committed"
        return policy.Verdict(None, f"not judged yet: {words}")
    if not row.until_step:
        return policy.Verdict(None, f"not judged: {row.why}")
    steps = _newest(row.job, row.from_step, sample)
    committed = {each.step: Numbers(each.loss, each.grad_norm, finite=each.loss is not None) for each in steps}
    newest = next((each for each in steps if each.step == sample), None)
    hashes = {
        int(rank): next(iter(told.values())) for rank, told in (newest.parameter_hashes if newest else {}).items()
    }
    found = policy.judge(_asked(row), committed=committed, hashes=hashes, told=_told(row))
    if found.ok is None and row.why and not any(told.error for told in _told(row).values()):
        return policy.Verdict(None, f"not judged: {row.why}")
    where = f"replica {row.replica} of the job, at its end, from the checkpoint of step {row.from_step}"
    return policy.Verdict(found.ok, f"{where}: {found.detail}", found.value)


def _asked(row: Recomputation) -> Asked:
    bf16 = spec_of(row.job).spec.training.dtype != "fp32"
    return Asked(
        from_step=row.from_step,
        until_step=row.until_step,
        ranks=row.ranks,
        exact=row.exact,
        tolerance=TOLERANCE_BF16 if bf16 else TOLERANCE,
    )


def _told(row: Recomputation) -> dict[int, Told]:
    reports = {each.rank: msgspec.convert(each.report, RecomputeReport) for each in row.told.order_by("rank")}
    return {
        rank: Told(
            steps={each.step: Numbers(each.loss, each.grad_norm, each.finite) for each in said.steps},
            state_hash=said.state_hash,
            on=said.on,
            error=said.error,
        )
        for rank, said in reports.items()
    }


def _begin(incident: Incident) -> Recomputation | None:
    """None: nothing is to be sampled, or nothing can be yet."""
    job, start = incident.job, _start_of(incident)
    if job is None or incident.ended_at is None or start is None:
        return None
    attempt, base = start
    after_it = _after(job, attempt, course.ended(incident))
    if not after_it or _is_in_reach(incident, base, after_it[0]):
        return None
    row = Recomputation(
        id=new_id("rec"), incident=incident, job=job, attempt=attempt.number, from_step=base.step, path=base.path,
        ranks=ranks_per_replica(msgspec.convert(attempt.layout, Parallelism)),
    )  # fmt: skip
    steps = [step.step for step in after_it if has_state_hashes(step)] or [step.step for step in after_it]
    row.why = keeping.why_gone(incident, base) or _sample(row, steps)
    row.save(force_insert=True)
    if not row.why:
        _order(row, incident)
    return row


def _start_of(incident: Incident) -> tuple[Attempt, Checkpoint] | None:
    """The attempt that trains on, and the checkpoint to compute from; None: nothing will be sampled."""
    job = incident.job
    if job is None or settings.RECOMPUTE_S <= 0 or not proof.judges(job) or job.trained or job.state in TERMINAL:
        return None
    attempt = job.attempts.order_by("-number").first()
    base = keeping.base_of(incident, attempt) if attempt is not None else None
    return (attempt, base) if attempt is not None and base is not None else None


def _sample(row: Recomputation, steps: list[int]) -> str:
    """Choose the step and write the order into the row; why that cannot be, else ""."""
    job = row.job
    if len(_open_orders(job)) >= MAX_KEPT:
        return f"steps of {MAX_KEPT} other recoveries of this job are computed again already, and no more are"
    step_s, replicas = numbers_of(job).step_time_s, job.attempts.get(number=row.attempt).replicas
    cost_s = step_s * replicas if step_s else None
    near = policy.candidates(steps, from_step=row.from_step, cost_s=cost_s, limit_s=settings.RECOMPUTE_S)
    if not near:
        away = min(steps) + 1 - row.from_step
        return (
            f"the first step after the recovery is {away} steps from the checkpoint before, too many to compute again"
        )
    sample = policy.choose(near, seed=f"{row.incident_id}/{row.from_step}")
    rows = _newest(job, row.from_step, sample)
    computed = [Computed(step=each.step, by_replica=_ids(each)) for each in rows]
    try:
        if len(rows) != sample + 1 - row.from_step:
            raise Unclear("a step in between was not reported")
        plan = policy.plan_of(computed, _installs(job), micro_batches=micro_batch_count(spec_of(job).spec))
    except Unclear as error:
        return str(error)
    row.until_step, row.exact = sample + 1, plan.exact
    row.spans = msgspec.to_builtins(plan.spans)
    return ""


def _order(row: Recomputation, incident: Incident) -> None:
    """Hand it to a replica that holds the state, by chance among those that were not replaced."""
    job = Job.objects.get(pk=row.job_id)
    out = left_out(job, began=course.began(incident), ended=course.ended(incident))
    replaced = {who.who[0] for who in out}
    rows = Replica.objects.filter(
        attempt__job=job, attempt__number=row.attempt, attempt__ended_at=None, contributed=True, state__in=LIVE_REPLICA
    )
    live = {each.index: each for each in rows if each.contributing}
    nodes = {index: _nodes(each) for index, each in live.items()}
    able = [index for index, found in nodes.items() if found and all(node.revision >= REVISION for node in found)]
    if not able:
        return
    busy = {each.replica for each in _open_orders(job) if each.pk != row.pk}
    free = [index for index in able if index not in replaced and index not in busy]
    index = policy.choose(free or [index for index in able if index not in replaced] or able, seed=row.id)
    chosen = live[index]
    row.replica, row.incarnation, row.ordered_at = chosen.index, chosen.incarnation, now()
    row.save(update_fields=["replica", "incarnation", "ordered_at"])
    order = Recompute(
        order_id=row.id,
        path=row.path,
        from_step=row.from_step,
        until_step=row.until_step,
        spans=msgspec.convert(row.spans, Recompute.__annotations__["spans"]),
        limit_s=settings.RECOMPUTE_S,
    )
    body = OrderRecompute(
        job_id=job.id, attempt=row.attempt, replica=chosen.index, incarnation=chosen.incarnation, order=order
    )
    ids = sorted({node.id for node in nodes[index]})
    keeping.tend(job)  # First: behind the last save nothing is kept but for who computes.
    dispatch.enqueue_all(body, node_ids=ids, job_id=job.id, attempt=row.attempt, epoch=job.epoch)


def _after(job: Job, attempt: Attempt, ended: Mark) -> list[StepRecord]:
    """The steps of this attempt that were committed after the recovery and are told whole."""
    found = StepRecord.objects.filter(ended.after(), job=job, attempt=attempt.number).order_by("step")
    rows = with_parts(found[:MAX_STEPS])
    while rows and windows.age_s(rows[-1].at) < SETTLE_S:
        rows.pop()
    return rows


def _is_in_reach(incident: Incident, base: Checkpoint, first: StepRecord) -> bool:
    """The undisturbed run on the server's machine gets beyond the recovery."""
    if not proof.comes(incident) and proof.read(incident) is None:
        return False
    job = base.job
    training, numbers = spec_of(job).spec.training, numbers_of(job)
    delay_s = training.step_delay_s * micro_batch_count(spec_of(job).spec)
    attempt = job.attempts.order_by("-number").first()
    gpus = attempt.replicas * ranks_per_replica(msgspec.convert(attempt.layout, Parallelism)) if attempt else 1
    alone_s = max(0.0, (numbers.step_time_s or 0.0) * gpus - delay_s) / REACH
    return (first.step + 1 - base.step) * alone_s <= proof.TRAIN_S


def _open_orders(job: Job) -> list[Recomputation]:
    """What its replicas compute again at its end."""
    rows = Recomputation.objects.filter(job=job, why="").order_by("id")
    return [row for row in rows if row.is_open]


def _newest(job: Job, first: int, last: int) -> list[StepRecord]:
    """Each step from the newest attempt that trained it, in order."""
    rows = StepRecord.objects.filter(job=job, step__gte=first, step__lte=last).order_by("attempt", "step")
    found = {row.step: row for row in rows}
    return whole(found[step] for step in sorted(found))


def _ids(step: StepRecord) -> dict[int, tuple[int, ...]]:
    return {int(replica): tuple(ids) for replica, ids in step.micro_batches.items()}


def _installs(job: Job) -> list[Installed]:
    rows: Iterable[dict[str, Any]] = ViewRow.objects.filter(job=job, install__isnull=False).values_list(
        "install", flat=True
    )
    return [
        Installed(
            epoch=each["epoch"],
            step=each["step"],
            done={done["replica"]: tuple(done["micro_batches"]) for done in each.get("done", ())},
        )
        for each in rows
    ]


def _nodes(replica: Replica) -> list[Node]:
    """Of its ranks; none where one of them has ended."""
    ranks = list(replica.ranks.select_related("node"))
    return [] if any(rank.released_at is not None for rank in ranks) else [rank.node for rank in ranks]


def _lives(row: Recomputation) -> bool:
    """Every rank of the replica that has the order runs."""
    ranks = Rank.objects.filter(
        replica__attempt__job_id=row.job_id, replica__attempt__number=row.attempt, replica__index=row.replica,
        replica__incarnation=row.incarnation,
    )  # fmt: skip
    return ranks.exists() and not ranks.exclude(released_at=None).exists()


def _refused(row: Recomputation) -> str:
    """What the nodes said when the order did not reach the ranks so often that it never will; else ""."""
    lost = Command.objects.filter(job_id=row.job_id, kind=KIND, state__in=LOST, body__order__order_id=row.id)
    tries = lost.count() / max(1, lost.values("node_id").distinct().count())
    return str(lost.order_by("-created_at")[0].detail) if tries >= MAX_LOST else ""


def _is_lost(row: Recomputation) -> bool:
    """The order did not reach the ranks."""
    sent = Command.objects.filter(job_id=row.job_id, kind=KIND, body__order__order_id=row.id)
    sent = sent.filter(created_at__gte=row.ordered_at or now())
    return sent.filter(state__in=LOST).exists() if row.ordered_at else True
