"""Which sentinel leads which shard: from the rows of leases and members, as one of the sentinels sees them, to what it
does now. Pure: holds no clock and no row.

Each shard has a lease with a term. Who takes it raises the term; each write of a shard's leader is committed only
while the row has the term under which the leader began (`sentinel.fence`), so what two sentinels believe at the same
moment does not matter. This decides only how soon a shard has a leader again, and how evenly shards lie.

A lease lapses when its row stays as it is: for `LEASE_S` by the observer's monotonic clock, or a little sooner where
its age says the same. A clock that is ahead on one machine takes no lease from a leader that keeps it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

LEASE_S = 3.0
RENEW_S = 1.0
LOOK_S = 0.5
CONFIRM_S = 2.0
"""A lease that is old by the clock is seen unchanged for so long before it is taken: its leader renews it in time."""
PATIENCE_S = 0.5
"""Longer lapsed than this, a lease is taken by whoever sees it, not only by whose share it is."""
HUNG_S = 20.0
"""A sentinel whose loop has not turned for so long leads nothing while another one lives: longer than a statement of
the database may take."""
WITHIN_S = 5.0
"""A shard is led again so soon after its leader's end, while one sentinel lives (R32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One shard's row. `owner` "": given back, or there is none yet. `age_s` by the clock, `same_s`: for so long the
    observer has seen it as it is. `count`: how many shards its owner counts. `handed`: its owner before gave it."""

    shard: int
    owner: str = ""
    term: int = 0
    age_s: float = 0.0
    same_s: float = 0.0
    count: int = 1
    handed: bool = False

    @property
    def lapsed(self) -> bool:
        """It may be taken."""
        return not self.owner or stale(self.age_s, self.same_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A sentinel's own row. `ready`: shards that it hears for long enough to lead them."""

    name: str
    age_s: float = 0.0
    same_s: float = 0.0
    count: int = 1
    ready: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`keep`: leases to renew; `accept`: that were given to us; `take`: to be ours under the next term; `give`: ours,
    to whom; `leave`: ours, to give back; `follow`: shards to hear. `why` not empty: why we lead
    nothing."""

    keep: tuple[int, ...] = ()
    accept: tuple[int, ...] = ()
    take: tuple[int, ...] = ()
    give: Mapping[int, str] = field(default_factory=dict)
    leave: tuple[int, ...] = ()
    follow: frozenset[int] = frozenset()
    why: str = ""


def stale(age_s: float, same_s: float) -> bool:
    """A row whose process does not keep it any more."""
    return same_s >= LEASE_S or (age_s >= LEASE_S and same_s >= CONFIRM_S)


def plan(
    me: str,
    count: int,
    leases: Mapping[int, Lease],
    members: Collection[Member],
    held: Mapping[int, int],
    *,
    hung: bool = False,
) -> Plan:
    """What `me` does now. `leases` of each shard; `held`: the terms under which we lead by our own memory; `hung`: our
    loop stands still."""
    base = leases[0]
    if base.owner not in ("", me) and not base.lapsed and base.count != count:
        why = f"another sentinel runs with {base.count} shards, this one with {count}: HOLDFAST_SENTINEL_SHARDS differs"
        return Plan(leave=tuple(sorted(held)), why=why)
    mine = {shard for shard, lease in leases.items() if _is_mine(lease, me, held)}
    live = {
        shard: lease.owner
        for shard, lease in leases.items()
        if shard in mine or (lease.owner != me and not lease.lapsed and lease.count == count)
    }
    gone = {lease.owner for shard, lease in leases.items() if shard not in live}
    names = _alive(me, count, members) - (gone - set(live.values())) | {me} | set(live.values())
    if hung and names != {me}:
        return Plan(leave=tuple(sorted(mine)), why="its loop stands still")
    ready = {member.name: member.ready for member in members}
    target = assigned(range(count), live, names, ready)
    standby = {shard: _standby(shard, owner, names) for shard, owner in target.items()}
    free = [shard for shard in range(count) if shard not in live]
    take = [shard for shard in free if target[shard] == me or _waits(leases[shard])]
    if base.count != count and 0 not in live and 0 not in take:
        # Who holds the first shard says how many there are.
        take = []
    return Plan(
        keep=tuple(sorted(shard for shard in mine if held.get(shard) == leases[shard].term)),
        accept=tuple(sorted(shard for shard in mine if held.get(shard) != leases[shard].term)),
        take=tuple(take),
        give={s: target[s] for s in sorted(mine) if target[s] != me and s in ready.get(target[s], ())},
        follow=frozenset(s for s in range(count) if s in mine or me in (target[s], standby[s])),
    )


def assigned(
    shards: Collection[int],
    live: Mapping[int, str],
    names: Collection[str],
    ready: Mapping[str, frozenset[int]],
) -> dict[int, str]:
    """Who is to lead each shard: who does, but so that nobody leads two more than another. The same for whoever
    computes it of the same rows; free ones go to who hears them already, where shares are even."""
    target = dict(live)
    load = {name: sum(owner == name for owner in live.values()) for name in sorted(names)}
    for shard in sorted(set(shards) - target.keys()):
        name = min(load, key=lambda each: (load[each], shard not in ready.get(each, ()), each))
        target[shard] = name
        load[name] += 1
    while True:
        most, least = max(load, key=lambda each: (load[each], each)), min(load, key=lambda each: (load[each], each))
        if load[most] - load[least] < 2:
            return target
        shard = max(shard for shard, owner in target.items() if owner == most)
        target[shard] = least
        load[most], load[least] = load[most] - 1, load[least] + 1


def _is_mine(lease: Lease, me: str, held: Mapping[int, int]) -> bool:
    """Led by us, or given to us. One with our name that we do not know is that of a process before us."""
    return lease.owner == me and (held.get(lease.shard) == lease.term or lease.handed)


def _alive(me: str, count: int, members: Collection[Member]) -> set[str]:
    return {each.name for each in members if each.count == count and not stale(each.age_s, each.same_s)}


def _standby(shard: int, owner: str, names: Collection[str]) -> str:
    """Who hears a shard beside its leader: "" where nobody else lives."""
    others = sorted(set(names) - {owner})
    return others[shard % len(others)] if others else ""


def _waits(lease: Lease) -> bool:
    """Nobody whose share it is has taken it."""
    return lease.same_s >= (LEASE_S + PATIENCE_S if lease.owner else PATIENCE_S)
