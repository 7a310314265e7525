"""Figures of the ledger, and what each running job would have to repeat: refreshed by each web process, every half a
minute."""

from django.db.models import Max

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import ENDED, GOOD_CHECKPOINTS, learned_step_s
from controlplane.policy.ledger.account import Account
from controlplane.policy.prices import work_at_risk_s
from controlplane.protocol.ledger import TimeClass
from controlplane.recovery.gauges import replace
from controlplane.recovery.ledger_failures import failures
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.ledger_view import judged
from controlplane.runtime import metrics
from controlplane.runtime.clock import now_s

WINDOW_S = 3600.0


def refresh() -> None:
    """The ledger's dozen queries, and one for each job that lives."""
    end_s = now_s()
    found = judged(Scope(), end_s - WINDOW_S, end_s)
    replace(metrics.GPU_TIME, by_class(found))
    metrics.GPU_QUEUED.set(sum(job.queued_gpu_s for job in found.jobs))
    of_jobs = failures(Scope(), found)
    assert of_jobs is not None, "of the whole fleet"
    replace(metrics.FAILURE_MEANS, {"mttf": of_jobs.mttf_s, "mttd": of_jobs.mttd_s, "mttr": of_jobs.mttr_s})
    replace(metrics.WORK_AT_RISK, at_risk_s())


def by_class(found: Account) -> dict[str, float]:
    """GPU-seconds of each class, also of those that are none."""
    sums = dict.fromkeys((of.value for of in TimeClass), 0.0)
    for key, amount in found.amounts.items():
        sums[key.of.value] += amount
    return sums


def at_risk_s() -> dict[str, float | None]:
    """By job that has not ended, as `jobs.numbers` has it."""
    saved = Checkpoint.objects.filter(state__in=GOOD_CHECKPOINTS).exclude(job__state__in=ENDED)
    newest = dict(saved.order_by().values_list("job_id").annotate(step=Max("step")))
    found: dict[str, float | None] = {}
    for job in Job.objects.exclude(state__in=ENDED).defer("spec"):
        step_s = learned_step_s(job)
        found[job.id] = (
            None
            if step_s is None
            else work_at_risk_s(committed_step=job.committed_step, saved_step=newest.get(job.id), step_s=step_s)
        )
    return found
