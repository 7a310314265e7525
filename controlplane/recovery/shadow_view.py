"""Shadows as the API answers them (`protocol.rest.shadow`). Reads alone."""

from typing import Any

import msgspec
from django.db.models import Q

from controlplane.jobs.models import Job
from controlplane.policies import shadows
from controlplane.policies.models import RunRole, RunState, ShadowDecision, ShadowRun
from controlplane.policies.text import text_of
from controlplane.policy.shadow import Agreement, below, matrix_of, score_of
from controlplane.recovery.selectors import Only, of_all
from controlplane.recovery.shadowing import days_of, verdicts_of
from controlplane.runtime.clock import iso

SHOWN = 100


def shadow(run: ShadowRun, only: Only = of_all) -> dict[str, Any]:
    """`rest.Shadow`. Its figures are of all that was compared; of decisions about jobs that `only` leaves out no one is
    listed."""
    verdicts, bar = verdicts_of(run), shadows.bar_of(run)
    score = score_of(verdicts, days=days_of(run))
    differing = ShadowDecision.objects.filter(run=run).exclude(agreement=Agreement.ALIKE)
    listed = differing.filter(_seen(only)).order_by("-decision_id", "-pk")
    open_to_promotion = run.role == RunRole.CANDIDATE and run.state == RunState.RUNNING
    return {
        "run": run.pk,
        "role": str(run.role),
        "state": str(run.state),
        "document": run.document,
        "text": text_of(run.document),
        "version": run.version,
        "live_number": run.live_number,
        "who": run.who,
        "reason": run.reason,
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at) if run.ended_at is not None else None,
        "ended_why": run.ended_why,
        "bar": msgspec.to_builtins(bar),
        "score": msgspec.to_builtins(score),
        "below": list(below(score, bar)) if open_to_promotion else [],
        "matrix": [
            {"rule": rule, **{str(agreement): number for agreement, number in row.items()}}
            for rule, row in matrix_of(verdicts).items()
        ],
        "waiting": differing.filter(case__isnull=False).count(),
        "newest": [_decision(row) for row in listed[:SHOWN]],
    }


def _seen(only: Only) -> Q:
    """About the fleet (no job), or about a job that is not left out."""
    seen = only("project")
    return Q(job_id="") | Q(job_id__in=Job.objects.filter(seen).values("pk")) if seen else Q()


def _decision(row: ShadowDecision) -> dict[str, Any]:
    columns = ("decision_id", "rule", "agreement", "live_choice", "other_choice", "priced_by", "live_gpu_s")
    more = ("change_gpu_s", "spread_gpu_s", "why")
    ids = {"job_id": row.job_id or None, "incident_id": row.incident_id or None, "at": iso(row.at)}
    return ids | {name: getattr(row, name) for name in (*columns, *more)}
