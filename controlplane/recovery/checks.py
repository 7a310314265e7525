"""The checks of a recovery's certificate, each over the steps around the incident.

Called by `recovery.certificate`. A check that has nothing to judge by says None and why, never
True; one that judged only steps from before the recovery has nothing to judge the recovery by.
Reads rows, writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.jobs.present import hashes_equal, ledger
from controlplane.protocol.spec import Parallelism, micro_batch_count, ranks_per_replica
from controlplane.recovery import proof, recompute
from controlplane.recovery.course import Mark
from controlplane.recovery.fencing import LeftOut, left_out
from controlplane.recovery.models import Incident
from controlplane.recovery.reference import LIMIT_MAX, read_reference

LOSSES, RECOMPUTED = "loss_matches_reference", "step_recomputed"
EQUALITY = (LOSSES, RECOMPUTED)
"""One of them is in each certificate: that what was trained is what would have been trained."""
SHOWN_DIGITS = 3
"""Of a difference between losses: a loss in full would tell which text it is the loss of."""


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
    """`steps` by number, each from the newest attempt that trained it; `began` and `ended`: where the job was
    at the fault and when training was back; `left_out`: so many of the recovery's first steps, which are more than
    are compared; `late`: reports that are missing now will not come."""

    job: Job
    began: Mark
    ended: Mark
    steps: tuple[StepRecord, ...]
    left_out: int
    late: bool

    @property
    def beside(self) -> str:
        """What of the recovery is not among the steps, for people."""
        return f"; its first {self.left_out} steps are not compared" if self.left_out else ""

    def reaches_beyond(self, judged: Sequence[StepRecord]) -> bool:
        """One of the `judged` steps was trained after the fault by the membership that the recovery
        ended with, or by a later one."""
        return any(step.epoch >= self.ended.epoch and self.began.is_before(step) for step in judged)


def all_of(incident: Incident, window: Window) -> list[Check]:
    """In the order in which they are shown."""
    return [_hashes(window), _ledger(window), _equal(incident, window), _no_step_lost(window), _fenced(window)]


def _hashes(window: Window) -> Check:
    """After each step every replica holds the same bits: parameters, optimizer and random state."""
    name = "state_hashes_equal"
    told = [(step, hashes_equal(step)) for step in window.steps]
    judged = [step for step, equal in told if equal is not None]
    wrong = [step.step for step, equal in told if equal is False]
    if wrong:
        return Check(name=name, ok=False, detail=f"they differ after step {wrong[0]}", value=float(len(wrong)), limit=0)
    if not judged:
        return Check(name=name, ok=None, detail="no step was reported by two replicas")
    if not window.reaches_beyond(judged):
        return Check(name=name, ok=None, detail="no step after the recovery was reported by two replicas")
    ranks = _ranks(window)
    whole = [step for step in judged if _is_told_whole(step, ranks)]
    if not window.reaches_beyond(whole):
        return Check(name=name, ok=None, detail=f"no step after the recovery was reported by all {ranks} ranks of each")
    detail = (
        f"parameters, optimizer and random state equal after each of {len(judged)} steps of {len(window.steps)},"
        f" {len(whole)} of them on all {ranks} ranks of each replica{window.beside}"
    )
    return Check(name=name, ok=True, detail=detail, value=0, limit=0)


def _ranks(window: Window) -> int:
    """Of each replica, in the newest attempt of the window."""
    attempt = window.job.attempts.get(number=window.steps[-1].attempt)
    return ranks_per_replica(msgspec.convert(attempt.layout, Parallelism))


def _is_told_whole(step: StepRecord, ranks: int) -> bool:
    """Of every rank each replica that contributed has told its state, and two at least."""
    least = max(2, step.contributors)
    return all(len(step.parameter_hashes.get(str(rank), {})) >= least for rank in range(ranks))


def _ledger(window: Window) -> Check:
    """Each step holds each of its micro-batches exactly once."""
    name, wanted = "sample_ledger_exact", list(range(micro_batch_count(spec_of(window.job).spec)))
    steps = list(window.steps)
    while steps and ledger(steps[-1]) != wanted and _may_grow(steps[-1], wanted):
        steps.pop()  # The reports of the newest steps are still on their way.
    wrong = [step for step in steps if ledger(step) != wanted]
    if wrong:
        final = window.late or not all(_may_grow(step, wanted) for step in wrong)
        detail = f"step {wrong[0].step} holds {ledger(wrong[0])}, not {wanted}"
        return Check(name=name, ok=False if final else None, detail=detail, value=float(len(wrong)), limit=0)
    if not window.reaches_beyond(steps):
        return Check(name=name, ok=None, detail="no step after the recovery is reported by all its replicas")
    detail = f"{len(wanted)} micro-batches once in each of {len(steps)} steps{window.beside}"
    return Check(name=name, ok=True, detail=detail, value=0, limit=0)


def _may_grow(step: StepRecord, wanted: list[int]) -> bool:
    """What is told contradicts nothing: reports are missing, none is doubled."""
    told = ledger(step)
    return len(told) == len(set(told)) and set(told) <= set(wanted)


def _equal(incident: Incident, window: Window) -> Check:
    """By a sampled step that a replica computed again, where that was chosen, else on the server."""
    row = recompute.of(incident)
    if row is None:
        return _losses(incident, window)
    found = recompute.verdict(row)
    return Check(name=RECOMPUTED, ok=found.ok, detail=found.detail, value=_rounded(found.value), limit=1.0)


def _losses(incident: Incident, window: Window) -> Check:
    """Every loss is that of the undisturbed run, before and after the membership changed."""
    name, reference = LOSSES, proof.read(incident) or read_reference(window.job)
    if reference is None:
        return Check(name=name, ok=None, detail=proof.why_missing(incident))
    expected = [(step, reference.of(step.step)) for step in window.steps]
    judged = [(step, abs(step.loss - loss)) for step, loss in expected if step.loss is not None and loss is not None]
    if not window.reaches_beyond([step for step, _ in judged]):
        end = reference.first_step + len(reference.losses)
        return Check(name=name, ok=None, detail=f"the undisturbed run ends at step {end}, not beyond the recovery")
    step, worst = max(judged, key=lambda pair: pair[1] / reference.limit(pair[0].step))
    if worst > reference.limit(step.step) and proof.is_by_shared(incident):
        return Check(name=name, ok=None, detail="a run shared with other incidents differs: one of its own is made")
    limit = reference.limit(step.step)
    detail = (
        f"compared {len(judged)} of {len(window.steps)} steps ({judged[0][0].step} to {judged[-1][0].step}) with an"
        f" undisturbed run from step {reference.first_step}; largest difference {worst:.1e} at step {step.step},"
        f" allowed {limit:.1e} ({reference.tolerance:.0e} for each step since the run began, at most {LIMIT_MAX:.0e})"
    )
    return Check(name=name, ok=worst <= limit, detail=detail, value=_rounded(worst), limit=_rounded(limit))


def _rounded(value: float | None) -> float | None:
    """As it is shown; what is judged is judged in full."""
    return None if value is None else float(f"{value:.{SHOWN_DIGITS}g}")


def _no_step_lost(window: Window) -> Check:
    """No number is missing between the first and the last, those that are not compared included."""
    name = "no_step_lost"
    if not window.steps:
        return Check(name=name, ok=None, detail="no step in the window")
    first, last = window.steps[0].step, window.steps[-1].step
    if window.left_out:
        first = min(first, window.began.step + 1)
    rows = StepRecord.objects.filter(job=window.job, step__gte=first, step__lte=last)
    known = rows.values_list("step", flat=True).distinct()
    missing = last - first + 1 - known.count()
    if missing:
        there = set(known)
        lost = next(number for number in range(first, last + 1) if number not in there)
        return Check(name=name, ok=False, detail=f"step {lost} was never committed", value=float(missing), limit=0)
    return Check(name=name, ok=True, detail=f"steps {first} to {last} are all there", value=0, limit=0)


def _fenced(window: Window) -> Check:
    """From the first view without it on, nothing of an incarnation that is out was accepted."""
    name = "old_incarnation_fenced"
    out = left_out(window.job, began=window.began, ended=window.ended)
    if not out:
        return Check(name=name, ok=True, detail="no incarnation was left out", value=0, limit=0)
    judged = [each for each in out if each.epoch is not None]
    breaches = {what for each in out for what in _breaches(window, each)}
    if breaches:
        detail = "accepted from an old incarnation: " + "; ".join(sorted(breaches))
        return Check(name=name, ok=False, detail=detail, value=float(len(breaches)), limit=0)
    if len(judged) < len(out):
        waiting = next(each for each in out if each.epoch is None)
        return Check(name=name, ok=None, detail=f"no view leaves {waiting.name} out yet")
    views = ", ".join(f"{each.name} from view {each.epoch}" for each in judged)
    return Check(name=name, ok=True, detail=f"nothing was accepted of {views} on", value=0, limit=0)


def _breaches(window: Window, out: LeftOut) -> list[str]:
    """What came of one incarnation after the first view without it had gone on, by the order of commits."""
    found = [f"view {epoch} has {out.name} as a member" for epoch in out.back]
    if out.epoch is None:
        return found
    later = StepRecord.objects.filter(job=window.job, epoch__gte=out.epoch).order_by("attempt", "step")
    first = later.values_list("attempt", "step").first()
    if first is None:
        return found
    steps = [s.step for s in window.steps if s.epoch < out.epoch and (s.attempt, s.step) > first]
    rows = Checkpoint.objects.filter(job=window.job, epoch__lt=out.epoch, state__in=COMMITTED_CHECKPOINTS)
    saves = [save for save in rows.filter(attempt__gte=first[0]) if (save.attempt, save.step) > first]
    found += [f"step {number} of an epoch before view {out.epoch}" for number in steps]
    return found + [f"the save of step {save.step} of epoch {save.epoch}" for save in saves]
