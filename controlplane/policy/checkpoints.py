"""Which checkpoint may be resumed from: the trust ladder (U7)."""

from collections.abc import Iterable

import msgspec

from controlplane.policy.snapshot import CheckpointFact, JobSnapshot
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import CheckpointState

TRUSTED = frozenset(
    {
        CheckpointState.COMPLETE,
        CheckpointState.VERIFIED,
        CheckpointState.RESTORE_TESTED,
        CheckpointState.REPLICATED,
    }
)


def newest_trusted(checkpoints: tuple[CheckpointFact, ...]) -> CheckpointFact | None:
    """The trusted one with the highest step, whichever tier (the newer epoch on a tie; of one
    state in both tiers the nearer); None: start from 0."""
    return _newest(fact for fact in checkpoints if fact.state in TRUSTED)


def newest_loadable(
    checkpoints: tuple[CheckpointFact, ...], layout: Parallelism, nodes: frozenset[str]
) -> CheckpointFact | None:
    """The newest trusted one that ranks of `layout` on `nodes` (ids) can load: of the local
    tier only one of the same layout, each of whose shards one of these nodes holds. One that
    ranks could not load is tried again only where there is no other: it may still be sound."""
    found = [fact for fact in checkpoints if fact.state in TRUSTED and _loadable(fact, layout, nodes)]
    return _newest(fact for fact in found if not fact.doubted) or _newest(found)


def led_astray(snapshot: JobSnapshot) -> tuple[CheckpointFact, ...]:
    """The trusted ones that the attempt began with, in either tier, where it has saved none since:
    numbers that go bad came with them. Bytes that are right prove nothing about numbers."""
    attempt, newest = snapshot.attempt, newest_trusted(snapshot.checkpoints)
    if attempt is None or attempt.resume_step <= 0 or newest is None or newest.step > attempt.resume_step:
        return ()
    return tuple(fact for fact in snapshot.checkpoints if fact.state in TRUSTED and fact.step == attempt.resume_step)


def fall_back(snapshot: JobSnapshot) -> JobSnapshot:
    """The same world without what led astray."""
    bad = led_astray(snapshot)
    kept = tuple(fact for fact in snapshot.checkpoints if fact not in bad)
    return msgspec.structs.replace(snapshot, checkpoints=kept)


def skipped_corrupt(
    checkpoints: tuple[CheckpointFact, ...], chosen: CheckpointFact | None
) -> tuple[CheckpointFact, ...]:
    """Corrupt ones that are newer than what is resumed from: worth telling people."""
    floor = chosen.step if chosen else -1
    corrupt = [fact for fact in checkpoints if fact.state is CheckpointState.CORRUPT and fact.step > floor]
    return tuple(sorted(corrupt, key=lambda fact: (fact.step, fact.id)))


def _loadable(fact: CheckpointFact, layout: Parallelism, nodes: frozenset[str]) -> bool:
    if fact.holders is None:
        return True
    same = msgspec.structs.replace(fact.layout, dp="auto") == msgspec.structs.replace(layout, dp="auto")
    return same and bool(fact.holders) and all(nodes.intersection(held) for held in fact.holders)


def _newest(facts: Iterable[CheckpointFact]) -> CheckpointFact | None:
    return max(facts, key=lambda fact: (fact.step, fact.epoch, fact.holders is not None, fact.id), default=None)
