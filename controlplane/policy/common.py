"""A cause that many share comes before the blame of each.

When the storage under a job stalls every rank that saves is late at about the same time, and none
of them is at fault: to start them all again helps nothing, stalls at the same place, and after
three times the job would have failed. So hangs of more than half of the replicas that compute (of
one replica: of more than half of its ranks) in one section are one finding. Nothing is ended for
it until its limit is over; then the attempt restarts as for any hang.

Mostly one replica saves for all, and the others wait for it in their exchange: nobody else can be late
in a save then, and all of its own ranks are. Late there, one replica alone is not judged before the
others have had `common_grace_s` to be late too. If more than half of its ranks are late, the storage is
taken for the cause for `common_limit_s`, and then the replica: its node alone may have lost the storage,
and another one saves.

A replica that is late in a step meanwhile, and speaks, waits for the same storage.

Limits of a step are over for one replica after the other, and where most of them are still at work when the first is
found late, it is the first of many as likely as alone: it is not judged before the others have had `common_grace_s`
to be late too. Whom most others wait for in the exchange is alone, and judged at once.

When the stall ends, one rank goes on before the other. Its finding counts, and stays open, until all go on
or `common_grace_s` are over: who comes out last is not to blame for it.

Used by `failures`, which leaves such hangs out, and by the rule `common_stall`, which tells them.
"""

import math

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import contributes, live_replicas, signals_of
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.void import PHASE_SINCE, is_void
from controlplane.protocol.states import Section

HANG = "hang"
LATE = "rank_overdue"


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hangs of one section since `since_s`, of `late` out of `of` replicas (`unit` "replicas") or
    ranks (`savers`: of those replicas alone that save). `until_s`: until when nothing is ended for it. `told`
    False: too early to say. `moved`: findings of those that go on already, while the rest has a little time to."""

    section: str
    failures: tuple[Failure, ...]
    late: int
    of: int
    unit: str
    since_s: float
    until_s: float
    told: bool = True
    savers: bool = False
    moved: tuple[str, ...] = ()


def common_stall(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Common | None:
    """The hangs that one cause explains, while they are not to be acted on; None: there is none."""
    by_section: dict[str, list[Failure]] = {}
    for failure in failures:
        if failure.kind == HANG:
            by_section.setdefault(_section(snapshot, failure), []).append(failure)
    for section, hung in sorted(by_section.items()):
        found = _judge(snapshot, config, section, tuple(hung))
        if found is not None and snapshot.now_s < found.until_s:
            return found
    return None


def without_common(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """The failures that are each replica's own. While the storage stands still, a step that lasts is none:
    it waits for the same, unless its process says nothing at all."""
    found = common_stall(snapshot, config, failures)
    if found is None:
        return failures
    stalled = found.section == Section.CHECKPOINTING and found.told
    return tuple(f for f in failures if f not in found.failures and not (stalled and _waits_in_a_step(snapshot, f)))


def _waits_in_a_step(snapshot: JobSnapshot, failure: Failure) -> bool:
    """It is late in a step, and its process speaks."""
    speaks = failure.evidence.get("cause") != "frozen"
    return failure.kind == HANG and speaks and _section(snapshot, failure) == Section.STEP


def _judge(snapshot: JobSnapshot, config: PolicyConfig, section: str, hung: tuple[Failure, ...]) -> Common | None:
    saving = section == Section.CHECKPOINTING
    moved = tuple(s for s in signals_of(snapshot, LATE) if _section_of(s) == section and is_void(snapshot, s))
    signals = (*moved, *(signal for failure in hung for signal in _signals(snapshot, failure)))
    since_s = min(signal.seen_s for signal in signals)
    computing = [replica for replica in live_replicas(snapshot) if contributes(snapshot, replica)]
    late, of, unit = len({signal.replica for signal in signals}), len(computing), "replicas"
    if of < 2:
        late, of, unit = len(_ranks(signals)), sum(replica.world_size for replica in computing), "ranks"
        if not saving:
            return None
    limit_s = config.storage_limit_s if saving else config.common_limit_s
    # It ends for one rank after the other: what is still late soon after the first is judged by itself.
    over_s = min((_moved_s(signal) for signal in moved), default=math.inf) + config.common_grace_s
    found = Common(
        section=section,
        failures=hung,
        late=late,
        of=of,
        unit=unit,
        since_s=since_s,
        until_s=min(since_s + limit_s, over_s),
        moved=tuple(signal.id for signal in moved),
    )
    if late >= 2 and 2 * late > of:
        return found
    savers = sum(replica.world_size for replica in computing if replica.index in {s.replica for s in signals})
    if saving and of >= 2 and 0 < savers < 2 * len(_ranks(signals)):
        until_s = min(since_s + config.common_limit_s, over_s)
        return msgspec.structs.replace(
            found, late=len(_ranks(signals)), of=savers, unit="ranks that save", until_s=until_s, savers=True
        )
    early = of >= 2 and snapshot.now_s < since_s + config.common_grace_s
    early = early and (saving or _most_are_at_work(computing))
    return msgspec.structs.replace(found, told=False, until_s=since_s + config.common_grace_s) if early else None


def _most_are_at_work(computing: list[ReplicaFact]) -> bool:
    """More than half of those that compute a step are at it, and wait for nobody."""
    working = sum(replica.working_since_s is not None and not replica.waiting for replica in computing)
    return 2 * working > len(computing)


def _ranks(signals: tuple[SignalFact, ...]) -> set[tuple[int | None, int | None]]:
    return {(signal.replica, signal.rank) for signal in signals}


def _moved_s(signal: SignalFact) -> float:
    """When the rank that was late went on; minus infinity where nobody said."""
    at_s = signal.evidence.get(PHASE_SINCE)
    return float(at_s) if isinstance(at_s, (int, float)) else -math.inf


def _signals(snapshot: JobSnapshot, failure: Failure) -> tuple[SignalFact, ...]:
    return tuple(signal for signal in snapshot.signals if signal.id in failure.signal_ids)


def _section(snapshot: JobSnapshot, failure: Failure) -> str:
    """Where its ranks are late; "" where they did not say."""
    return next((found for s in _signals(snapshot, failure) if (found := _section_of(s))), "")


def _section_of(signal: SignalFact) -> str:
    return str(signal.evidence.get("section", ""))
