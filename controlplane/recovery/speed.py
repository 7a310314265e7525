"""Timing reports to rows, rows to straggler scores, scores to findings.

A report only writes its own row. The ranks of a job are scored when each of them has told
a new window (a rank that fell silent is left out after a while), so a job of any size
is scored twice an interval and not once a report.
"""

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import QuerySet

from controlplane.jobs.models import Job, Rank, RankSpeed
from controlplane.jobs.numbers import learned_step_s, spec_of
from controlplane.jobs.present import speed_view
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.signals.ranks import SlowRank
from controlplane.policy.stragglers import (
    FRESH_STEPS,
    SHOWN,
    RankWork,
    Run,
    Score,
    advice,
    confirmed,
    fresh_s,
    ordered,
    scores,
    stage_loads,
)
from controlplane.protocol.rank import TimingReport
from controlplane.protocol.spec import Parallelism, Stragglers, micro_batch_count
from controlplane.protocol.states import ReplicaState
from controlplane.recovery import signals
from controlplane.runtime import bus
from controlplane.runtime.clock import age_s, ago, iso, now

Json = dict[str, Any]
STALE_INTERVALS = 2.0
DEVICE_FINDINGS = with_trait(Trait.DEVICE)


def take(job: Job, rank: Rank, said: TimingReport, at: datetime) -> None:
    """The newest window replaces the one before."""
    contributors = max(1, rank.replica.attempt.replica_rows.filter(contributing=True).count())
    share = micro_batch_count(spec_of(job).spec) / contributors
    told = {"told": msgspec.to_builtins(said), "fresh": True, "reported_at": at, "micro_batches": share}
    RankSpeed.objects.update_or_create(rank=rank, defaults=told)


def score_if_due(job: Job) -> bool:
    """Score the ranks that train once all of them have told a new window; raises and settles
    findings. True if there is a new finding, or one is over."""
    wanted = spec_of(job).spec.resiliency.stragglers
    rows = _current(job, wanted)
    if not rows.filter(fresh=True).exists() or rows.filter(fresh=False).exists() or _is_awaited(job, wanted):
        return False
    found = scores([_work(row) for row in rows], wanted)
    by_name = {_name(row.rank): row for row in rows}
    changed = False
    moment = now()
    for score in found:
        row = by_name[(score.work.replica, score.work.incarnation, score.work.rank)]
        best_s = min(score.work.work_s, row.best_s or score.work.work_s)
        before = Run(epoch=row.scored_epoch, here=row.slow_windows, before=row.slow_before)
        run, is_straggler = confirmed(score, before, _epoch_of(row))
        # One that was found stays one until it is as fast as the others again.
        named = bool(score.straggler and (is_straggler or row.straggler))
        RankSpeed.objects.filter(pk=row.pk).update(
            best_s=best_s,
            relative=score.relative,
            individual=score.individual,
            straggler=score.straggler if named else "",
            cause=score.cause if named else "",
            late_s=score.late_s,
            slow_windows=run.here,
            slow_before=run.before,
            scored_at=moment,
            scored_epoch=run.epoch,
        )
        if is_straggler or not score.straggler:
            changed |= _tell(job, row, score, wanted)
        elif named:
            _still(job, row, score)
    rows.update(fresh=False)
    return changed


def job_speed(job: Job) -> Json:
    """Best and worst ranks of the last scoring, and how even the pipeline's stages are."""
    wanted = spec_of(job).spec.resiliency.stragglers
    rows = list(_current(job, wanted).exclude(scored_at=None))
    by_name = {_name(row.rank): row for row in rows}
    found = ordered(scores([_work(row) for row in rows], wanted))
    loads = stage_loads(found)
    shown = [_line(by_name[(s.work.replica, s.work.incarnation, s.work.rank)], s) for s in found]
    return {
        "interval_s": wanted.interval_s,
        "relative_threshold": wanted.relative_threshold,
        "individual_threshold": wanted.individual_threshold,
        "scored_at": iso(max((row.scored_at for row in rows if row.scored_at), default=None)),
        "ranks": len(rows),
        "best": shown[::-1][:SHOWN],
        "worst": shown[:SHOWN],
        "stages": [msgspec.to_builtins(load) for load in loads],
        "advice": advice(loads, wanted),
    }


def _is_awaited(job: Job, wanted: Stragglers) -> bool:
    """A rank that has come lately has its first window yet to tell."""
    new = Rank.objects.filter(
        replica__attempt=job.attempts.order_by("-number").first(),
        replica__contributing=True,
        released_at=None,
        speed=None,
        joined_at__gte=ago(_stale_s(job, wanted)),
    )
    return new.exists()


def _stale_s(job: Job, wanted: Stragglers) -> float:
    """A window holds a few steps at least, however long they are."""
    return max(STALE_INTERVALS * wanted.interval_s, FRESH_STEPS * (learned_step_s(job) or 0.0))


