"""Findings about ranks and replicas: ended, late, not started, out of reach of the others, slow."""

from dataclasses import dataclass
from typing import ClassVar

from controlplane.policy.signals.base import Finding, Severity, Trait

ERROR_CHARS, ERROR_TOLD_CHARS = 300, 200
_PERCENT = 100.0
_OF_A_RANK = ("job_id", "attempt", "replica", "incarnation", "rank")


@dataclass(frozen=True, kw_only=True)
class RankExit(Finding):
    """`exit_code` and `signal` None: nobody saw how it ended; `how` in words."""

    KIND: ClassVar[str] = "rank_exit"
    MEANS: ClassVar[str] = "a rank's process ended though nobody requested it"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.ATTEMPT, Trait.INCARNATION})
    KEY: ClassVar[tuple[str, ...]] = _OF_A_RANK
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt", "how")

    attempt: int
    node: str
    how: str
    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""
    hint: str = ""

    @property
    def code(self) -> int | None:
        """A signal as its negative."""
        return self.exit_code if self.exit_code is not None else None if self.signal is None else -self.signal

    @property
    def evidence(self) -> dict[str, object]:
        """`told`: somebody saw how."""
        return {"told": self.code is not None, **super().evidence}

    @property
    def value(self) -> float:
        """The code, -1 where nobody saw it."""
        return float(self.code if self.code is not None else -1)

    @property
    def sentence(self) -> str:
        """Who, where and how."""
        return f"Rank {self.rank} of replica {self.replica} on {self.node} {self.how}."


@dataclass(frozen=True, kw_only=True)
class RankOverdue(Finding):
    """Its process is there and makes no progress: `age_s` in its section, `timeout_s` are allowed."""

    KIND: ClassVar[str] = "rank_overdue"
    MEANS: ClassVar[str] = "a rank makes no progress beyond its section's limit"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.ATTEMPT, Trait.INCARNATION})
    KEY: ClassVar[tuple[str, ...]] = _OF_A_RANK
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt", "timeout_s")
    FAILURE: ClassVar[str] = "hang"
    BEGAN: ClassVar[str] = "age_s"

    attempt: int
    timeout_s: float
    age_s: float
    section: str
    phase: str
    step: int
    silent_s: float

    @property
    def value(self) -> float:
        """How long, in seconds."""
        return self.age_s

    @property
    def threshold(self) -> float:
        """How long it may, in seconds."""
        return self.timeout_s

    @property
    def sentence(self) -> str:
        """Where it sits, and for how long."""
        return f"Rank {self.rank} of replica {self.replica} sits in {self.phase} for {self.age_s:.1f} s."


@dataclass(frozen=True, kw_only=True)
class SetupTimeout(RankOverdue):
    """A rank that is late in its setup."""

    KIND: ClassVar[str] = "setup_timeout"
    MEANS: ClassVar[str] = "ranks that were to start did not come up, or their node refused"
    FAILURE: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class StartFailed(Finding):
    """Told as `setup_timeout` too: the order to start failed. `reason`: what the agent calls it."""

    KIND: ClassVar[str] = SetupTimeout.KIND
    MEANS: ClassVar[str] = SetupTimeout.MEANS
    SEVERITY: ClassVar[Severity] = SetupTimeout.SEVERITY
    TRAITS: ClassVar[frozenset[Trait]] = SetupTimeout.TRAITS
    PREFIX: ClassVar[str] = "start_failed"
    KEY: ClassVar[tuple[str, ...]] = ("command",)
    UNKEPT: ClassVar[tuple[str, ...]] = ("ttl_s", "said")

    command: str
    node: str
    detail: str
    reason: str
    said: str
    ttl_s: float

    @property
    def value(self) -> float:
        """How long the order lived, in seconds."""
        return self.ttl_s

    @property
    def threshold(self) -> float:
        """As `value`."""
        return self.ttl_s

    @property
    def sentence(self) -> str:
        """What was to start, where, and what came of it."""
        return f"Replica {self.replica} could not be started on {self.node}: {self.said}."


@dataclass(frozen=True, kw_only=True)
class ExchangeFailed(Finding):
    """An exchange between replicas broke; accuses nobody by itself."""

    KIND: ClassVar[str] = "outer_error"
    MEANS: ClassVar[str] = "an exchange between replicas failed"
    SEVERITY: ClassVar[Severity] = Severity.WARNING
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.ATTEMPT})
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "epoch", "replica", "rank")

    epoch: int
    step: int
    error: str

    @property
    def evidence(self) -> dict[str, object]:
        """The error shortened."""
        return {**super().evidence, "error": self.error[:ERROR_CHARS]}

    @property
    def sentence(self) -> str:
        """Who could not exchange, and why."""
        return f"Replica {self.replica} could not exchange in epoch {self.epoch}: {self.error[:ERROR_TOLD_CHARS]}"


@dataclass(frozen=True, kw_only=True)
class SlowRank(Finding):
    """`score`: against its stage (`relative`) or its own best (`individual`), where a score says so. `epoch`: of
    the view in which it was last found so."""

    KIND: ClassVar[str] = "straggler"
    MEANS: ClassVar[str] = "a rank is slower than its peers, or than it was"
    SEVERITY: ClassVar[Severity] = Severity.WARNING
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.LASTS})
    KEY: ClassVar[tuple[str, ...]] = _OF_A_RANK
    UNKEPT: ClassVar[tuple[str, ...]] = ("attempt", "node", "limit_ratio")

    attempt: int
    node: str
    limit_ratio: float
    score: str
    relative: float | None
    individual: float | None
    cause: str
    late_s: float | None
    compute_s: float
    data_s: float
    step_s: float
    stage: int
    spread: float | None
    epoch: int

    @property
    def value(self) -> float:
        """Its speed as a share of what it is compared with."""
        return (self.relative if self.score == "relative" else self.individual) or 0.0

    @property
    def threshold(self) -> float:
        """The share below which it is slow."""
        return self.limit_ratio

    @property
    def sentence(self) -> str:
        """How slow, and beside what."""
        against = "the median of the other ranks of its stage" if self.score == "relative" else "its own best"
        who = f"Rank {self.rank} of replica {self.replica} on {self.node}"
        return f"{who} works at {self.value * _PERCENT:.0f} % of the speed of {against}."
