"""Findings about nodes: not heard, not fit, in doubt, deaf, holding other keys than ours."""

from dataclasses import dataclass
from typing import ClassVar

from controlplane.policy.signals.base import Finding, Severity, Trait


@dataclass(frozen=True, kw_only=True)
class NodeSilent(Finding):
    """`silent_s`, where its job allows `limit_s`."""

    KIND: ClassVar[str] = "node_silent"
    MEANS: ClassVar[str] = "no frame of a node within what a job on it allows"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.SUSPECT, Trait.STAYS})
    KEY: ClassVar[tuple[str, ...]] = ("node_id", "job_id")
    UNKEPT: ClassVar[tuple[str, ...]] = ("silent_s", "limit_s")
    TITLE: ClassVar[str] = "node {nodes} is silent"
    BEGAN: ClassVar[str] = "threshold"

    node: str
    silent_s: float
    limit_s: float

    @property
    def value(self) -> float:
        """For how long, in seconds."""
        return round(self.silent_s, 3)

    @property
    def threshold(self) -> float:
        """How long it may be, in seconds."""
        return self.limit_s

    @property
    def sentence(self) -> str:
        """Which, for how long."""
        return f"Node {self.node} was not heard for {self.silent_s:.1f} s."


@dataclass(frozen=True, kw_only=True)
class NodeUnfit(Finding):
    """All of the node's own checks that fail there, in one finding."""

    KIND: ClassVar[str] = "node_check"
    MEANS: ClassVar[str] = "a check of the node's own fails, so nothing is started there"
    SEVERITY: ClassVar[Severity] = Severity.WARNING
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.LASTS})
    KEY: ClassVar[tuple[str, ...]] = ("node_id",)
    READER: ClassVar[str] = "controlplane.recovery.signals"

    detail: str
    checks: str
    node: str

    @property
    def sentence(self) -> str:
        """What fails."""
        return f"Node {self.node} fails its checks, nothing is started there: {self.detail}."


@dataclass(frozen=True, kw_only=True)
class NodeInDoubt(Finding):
    """Two machines may speak as one node."""

    KIND: ClassVar[str] = "node_identity"
    MEANS: ClassVar[str] = "it is in doubt which machine speaks as this node"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    KEY: ClassVar[tuple[str, ...]] = ("node_id",)
    READER: ClassVar[str] = "controlplane.recovery.doubts"

    node: str
    why: str

    @property
    def sentence(self) -> str:
        """Which, and why."""
        return f"It is in doubt which machine node {self.node} is: {self.why}."


@dataclass(frozen=True, kw_only=True)
class NodeDeaf(Finding):
    """Events after `last_event_seq` have not come for `waited_s`, `limit_s` are allowed."""

    KIND: ClassVar[str] = "node_deaf"
    MEANS: ClassVar[str] = "an agent's events cannot be joined to what is known"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    KEY: ClassVar[tuple[str, ...]] = ("node_id",)
    UNKEPT: ClassVar[tuple[str, ...]] = ("waited_s", "limit_s", "why")
    READER: ClassVar[str] = "controlplane.recovery.doubts"

    node: str
    last_event_seq: int
    waited_s: float
    limit_s: float
    why: str

    @property
    def value(self) -> float:
        """For how long, in seconds."""
        return round(self.waited_s, 1)

    @property
    def threshold(self) -> float:
        """How long it may be, in seconds."""
        return self.limit_s

    @property
    def sentence(self) -> str:
        """Which, and why."""
        return f"Node {self.node} receives no work: {self.why}."


@dataclass(frozen=True, kw_only=True)
class SignatureRejected(Finding):
    """The node's agent knows no key of ours that has signed this command, of this `kind`."""

    KIND: ClassVar[str] = "signature_rejected"
    MEANS: ClassVar[str] = "a node refused a command whose signature it cannot verify"
    SEVERITY: ClassVar[Severity] = Severity.NOTICE
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.PEOPLE})
    KEY: ClassVar[tuple[str, ...]] = ("node_id",)
    DETAIL_CHARS: ClassVar[int] = 300

    command: str
    kind: str
    detail: str
    node: str

    @property
    def evidence(self) -> dict[str, object]:
        """The agent's words shortened."""
        return {**super().evidence, "detail": self.detail[: self.DETAIL_CHARS]}

    @property
    def sentence(self) -> str:
        """Who refused what, and what to do."""
        return (
            f"Node {self.node} refused command {self.command} ({self.kind}): {self.detail}. Nothing was carried out;"
            " find out who writes to the database, or enrol the node again if its keys are old."
        )
