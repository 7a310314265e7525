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

Limits of a step are over for one replica after the other, and where another one, on another node, is still at work
when the first is found late, it is the first of several as likely as alone: it is not judged before the others have had
`common_grace_s` to be late too. Whom all others wait for in the exchange is alone, and judged at once.

Half of them or fewer, late in a step at once on several nodes, share something too (`few`). Each section is judged by
itself, and what is found in one takes nothing from another.

When the stall ends, one rank goes on before the other. Its finding counts, and stays open, until all go on
or `common_grace_s` are over: who comes out last is not to blame for it.

Used by `failures`, which leaves such hangs out, and by the rule `common_stall`, which tells them.
"""

import math
from collections.abc import Mapping

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import contributes, live_replicas, signals_of
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.void import PHASE_SINCE, is_void
from controlplane.protocol.states import Section

HANG = "hang"
LATE = "rank_overdue"
STALLED = "stalled"
"""The kind of a failure that a few share: late in a step at once, on several nodes."""
Findings = Mapping[int, tuple[SignalFact, ...]]
"""The findings that a hang rests on, by replica."""


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hangs of one section since `since_s`, of `late` out of `of` replicas (`unit` "replicas") or
    ranks (`savers`: of those replicas alone that save). `until_s`: until when nothing is ended for it. `told`
    False: too early to say. `few`: of half or less; the others go on without them; `gathering`: of these, what may be
    the first of more, and waits for a moment. `scarce`: too few would be left to go on without them. `moved`: findings
    of those that go on already, while the rest has a little time to. `waits`: replicas late in a step meanwhile, which
    wait for the same."""

    section: str
    failures: tuple[Failure, ...]
    late: int
    of: int
    unit: str
    since_s: float
    until_s: float
    told: bool = True
    savers: bool = False
    few: bool = False
    gathering: tuple[Failure, ...] = ()
    scarce: bool = False
    moved: tuple[str, ...] = ()
    waits: tuple[int, ...] = ()


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """All hangs of one `section`, the findings that they rest on, and those of ranks there that go on already."""

    section: str
    failures: tuple[Failure, ...]
    findings: Findings
    moved: tuple[SignalFact, ...]

    def signals(self) -> tuple[SignalFact, ...]:
        """Of all of them."""
        return (*self.moved, *(signal for failure in self.failures for signal in self.findings[failure.replica.index]))


def hung_by_section(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> tuple[Hung, ...]:
    """In the order of the sections' names."""
    known = {signal.id: signal for signal in snapshot.signals}
    late = [failure for failure in failures if failure.kind == HANG]
    findings = {f.replica.index: tuple(known[each] for each in f.signal_ids if each in known) for f in late}
    moved: dict[str, list[SignalFact]] = {}
    for signal in signals_of(snapshot, LATE) if late else ():
        if is_void(snapshot, signal):
            moved.setdefault(_section_of(signal), []).append(signal)
    by_section: dict[str, list[Failure]] = {}
    for failure in late:
        section = next((where for signal in findings[failure.replica.index] if (where := _section_of(signal))), "")
        by_section.setdefault(section, []).append(failure)
    return tuple(
        Hung(section=section, failures=tuple(each), findings=findings, moved=tuple(moved.get(section, ())))
        for section, each in sorted(by_section.items())
    )


def waiting_in_a_step(hung: tuple[Hung, ...]) -> tuple[int, ...]:
    """Replicas that are late in a step, and whose processes speak."""
    return tuple(f.replica.index for each in hung if each.section == Section.STEP for f in each.failures if speaks(f))


def without_common(failures: tuple[Failure, ...], stalls: tuple[Common, ...]) -> tuple[Failure, ...]:
    """The failures that are each replica's own, and those of a few, to be left out. While the storage stands still, a
    step that lasts is none, unless its process says nothing at all."""
    stand = {f.replica.index for stall in stalls if stall.few for f in stall.failures}
    wait = {f.replica.index for stall in stalls for f in (stall.gathering if stall.few else stall.failures)}
    wait |= {index for stall in stalls for index in stall.waits}
    kept = (failure for failure in failures if failure.kind != HANG or failure.replica.index not in wait)
    return tuple(_left_to_stand(f) if f.kind == HANG and f.replica.index in stand else f for f in kept)


def _left_to_stand(failure: Failure) -> Failure:
    """Enough to go on without it, and not to end it."""
    return msgspec.structs.replace(failure, kind=STALLED, hung=False, reversible=True)


def speaks(failure: Failure) -> bool:
    """Its process does; one that says nothing is stopped."""
    return failure.evidence.get("cause") != "frozen"


def common_stall(snapshot: JobSnapshot, config: PolicyConfig, hung: Hung) -> Common | None:
    """Hangs of most, or of all that save; or the first that is late, while others may be late too."""
    saving, signals, named = hung.section == Section.CHECKPOINTING, hung.signals(), named_by(hung)
    since_s = min(signal.seen_s for signal in signals)
    computing = [replica for replica in live_replicas(snapshot) if contributes(snapshot, replica)]
    late, of, unit = sum(replica.index in named for replica in computing), len(computing), "replicas"
    if of < 2:
        late, of, unit = len(_ranks(signals)), sum(replica.world_size for replica in computing), "ranks"
        if not saving:
            return None
    limit_s = config.storage_limit_s if saving else config.common_limit_s
    # It ends for one rank after the other: what is still late soon after the first is judged by itself.
    over_s = min((_moved_s(signal) for signal in hung.moved), default=math.inf) + config.common_grace_s
    found = Common(
        section=hung.section,
        failures=hung.failures,
        late=late,
        of=of,
        unit=unit,
        since_s=since_s,
        until_s=min(since_s + limit_s, over_s),
        moved=tuple(signal.id for signal in hung.moved),
    )
    if late >= 2 and 2 * late > of:
        return found
    savers = sum(replica.world_size for replica in computing if replica.index in named)
    if saving and of >= 2 and 0 < savers < 2 * len(_ranks(signals)):
        until_s = min(since_s + config.common_limit_s, over_s)
        return msgspec.structs.replace(
            found, late=len(_ranks(signals)), of=savers, unit="ranks that save", until_s=until_s, savers=True
        )
    early = of >= 2 and snapshot.now_s < since_s + config.common_grace_s
    early = early and (saving or another_is_at_work(computing, signals))
    return msgspec.structs.replace(found, told=False, until_s=since_s + config.common_grace_s) if early else None


def another_is_at_work(computing: list[ReplicaFact], late: tuple[SignalFact, ...]) -> bool:
    """On another node than those that are late, and waits for nobody."""
    found, nodes = {signal.replica for signal in late}, {signal.node_id for signal in late}
    working = (r for r in computing if r.index not in found and r.working_since_s is not None and not r.waiting)
    return any(nodes.isdisjoint(replica.node_ids) for replica in working)


def named_by(hung: Hung) -> set[int | None]:
    """The replicas."""
    return {signal.replica for signal in hung.signals()}


def _ranks(signals: tuple[SignalFact, ...]) -> set[tuple[int | None, int | None]]:
    return {(signal.replica, signal.rank) for signal in signals}


def _moved_s(signal: SignalFact) -> float:
    """When the rank that was late went on; minus infinity where nobody said."""
    at_s = signal.evidence.get(PHASE_SINCE)
    return float(at_s) if isinstance(at_s, (int, float)) else -math.inf


def _section_of(signal: SignalFact) -> str:
    """Where its rank is late; "" where it did not say."""
    return str(signal.evidence.get("section", ""))
