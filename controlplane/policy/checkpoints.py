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


class Astray(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`bad`: trusted ones that nothing resumes from again, by id. `suspect`: those with which the attempts
    that saved the bad ones began; the next save of theirs that goes bad takes them along. `suspect_step`: that
    of the newest bad one."""

    bad: tuple[CheckpointFact, ...] = ()
    suspect: tuple[CheckpointFact, ...] = ()
    suspect_step: int = 0


def led_astray(snapshot: JobSnapshot, *, at_once: bool = False) -> Astray:
    """What bad numbers of the current attempt came with, in either tier: right bytes prove nothing about numbers.
    What it began with, where it has saved none since, or none newer than the save for which that is suspect; else
    its newest save has a try first. `at_once`: the numbers were bad from its first steps, so its saves go too."""
    attempt = snapshot.attempt
    if attempt is None or attempt.resume_step <= 0:
        return Astray()
    trusted = [fact for fact in snapshot.checkpoints if fact.state in TRUSTED]
    first = [fact for fact in trusted if fact.step == attempt.resume_step]
    since = [f for f in trusted if f.step > attempt.resume_step and f.committed_s >= attempt.started_s]
    again = max((fact.suspect_step for fact in first), default=0)
    if since and not at_once and max(fact.step for fact in since) > again:
        return Astray()
    return _with_ancestors(trusted, [*first, *since])


def _with_ancestors(trusted: list[CheckpointFact], bad: list[CheckpointFact]) -> Astray:
    """What the attempts that saved the bad ones began with is suspect; where it was already, it goes with them."""
    suspect_step = max((fact.step for fact in bad), default=0)
    suspect: dict[str, CheckpointFact] = {}
    found = bad
    while found:
        roots = {fact.begun_at for fact in found if fact.begun_at > 0}
        older = [fact for fact in trusted if fact.step in roots and fact not in bad]
        found = [fact for fact in older if fact.suspect_step > 0]
        suspect |= {fact.id: fact for fact in older if fact.suspect_step == 0}
        bad = [*bad, *found]
    return Astray(bad=_by_id(bad), suspect=_by_id(suspect.values()), suspect_step=suspect_step)


def fall_back(snapshot: JobSnapshot, astray: Astray) -> JobSnapshot:
    """The same world without what led astray."""
    if not astray.bad:
        return snapshot
    kept = tuple(fact for fact in snapshot.checkpoints if fact not in astray.bad)
    return msgspec.structs.replace(snapshot, checkpoints=kept)


def skipped_corrupt(
    checkpoints: tuple[CheckpointFact, ...], chosen: CheckpointFact | None
) -> tuple[CheckpointFact, ...]:
    """Corrupt ones that are newer than what is resumed from: worth telling people."""
    floor = chosen.step if chosen else -1
    corrupt = [fact for fact in checkpoints if fact.state is CheckpointState.CORRUPT and fact.step > floor]
    return tuple(sorted(corrupt, key=lambda fact: (fact.step, fact.id)))


def _by_id(facts: Iterable[CheckpointFact]) -> tuple[CheckpointFact, ...]:
    return tuple(sorted(facts, key=lambda fact: fact.id))


def _loadable(fact: CheckpointFact, layout: Parallelism, nodes: frozenset[str]) -> bool:
    if fact.holders is None:
        return True
    same = msgspec.structs.replace(fact.layout, dp="auto") == msgspec.structs.replace(layout, dp="auto")
    return same and bool(fact.holders) and all(nodes.intersection(held) for held in fact.holders)


def _newest(facts: Iterable[CheckpointFact]) -> CheckpointFact | None:
    return max(facts, key=lambda fact: (fact.step, fact.epoch, fact.holders is not None, fact.id), default=None)