def _current(job: Job, wanted: Stragglers) -> QuerySet[RankSpeed]:
    """Speeds of the ranks that contribute now and were heard of lately."""
    attempt = job.attempts.order_by("-number").first()
    return RankSpeed.objects.filter(
        rank__replica__attempt=attempt,
        rank__replica__contributing=True,
        rank__replica__state=ReplicaState.ACTIVE,
        rank__released_at=None,
        reported_at__gte=ago(_stale_s(job, wanted)),
    ).select_related("rank__replica__attempt", "rank__node", "rank__device")


def _name(rank: Rank) -> tuple[int, int, int]:
    return rank.replica.index, rank.replica.incarnation, rank.rank


def stage_of(rank: Rank) -> int:
    """Pipeline stage: the slowest of Megatron's coordinates."""
    layout = msgspec.convert(rank.replica.attempt.layout, Parallelism)
    return rank.rank // (layout.tp * layout.cp * layout.replica_dp)


def _epoch_of(row: RankSpeed) -> int:
    """Of the view in which its newest window ended."""
    return msgspec.convert(row.told, TimingReport).epoch


def _work(row: RankSpeed) -> RankWork:
    told, rank = msgspec.convert(row.told, TimingReport), row.rank
    return RankWork(
        replica=rank.replica.index,
        incarnation=rank.replica.incarnation,
        rank=rank.rank,
        stage=stage_of(rank),
        samples=told.compute.count,
        compute_s=told.compute.median_s,
        data_s=told.data.median_s,
        step_s=told.step.median_s,
        best_s=row.best_s,
        micro_batches=row.micro_batches,
        spread=told.spread,
    )


def _tell(job: Job, row: RankSpeed, score: Score, wanted: Stragglers) -> bool:
    """Raise the finding, or settle it where it is over."""
    rank, work = row.rank, score.work
    attempt = rank.replica.attempt.number
    if not score.straggler:
        over = list(signals.Signal.objects.filter(key=_key(job, row, score), settled_at=None))
        signals.settle(over, "it is as fast as its reference again")
        return bool(over)
    found = SlowRank(
        **signals.place_of(rank),
        attempt=attempt,
        node=rank.node.name,
        limit_ratio=wanted.relative_threshold if score.straggler == "relative" else wanted.individual_threshold,
        score=score.straggler,
        relative=score.relative,
        individual=score.individual,
        cause=score.cause,
        late_s=score.late_s,
        compute_s=work.compute_s,
        data_s=work.data_s,
        step_s=work.step_s,
        stage=work.stage,
        spread=work.spread,
        epoch=_epoch_of(row),
        more=_device_facts(rank),
    )
    return signals.raise_signal(found) is not None or _amend(found, fresh_s(wanted, learned_step_s(job)))


def _amend(found: SlowRank, limit_s: float) -> bool:
    """An open finding says what the newest windows say. True where they are of another view, or the last ones older
    than `limit_s`; and where that is another cause, or slow beside others than before: then it counts from now, as
    nothing was seen of it sooner."""
    row = signals.Signal.objects.filter(key=found.key, settled_at=None).first()
    if row is None:
        return False
    other = any(row.evidence.get(name) != found.evidence.get(name) for name in ("cause", "score"))
    was, old = row.evidence.get("epoch"), (age_s(row.renewed_at or row.seen_at) or 0.0) > limit_s
    signals.amend(row, found.evidence, found.sentence if other else "", value=found.value)
    signals.renew(row)
    if other:
        signals.Signal.objects.filter(pk=row.pk, settled_at=None).update(seen_at=now())
    return other or old or was != found.epoch


def _still(job: Job, row: RankSpeed, score: Score) -> None:
    """It was found slow in an earlier view, and is so by the first windows of this one: not yet confirmed, nor over."""
    for found in signals.Signal.objects.filter(key=_key(job, row, score), settled_at=None):
        signals.renew(found)


def _key(job: Job, row: RankSpeed, score: Score) -> str:
    work, attempt = score.work, row.rank.replica.attempt.number
    return SlowRank.key_of(job.id, attempt, work.replica, work.incarnation, work.rank)


def _device_facts(rank: Rank) -> Json:
    """What the device under it says of itself, where it says anything."""
    facts: Json = {}
    picture = bus.read_live(f"node:{rank.node_id}") or {}
    sample = next((d for d in picture.get("devices", []) if d["index"] == rank.device.index), None)
    if sample is not None and sample.get("throttle_reasons"):
        facts["throttle"] = ", ".join(sample["throttle_reasons"])
    if sample is not None and sample.get("temperature_c") is not None:
        facts["temperature_c"] = sample["temperature_c"]
    findings = signals.Signal.objects.filter(
        node_id=rank.node_id, device_index=rank.device.index, kind__in=DEVICE_FINDINGS, settled_at=None
    )
    open_kinds = sorted(set(findings.values_list("kind", flat=True)))
    return facts | ({"device_findings": ", ".join(open_kinds)} if open_kinds else {})


def _line(row: RankSpeed, score: Score) -> Json:
    rank = row.rank
    return {
        **(speed_view(row) or {}),
        "replica": rank.replica.index,
        "incarnation": rank.replica.incarnation,
        "rank": rank.rank,
        "pp": score.work.stage,
        "node_name": rank.node.name,
        "device_index": rank.device.index,
        "late_s": row.late_s,
    }
