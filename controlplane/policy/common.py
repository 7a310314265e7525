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

Half of them or fewer, late in a step at once on several nodes, share something too: a switch, a storage, an input. The
others go on without them (`few`: `leave_out`), and nothing of them is ended before `few_limit_s`: who gets loose
comes back. Where too few would be left to go on, all wait as for a stall of most.

When the stall ends, one rank goes on before the other. Its finding counts, and stays open, until all go on
or `common_grace_s` are over: who comes out last is not to blame for it.

Used by `failures`, which leaves such hangs out, and by the rule `common_stall`, which tells them.
"""

import math

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import contributes, holds_state, is_member, live_replicas, signals_of
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.void import PHASE_SINCE, is_void
from controlplane.protocol.states import Section

HANG = "hang"
STALLED = "stalled"
"""The kind of a failure that a few share: late in a step at once, on several nodes."""
GATHER_S = 1.0
"""So long after the last of them is late more are waited for: what they share holds them up alike."""
LATE = "rank_overdue"


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hangs of one section since `since_s`, of `late` out of `of` replicas (`unit` "replicas") or
    ranks (`savers`: of those replicas alone that save). `until_s`: until when nothing is ended for it. `told`
    False: too early to say. `few`: of half or less; the others go on without them. `moved`: findings of those that go
    on already, while the rest has a little time to."""

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
    if found.few:
        return tuple(_left_to_stand(f) if f in found.failures else f for f in failures)
    stalled = found.section == Section.CHECKPOINTING and found.told
    return tuple(f for f in failures if f not in found.failures and not (stalled and _waits_in_a_step(snapshot, f)))


def _left_to_stand(failure: Failure) -> Failure:
    """Enough to go on without it, and not to end it."""
    return msgspec.structs.replace(failure, kind=STALLED, hung=False, reversible=True)


def _waits_in_a_step(snapshot: JobSnapshot, failure: Failure) -> bool:
    """It is late in a step, and its process speaks."""
    return failure.kind == HANG and _speaks(failure) and _section(snapshot, failure) == Section.STEP


def _speaks(failure: Failure) -> bool:
    return failure.evidence.get("cause") != "frozen"


def _judge(snapshot: JobSnapshot, config: PolicyConfig, section: str, hung: tuple[Failure, ...]) -> Common | None:
    saving = section == Section.CHECKPOINTING
    moved = tuple(s for s in signals_of(snapshot, LATE) if _section_of(s) == section and is_void(snapshot, s))
    signals = (*moved, *(signal for failure in hung for signal in _signals(snapshot, failure)))
    since_s = min(signal.seen_s for signal in signals)
    named = {signal.replica for signal in signals}
    # Who was left out for it, and who is back and catches up, is one of them.
    computing = [each for each in live_replicas(snapshot) if contributes(snapshot, each) or each.index in named]
    late, of, unit = len(named), len(computing), "replicas"
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
    savers = sum(replica.world_size for replica in computing if replica.index in named)
    if saving and of >= 2 and 0 < savers < 2 * len(_ranks(signals)):
        until_s = min(since_s + config.common_limit_s, over_s)
        return msgspec.structs.replace(
            found, late=len(_ranks(signals)), of=savers, unit="ranks that save", until_s=until_s, savers=True
        )
    few = tuple(failure for failure in hung if section == Section.STEP and _speaks(failure))
    early = of >= 2 and (saving or _another_is_at_work(computing, signals))
    if few and _on_several_nodes(snapshot, (*moved, *(s for failure in few for s in _signals(snapshot, failure)))):
        return _of_few(snapshot, config, msgspec.structs.replace(found, failures=few), more=early)
    early = early and snapshot.now_s < since_s + config.common_grace_s
    return msgspec.structs.replace(found, told=False, until_s=since_s + config.common_grace_s) if early else None


def _of_few(snapshot: JobSnapshot, config: PolicyConfig, found: Common, *, more: bool) -> Common:
    """The others go on without them, if they are enough: in one view, so that while `more` may be late the last one's
    finding is a moment old. Who gets loose has its step to end before it is seen to."""
    last_s = max(signal.seen_s for failure in found.failures for signal in _signals(snapshot, failure))
    if more and snapshot.now_s < last_s + GATHER_S:
        return msgspec.structs.replace(found, told=False, until_s=last_s + GATHER_S)
    late = {failure.replica.index for failure in found.failures}
    stay = (r for r in live_replicas(snapshot) if is_member(snapshot, r) and r.index not in late)
    if sum(holds_state(snapshot, r) for r in stay) < max(1, snapshot.job.spec.resources.min_replicas):
        return found
    over_s = min(found.until_s, found.since_s + config.few_limit_s)
    step_s = (snapshot.learned.step_max_s or 0.0) if found.moved else 0.0
    return msgspec.structs.replace(found, few=True, until_s=over_s + step_s)


def _another_is_at_work(computing: list[ReplicaFact], late: tuple[SignalFact, ...]) -> bool:
    """On another node than those that are late, and waits for nobody."""
    found, nodes = {signal.replica for signal in late}, {signal.node_id for signal in late}
    working = (r for r in computing if r.index not in found and r.working_since_s is not None and not r.waiting)
    return any(nodes.isdisjoint(replica.node_ids) for replica in working)


def _on_several_nodes(snapshot: JobSnapshot, late: tuple[SignalFact, ...]) -> bool:
    """Of several replicas, and no node has all of them: it would be the cause."""
    named = {signal.replica for signal in late if signal.replica is not None}
    homes = [
        frozenset(found.node_ids) for index in named if (found := snapshot.replica_by_index.get(index)) is not None
    ]
    return len(homes) > 1 and not frozenset.intersection(*homes)


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
