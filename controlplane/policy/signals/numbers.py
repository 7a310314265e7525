"""Findings about what ranks compute: no number, a jump after a restart, a refused result."""

from dataclasses import dataclass
from typing import ClassVar

from controlplane.policy.signals.base import Finding, Severity, Trait


@dataclass(frozen=True, kw_only=True)
class LossNotFinite(Finding):
    """`loss`: the word that the rank said instead of a number."""

    KIND: ClassVar[str] = "nan_loss"
    MEANS: ClassVar[str] = "the loss is no finite number"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.ATTEMPT})
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "attempt")
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt",)

    attempt: int
    step: int
    epoch: int
    loss: str

    @property
    def value(self) -> float:
        """The step."""
        return float(self.step)

    @property
    def sentence(self) -> str:
        """Of which step."""
        return f"The loss of step {self.step} is no finite number ({self.loss})."


@dataclass(frozen=True, kw_only=True)
class LossSpike(Finding):
    """`before`: the highest loss of `steps_before` steps before the checkpoint; `after`: the median since."""

    KIND: ClassVar[str] = "loss_spike"
    MEANS: ClassVar[str] = "after a restart the loss is well above what it was at those steps"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.ATTEMPT})
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "attempt")
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt", "steps_before")

    attempt: int
    steps_before: int
    resume_step: int
    steps: int
    before: float
    after: float

    @property
    def value(self) -> float:
        """The median since."""
        return self.after

    @property
    def threshold(self) -> float:
        """The highest before."""
        return self.before

    @property
    def sentence(self) -> str:
        """What it is, what it was."""
        return (
            f"Since the resume from step {self.resume_step} the loss is {self.after:.3g}; in the"
            f" {self.steps_before} steps before that checkpoint it was {self.before:.3g} at most."
        )


@dataclass(frozen=True, kw_only=True)
class RefusedResult(Finding):
    """A step's result was refused and computed twice; `diagnosis` is what came of it."""

    KIND: ClassVar[str] = "numerics"
    MEANS: ClassVar[str] = "a step's result was refused and the step computed twice"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.STAYS})
    KEY: ClassVar[tuple[str, ...]] = (
        "job_id", "attempt", "replica", "incarnation", "rank", "step", "epoch", "check", "diagnosis",
    )  # fmt: skip
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt",)
    RESULT_CHARS: ClassVar[int] = 60

    attempt: int
    check: str
    diagnosis: str
    first_result: str
    second_result: str
    step: int
    epoch: int
    earlier_transients: int

    @property
    def evidence(self) -> dict[str, object]:
        """What ranks said, shortened."""
        found = super().evidence
        said = ("check", "diagnosis", "first_result", "second_result")
        return {**found, **{name: str(found[name])[: self.RESULT_CHARS] for name in said}}

    @property
    def value(self) -> float:
        """The step."""
        return float(self.step)

    @property
    def sentence(self) -> str:
        """Whose result, of which step, and what came of it."""
        return (
            f"Rank {self.rank} of replica {self.replica} refused a result of step {self.step}:"
            f" {self.check.replace('_', ' ')}, {self.diagnosis.replace('_', ' ')}."
        )
