"""Findings about devices: an XID, gone from the bus, a reading past its limit, at risk."""

from dataclasses import dataclass
from typing import ClassVar

from controlplane.policy.signals.base import Finding, Severity, Trait

_HARDWARE = frozenset({Trait.HARDWARE, Trait.SUSPECT, Trait.DEVICE})


@dataclass(frozen=True, kw_only=True)
class XidError(Finding):
    """`at_s`: when the driver told it, Unix seconds; `more`: how often it came."""

    KIND: ClassVar[str] = "xid"
    MEANS: ClassVar[str] = "the driver reported an XID"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = _HARDWARE | {Trait.ENDS}
    KEY: ClassVar[tuple[str, ...]] = ("node_id", "device_index", "xid", "at")
    UNKEPT: ClassVar[tuple[str, ...]] = ("xid", "at_s", "node")
    FAILURE: ClassVar[str] = "xid_fatal"
    TITLE: ClassVar[str] = "XID {xid} on {device}"

    xid: int
    at_s: float
    node: str
    detail: str
    meaning: str
    uuid: str
    model: str

    @property
    def at(self) -> str:
        """To the millisecond, for the key."""
        return f"{self.at_s:.3f}"

    @property
    def value(self) -> float:
        """Its number."""
        return float(self.xid)

    @property
    def sentence(self) -> str:
        """Which, what it means, where."""
        return f"XID {self.xid} ({self.meaning}) on device {self.device_index} of {self.node}."


@dataclass(frozen=True, kw_only=True)
class DeviceGone(Finding):
    """Its driver does not show it any more."""

    KIND: ClassVar[str] = "device_lost"
    MEANS: ClassVar[str] = "a device is not shown by its driver any more"
    SEVERITY: ClassVar[Severity] = Severity.CRITICAL
    TRAITS: ClassVar[frozenset[Trait]] = _HARDWARE | {Trait.ENDS}
    KEY: ClassVar[tuple[str, ...]] = ("node_id", "device_index")
    UNKEPT: ClassVar[tuple[str, ...]] = ("node",)
    TITLE: ClassVar[str] = "{device} fell off the bus"

    node: str
    uuid: str

    @property
    def value(self) -> float:
        """One device."""
        return 1.0

    @property
    def sentence(self) -> str:
        """Which."""
        return f"Device {self.device_index} of {self.node} fell off the bus."


@dataclass(frozen=True, kw_only=True)
class ReadingPastLimit(Finding):
    """`reading` is a row of `policy.readings.READINGS`, `what` how much of it, in words; `more`: all that the
    device told."""

    KIND: ClassVar[str] = "device_reading"
    MEANS: ClassVar[str] = "a reading of a device is past its limit"
    SEVERITY: ClassVar[Severity] = Severity.WARNING
    TRAITS: ClassVar[frozenset[Trait]] = _HARDWARE
    KEY: ClassVar[tuple[str, ...]] = ("device_id", "reading")
    UNKEPT: ClassVar[tuple[str, ...]] = ("device_id", "node", "what", "found", "limit")

    device_id: str
    node: str
    what: str
    found: float
    limit: float
    reading: str
    uuid: str

    @property
    def value(self) -> float:
        """In the reading's unit."""
        return self.found

    @property
    def threshold(self) -> float:
        """In the reading's unit."""
        return self.limit

    @property
    def sentence(self) -> str:
        """What, and how much of it."""
        return f"Device {self.device_index} of {self.node}: {self.what}."


@dataclass(frozen=True, kw_only=True)
class DeviceAtRisk(Finding):
    """`parts`: each one's share of the score."""

    KIND: ClassVar[str] = "device_risk"
    MEANS: ClassVar[str] = "a device's readings pass the risk limit"
    SEVERITY: ClassVar[Severity] = Severity.WARNING
    TRAITS: ClassVar[frozenset[Trait]] = frozenset({Trait.SUSPECT, Trait.DEVICE})
    KEY: ClassVar[tuple[str, ...]] = ("device_id",)
    UNKEPT: ClassVar[tuple[str, ...]] = ("device_id", "node", "score", "limit", "parts")

    device_id: str
    node: str
    score: float
    limit: float
    parts: dict[str, float]
    uuid: str

    @property
    def evidence(self) -> dict[str, object]:
        """Each part by its name."""
        return {**super().evidence, **{f"part_{name}": share for name, share in self.parts.items()}}

    @property
    def value(self) -> float:
        """The score."""
        return round(self.score, 4)

    @property
    def threshold(self) -> float:
        """The score that alarms."""
        return self.limit

    @property
    def sentence(self) -> str:
        """The score, and what made it, the largest share first."""
        shares = sorted(((share, name) for name, share in self.parts.items() if share > 0.0), reverse=True)
        made = ", ".join(f"{name.replace('_', ' ')} {share:.2f}" for share, name in shares) or "no part of it"
        return f"Device {self.device_index} of {self.node} scores {self.score:.2f}: {made}."
