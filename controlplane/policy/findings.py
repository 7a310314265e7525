"""What a finding about a device comes to: one judgement for every rule that asks.

Called by `facts`, `proved` and `rules.device_fault`. An XID is judged with how often it came, as
ingest counted it into the signal's evidence. Pure.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.readings import READINGS
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.signals.devices import ReadingPastLimit
from controlplane.policy.snapshot import SignalFact
from controlplane.policy.xid import ACCUSES, ENDS, XidBucket, XidVerdict, judge

DEVICE_READING = ReadingPastLimit.KIND
KINDS = with_trait(Trait.HARDWARE)
PROVING = with_trait(Trait.ENDS)


def verdict_of(signal: SignalFact, config: PolicyConfig) -> XidVerdict:
    """Of a signal of kind xid."""
    evidence = signal.evidence
    return judge(
        int(signal.value),
        detail=str(evidence.get("detail") or ""),
        model=str(evidence.get("model") or ""),
        repeats=int(evidence.get("repeats") or 1),
        elsewhere=int(evidence.get("elsewhere") or 0),
        overrides=config.xid_overrides,
    )


def bucket_of(signal: SignalFact, config: PolicyConfig) -> XidBucket:
    """Of any finding of `KINDS`."""
    if signal.kind == "xid":
        return verdict_of(signal, config).bucket
    if signal.kind == DEVICE_READING:
        limit = READINGS.get(str(signal.evidence.get("reading")))
        return limit.bucket if limit else XidBucket.DEGRADED
    return XidBucket.FATAL


def accuses(signal: SignalFact, config: PolicyConfig) -> bool:
    """Nothing is started on the device that it names."""
    return signal.kind in KINDS and bucket_of(signal, config) in ACCUSES


def ends(signal: SignalFact, config: PolicyConfig) -> bool:
    """What runs on the device it names is over: the device is gone, or its driver says so. A
    reading proves no such thing."""
    return signal.kind in PROVING and bucket_of(signal, config) in ENDS
