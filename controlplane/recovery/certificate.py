"""The recovery's certificate: what must hold if nothing was lost, checked from rows.

Written after an incident is resolved, over the steps around it. A check that has nothing
to judge by says None, never True. It is looked at again while reports may still come.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job, Replica, StepRecord
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.jobs.present import hashes_equal, ledger
from controlplane.protocol.spec import micro_batch_count
from controlplane.protocol.states import ReplicaState
from controlplane.recovery import proof
from controlplane.recovery.incidents import publish_incident, refresh_phases
from controlplane.recovery.models import Incident, ViewRow
from controlplane.recovery.reference import read_reference
from controlplane.runtime import events
from controlplane.runtime.clock import after, iso, now

LOSSES = "loss_matches_reference"
BEFORE_S = 15.0
# The last reports of a step come this much after its first.
SETTLE_S = 1.5
RETRY_S = 2.0
PUT_OFF_RETRY_S = 15.0
GIVE_UP_S = 30.0
MAX_STEPS = 2000
STEPS_AFTER_MAX = 3 * proof.STEPS_AFTER
"""Of those that came after the recovery: what is proved does not grow for as long as the job trains."""
MAX_DUE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`ok` None: nothing to judge by. `value` against `limit`, in the check's own unit."""

    name: str
    ok: bool | None
    detail: str
    value: float | None = None
    limit: float | None = None

    def json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "value": self.value, "limit": self.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`steps` by number, each from the newest attempt that trained it; `repeated` how many
    were trained more than once; `late`: reports that are missing now will not come."""

    job: Job
    opened_at: datetime
    closed_at: datetime
    steps: tuple[StepRecord, ...]
    repeated: int
    late: bool


def certify_due() -> int:
    """Write the certificates whose time has come; returns how many incidents were looked at."""
    rows = list(Incident.objects.filter(certificate_due_at__lte=now()).select_related("job")[:MAX_DUE])
    proof.reap()
    for row in rows:
        claimed = Incident.objects.filter(pk=row.pk, certificate_due_at=row.certificate_due_at)
        if claimed.update(certificate_due_at=after(RETRY_S)):
            certificate = certify(row)
            if certificate["state"] == "pending":
                proof.start(row, until_step=int(certificate["step"]) + 1)
            elif row.certificate_due_at is None:
                proof.clear(row)
    return len(rows)


def certify(incident: Incident) -> dict[str, Any]:
    """Check, store and publish; schedules itself again while the answer is pending."""
    with events.unit_of_work():
        certificate = build(incident)
        put_off = proof.is_put_off(incident) or proof.is_queued(incident)
        give_up_s = proof.GIVE_UP_S if proof.comes(incident) else GIVE_UP_S
        final = certificate["state"] != "pending" or (not put_off and proof.waited_s(incident) >= give_up_s)
        if final and certificate["state"] == "pending":
            # Nothing contradicts it; what could not be judged says so.
            certificate["state"] = "green"
        Incident.objects.filter(pk=incident.pk).update(
            certificate=certificate,
            certificate_due_at=None if final else after(PUT_OFF_RETRY_S if put_off else RETRY_S),
        )
        known = _verdicts(incident.certificate)
        incident.refresh_from_db()
        refresh_phases(incident)
        if final or _verdicts(certificate) != known:
            publish_incident(incident, "incident.certificate", f"Certificate: {certificate['state']}." if final else "")
    return certificate


def _verdicts(certificate: dict[str, Any] | None) -> dict[str, Any]:
    """What of a certificate is news: the counts in it move with every step."""
    return {check["name"]: check["ok"] for check in (certificate or {}).get("checks", [])}


def build(incident: Incident) -> dict[str, Any]:
    """The certificate as JSON; {"state": "pending"} while a check still waits for reports."""
    if incident.job is None:
        return {"state": "green", "step": 0, "checks": [], "generated_at": iso(now())}
    window = _window(incident, incident.job)
    checks = [
        _hashes(window),
        _ledger(window),
        _losses(incident, window),
        _no_step_lost(window),
        _fenced(incident, window),
    ]
    return {
        "state": _state(checks, reference_comes=proof.comes(incident)),
        "step": window.steps[-1].step if window.steps else incident.job.committed_step,
        "checks": [check.json() for check in checks],
        "generated_at": iso(now()),
    }


def _state(checks: list[Check], *, reference_comes: bool) -> str:
    if any(check.ok is False for check in checks):
        return "red"
    waits = [check for check in checks if check.ok is None and (check.name != LOSSES or reference_comes)]
    return "pending" if waits else "green"


def _window(incident: Incident, job: Job) -> Window:
    """Steps from shortly before the fault until now, at most STEPS_AFTER_MAX of them after the
    recovery, less those still being told."""
    opened, closed = incident.opened_at, incident.resolved_at or now()
    settled = now() - timedelta(seconds=SETTLE_S)
    rows = StepRecord.objects.filter(job=job, at__gte=opened - timedelta(seconds=BEFORE_S), at__lte=settled)
    newest: dict[int, StepRecord] = {}
    repeated = 0
    later = rows.filter(at__gt=closed).order_by("at").values_list("at", flat=True)
    if (end := next(iter(later[STEPS_AFTER_MAX : STEPS_AFTER_MAX + 1]), None)) is not None:
        rows = rows.filter(at__lt=end)
    for row in rows.order_by("attempt", "step")[:MAX_STEPS]:
        repeated += row.step in newest
        newest[row.step] = row
    steps = tuple(newest[number] for number in sorted(newest))
    late = (now() - closed).total_seconds() >= GIVE_UP_S
    return Window(job=job, opened_at=opened, closed_at=closed, steps=steps, repeated=repeated, late=late)


def _hashes(window: Window) -> Check:
    """After each step every replica holds the same bits."""
    told = [(step.step, hashes_equal(step)) for step in window.steps]
    judged = [(number, equal) for number, equal in told if equal is not None]
    wrong = [number for number, equal in judged if not equal]
    name = "parameter_hashes_equal"
    if wrong:
        return Check(name=name, ok=False, detail=f"they differ after step {wrong[0]}", value=float(len(wrong)), limit=0)
    if not judged:
        return Check(name=name, ok=None, detail="no step was told by two replicas")
    return Check(name=name, ok=True, detail=f"equal after each of {len(judged)} steps", value=0, limit=0)


def _ledger(window: Window) -> Check:
    """Each step holds each of its micro-batches exactly once."""
    name, wanted = "sample_ledger_exact", list(range(micro_batch_count(spec_of(window.job).spec)))
    steps = list(window.steps)
    while steps and ledger(steps[-1]) != wanted and _may_grow(steps[-1], wanted):
        steps.pop()  # The reports of the newest steps are still on their way.
    if not steps:
        return Check(name=name, ok=None, detail="no step in the window is told by all its replicas")
    wrong = [step for step in steps if ledger(step) != wanted]
    if wrong:
        final = window.late or not all(_may_grow(step, wanted) for step in wrong)
        detail = f"step {wrong[0].step} holds {ledger(wrong[0])}, not {wanted}"
        return Check(name=name, ok=False if final else None, detail=detail, value=float(len(wrong)), limit=0)
    detail = f"{len(wanted)} micro-batches once in each of {len(steps)} steps"
    return Check(name=name, ok=True, detail=detail, value=0, limit=0)


def _may_grow(step: StepRecord, wanted: list[int]) -> bool:
    """What is told contradicts nothing: reports are missing, none is doubled."""
    told = ledger(step)
    return len(told) == len(set(told)) and set(told) <= set(wanted)


def _losses(incident: Incident, window: Window) -> Check:
    """Every loss is that of the undisturbed run, before and after the membership changed."""
    name, reference = LOSSES, proof.read(incident) or read_reference(window.job)
    if reference is None:
        return Check(name=name, ok=None, detail=proof.why_missing(incident))
    expected = [(step, reference.of(step.step)) for step in window.steps]
    judged = [(step, step.loss, loss) for step, loss in expected if step.loss is not None and loss is not None]
    pairs = [(step.step, abs(found - wanted), reference.limit(step.step)) for step, found, wanted in judged]
    epochs = {step.epoch for step, _, _ in judged}
    if not pairs or (len(epochs) < 2 and len({step.epoch for step in window.steps}) > 1):
        return Check(name=name, ok=None, detail="the reference run does not reach beyond the recovery")
    number, worst, limit = max(pairs, key=lambda pair: pair[1] / pair[2])
    detail = f"largest difference {worst:.2e} at step {number}, over {len(pairs)} steps from step {pairs[0][0]}"
    return Check(name=name, ok=worst <= limit, detail=detail, value=worst, limit=limit)


def _no_step_lost(window: Window) -> Check:
    """No number is missing between the first and the last."""
    name = "no_step_lost"
    numbers = [step.step for step in window.steps]
    if not numbers:
        return Check(name=name, ok=None, detail="no step in the window")
    missing = sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers))
    if missing:
        detail = f"step {missing[0]} was never committed"
        return Check(name=name, ok=False, detail=detail, value=float(len(missing)), limit=0)
    again = f", {window.repeated} trained again from a checkpoint" if window.repeated else ""
    detail = f"steps {numbers[0]} to {numbers[-1]} are all there{again}"
    return Check(name=name, ok=True, detail=detail, value=float(window.repeated), limit=None)


def _fenced(incident: Incident, window: Window) -> Check:
    """After the first view without it nothing of an evicted incarnation was accepted."""
    name = "old_incarnation_fenced"
    out = Replica.objects.filter(
        attempt__job=window.job,
        state=ReplicaState.EVICTED,
        state_since__gte=window.opened_at,
        state_since__lte=window.closed_at,
    )
    gone = {(r.index, r.incarnation) for r in out}
    views = list(ViewRow.objects.filter(job=window.job, announced_at__gte=window.opened_at).order_by("epoch"))
    if not gone or not views:
        return Check(name=name, ok=True, detail="no incarnation was evicted", value=0, limit=0)
    first = views[0]
    back = [v.epoch for v in views if any((m["replica"], m["incarnation"]) in gone for m in v.view["members"])]
    resumed = first.resumed_at or window.closed_at
    late_steps = [s.step for s in window.steps if s.epoch < first.epoch and s.at > resumed]
    late_saves = Checkpoint.objects.filter(
        job=window.job, epoch__lt=first.epoch, committed_at__gt=resumed, state__in=COMMITTED_CHECKPOINTS
    ).count()
    accepted = len(back) + len(late_steps) + late_saves
    detail = (
        f"{len(back)} later views, {len(late_steps)} steps and {late_saves} saves of old incarnations were accepted"
        if accepted
        else f"nothing of {len(gone)} evicted incarnations was accepted after view {first.epoch}"
    )
    return Check(name=name, ok=accepted == 0, detail=detail, value=float(accepted), limit=0)
