"""Which sentinel leads which shard: played with sentinels that stand still, die, start and see late, at random.

The rows are as the database has them: each move is one by compare-and-set, and a write is committed only under the term
that its row has at that moment. Whatever is played, no term has writes of two sentinels, no write of an earlier term is
committed after one of a later, and each shard is led within the bound while somebody lives.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controlplane.runtime.shards import shard_of
from controlplane.sentinel import leading
from controlplane.sentinel.leading import LEASE_S, LOOK_S, RENEW_S, WITHIN_S, Lease, Member, Plan, assigned, plan

SEEDS = 120
TICK_S = 0.1
PLAYED_S = 60.0
READY_S = 3.0
EXPECTED_SHARD = 2
"""Of `node_1` of four; it may not change while a fleet runs."""


@dataclass
class Row:
    """A lease. `changed_s`: of the last write."""

    owner: str = ""
    term: int = 0
    changed_s: float = -1e9
    handed: bool = False
    count: int = 1


@dataclass
class Player:
    """A sentinel as `Leadership` and its loop play it; `writes_under`: terms with which its loop began."""

    name: str
    count: int
    held: dict[int, int] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    marks: dict[str, tuple[Any, float]] = field(default_factory=dict)
    followed: dict[int, float] = field(default_factory=dict)
    giving: dict[int, str] = field(default_factory=dict)
    renewed_s: float = -1e9
    looked_s: float = -1e9
    paused_until_s: float = -1e9
    born_s: float = 0.0
    writes_under: dict[int, int] = field(default_factory=dict)


class World:
    """Rows, players and what was committed: (shard, term, who)."""

    def __init__(self, seed: int, count: int) -> None:
        self.random, self.count, self.now_s = random.Random(seed), count, 0.0
        self.rows = {shard: Row(count=count) for shard in range(count)}
        self.members: dict[str, tuple[float, frozenset[int]]] = {}
        self.players: dict[str, Player] = {}
        self.committed: list[tuple[int, int, str]] = []
        self.led_s = dict.fromkeys(range(count), 0.0)
        self.somebody_s = 0.0
        self.worst_s = 0.0
        self.names = 0
        self.faults = False
        self.pending: list[tuple[Player, dict[int, Lease], Plan]] = []

    def join(self) -> None:
        self.names += 1
        name = f"s{self.names}"
        self.players[name] = Player(name, self.count, born_s=self.now_s)

    def same_s(self, player: Player, name: str, mark: object) -> float:
        if name not in player.marks or player.marks[name][0] != mark:
            player.marks[name] = (mark, self.now_s)
        return self.now_s - player.marks[name][1]

    def seen(self, player: Player) -> tuple[dict[int, Lease], list[Member]]:
        leases = {
            shard: Lease(
                shard=shard, owner=row.owner, term=row.term, age_s=self.now_s - row.changed_s, handed=row.handed,
                same_s=self.same_s(player, f"lease{shard}", (row.term, row.changed_s, row.owner)), count=row.count,
            )
            for shard, row in self.rows.items()
        }  # fmt: skip
        members = [
            Member(
                name=name, age_s=self.now_s - at, same_s=self.same_s(player, name, at), count=self.count, ready=ready
            )
            for name, (at, ready) in self.members.items()
        ]
        return leases, members

    def look(self, player: Player) -> None:
        """A turn of its leases; between what it sees and what it does another one may act."""
        leases, members = self.seen(player)
        wanted = plan(player.name, self.count, leases, members, player.terms)
        if self.faults and self.random.random() < 0.05:
            self.pause(player)
            self.pending.append((player, leases, wanted))
            return
        self.act(player, leases, wanted)

    def act(self, player: Player, leases: dict[int, Lease], wanted: Plan) -> None:
        ours = (*wanted.keep, *wanted.accept)
        held = {shard: leases[shard].term for shard in wanted.keep if shard in player.held}
        if self.now_s - player.renewed_s >= RENEW_S or set(held) != set(ours):
            player.renewed_s = self.now_s
            held = {shard: leases[shard].term for shard in ours if self.rows[shard].term == leases[shard].term}
            for shard in held:
                self.rows[shard] = replace(self.rows[shard], owner=player.name, changed_s=self.now_s, handed=False)
            self.members[player.name] = (self.now_s, frozenset(
                shard for shard, at in player.followed.items() if shard not in held and self.now_s - at >= READY_S
            ))  # fmt: skip
        for shard in wanted.take:
            row, seen = self.rows[shard], leases[shard]
            if row.term == seen.term and self.now_s - row.changed_s == pytest.approx(
                seen.age_s + self.now_s - player.looked_s
            ):
                self.rows[shard] = Row(player.name, row.term + 1, self.now_s, count=self.count)
                held[shard] = row.term + 1
        player.held, player.giving = held, {s: to for s, to in wanted.give.items() if s in held}
        player.terms |= held
        follow = wanted.follow | held.keys()
        player.followed = {shard: player.followed.get(shard, self.now_s) for shard in follow}

    def loop(self, player: Player) -> None:
        """A turn of its loop: it writes under the term with which it began, and gives what it should."""
        for shard in list(player.writes_under):
            if shard not in player.held:
                del player.writes_under[shard]
        for shard, term in player.held.items():
            under = player.writes_under.setdefault(shard, term)
            if under < term:
                under = player.writes_under[shard] = term
            if not self.commits(shard, under):
                continue
            self.committed.append((shard, under, player.name))
            if to := player.giving.get(shard):
                self.rows[shard] = Row(to, under + 1, self.now_s, handed=True, count=self.count)

    def commits(self, shard: int, term: int) -> bool:
        """As the fence does."""
        return self.rows[shard].term == term

    def pause(self, player: Player) -> None:
        player.paused_until_s = self.now_s + self.random.choice((0.3, 1.0, 4.0, 15.0))

    def tick(self) -> None:
        self.now_s += TICK_S
        for player in self.random.sample(list(self.players.values()), len(self.players)):
            if self.now_s < player.paused_until_s:
                continue
            if self.random.random() < 0.5:
                # It stood still in the middle of its loop, and its leases turn after that.
                self.loop(player)
            for late in [each for each in self.pending if each[0] is player]:
                self.pending.remove(late)
                self.act(*late)
            if self.now_s - player.looked_s >= LOOK_S:
                player.looked_s = self.now_s
                self.look(player)
            if self.now_s >= player.paused_until_s:
                self.loop(player)
        self.watch()

    def awake(self) -> Iterator[Player]:
        """Who lives and does not stand still, for long enough to have looked."""
        return (p for p in self.players.values() if self.now_s >= p.paused_until_s)

    def watch(self) -> None:
        if not any(True for _ in self.awake()):
            self.somebody_s = self.now_s
        for shard, row in self.rows.items():
            if any(p.name == row.owner and shard in p.held for p in self.awake()):
                self.led_s[shard] = self.now_s
            self.worst_s = max(self.worst_s, self.now_s - max(self.led_s[shard], self.somebody_s))


def played(seed: int, count: int, *, faults: bool = True) -> World:
    world = World(seed, count)
    world.faults = faults
    world.join()
    while world.now_s < PLAYED_S:
        world.tick()
        if faults and world.random.random() < 0.02:
            chosen = world.random.choice(list(world.players.values()))
            match world.random.randrange(4):
                case 0 if len(world.players) < 4:
                    world.join()
                case 1 if sum(True for _ in world.awake()) > 1:
                    world.players.pop(chosen.name)
                case _ if sum(True for _ in world.awake()) > 1:
                    world.pause(chosen)
    return world


def judge(world: World) -> None:
    """Of what was committed."""
    newest: dict[int, int] = {}
    owners: dict[tuple[int, int], str] = {}
    for shard, term, name in world.committed:
        assert term >= newest.get(shard, 0), f"shard {shard}: term {term} wrote after {newest[shard]}"
        newest[shard] = term
        assert owners.setdefault((shard, term), name) == name, f"two wrote to shard {shard} under term {term}"


@pytest.mark.parametrize("count", [1, 3, 8])
def test_whatever_stands_still_or_dies_one_leader_writes_and_each_shard_has_one_soon(count: int) -> None:
    worst_s, terms = 0.0, 0
    for seed in range(SEEDS // count + 8):
        world = played(seed, count)
        judge(world)
        assert {shard for shard, _, _ in world.committed} == set(range(count))
        worst_s, terms = max(worst_s, world.worst_s), terms + sum(row.term for row in world.rows.values())
    print(f"{count} shards: without a leader {worst_s:.1f} s at most, {terms} terms")
    assert worst_s <= WITHIN_S
    assert terms > SEEDS, "what is played moves leases"


def test_a_write_that_is_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "commits", lambda *_: True)
    with pytest.raises(AssertionError, match="wrote"):
        for seed in range(SEEDS):
            judge(played(seed, 1))


def test_a_lease_that_lapses_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "LEASE_S", 2 * LEASE_S)
    monkeypatch.setattr(leading, "CONFIRM_S", 2 * LEASE_S)
    assert max(played(seed, 1).worst_s for seed in range(20)) > WITHIN_S


def test_who_joins_is_given_its_share_when_it_hears_it_and_a_shard_is_never_without_a_leader() -> None:
    world = played(1, 8, faults=False)
    for joined in (2, 3, 4):
        world.join()
        world.led_s, world.somebody_s, world.worst_s = dict.fromkeys(range(8), world.now_s), world.now_s, 0.0
        for _ in range(300):
            world.tick()
        shares = sorted(len(player.held) for player in world.players.values())
        assert max(shares) - min(shares) <= 1, shares
        assert len(shares) == joined
        # Until who was given it looks again.
        assert world.worst_s <= LOOK_S + 2 * TICK_S
    judge(world)


def lease(**changes: Any) -> Lease:
    values: dict[str, Any] = {"shard": 0, "owner": "a", "term": 3, "age_s": 0.2, "same_s": 0.2}
    return Lease(**(values | changes))


def of(me: str, held: dict[int, int] | None = None, *, count: int = 1, **changes: Any) -> Plan:
    rows = {shard: lease(shard=shard, count=count, **changes) for shard in range(count)}
    members = [Member(name=name, same_s=0.2, count=count) for name in ("a", "b")]
    return plan(me, count, rows, members, held or {})


def test_a_clock_that_is_ahead_takes_no_lease_that_is_kept() -> None:
    assert of("b", age_s=3600.0).take == ()
    assert of("b", age_s=3600.0, same_s=leading.CONFIRM_S).take == (0,)


def test_one_that_was_written_by_a_clock_ahead_lapses_by_the_own() -> None:
    assert of("b", age_s=-3600.0, same_s=LEASE_S - 0.1).take == ()
    assert of("b", age_s=-3600.0, same_s=LEASE_S).take == (0,)


def test_what_a_process_of_the_same_name_held_is_taken_under_the_next_term() -> None:
    assert of("a").take == (0,)
    assert of("a", {0: 3}).keep == (0,)
    assert of("a", {0: 2}).take == (0,)
    assert of("a", handed=True).accept == (0,)


def test_one_that_counts_other_shards_leads_nothing_and_says_why() -> None:
    rows = {shard: lease(shard=shard, count=2) for shard in range(4)}
    found = plan("b", 4, rows, [], {1: 7})
    assert found.leave == (1,)
    assert not found.take
    assert "HOLDFAST_SENTINEL_SHARDS" in found.why
    # Those with the other number have ended: the first shard is taken first, and with it the number.
    ended = {shard: lease(shard=shard, count=2, same_s=LEASE_S) for shard in range(4)}
    assert plan("b", 4, ended, [], {}).take == (0, 1, 2, 3)
    ended = {shard: replace(each, owner="x") for shard, each in ended.items()}
    assert plan("b", 4, ended, [Member(name="a", count=4, same_s=0.1), Member(name="c", count=4)], {}).take == ()


def test_what_nobody_takes_whose_share_it_is_anybody_takes() -> None:
    rows = {shard: lease(shard=shard, owner="", count=4) for shard in range(4)}
    members = [Member(name=name, count=4) for name in ("a", "b")]
    assert plan("b", 4, rows, members, {}).take == (1, 3)
    late = {shard: replace(each, same_s=leading.PATIENCE_S) for shard, each in rows.items()}
    assert plan("b", 4, late, members, {}).take == (0, 1, 2, 3)


def test_shares_are_even_and_stay_where_they_are() -> None:
    live = {0: "a", 1: "a", 2: "b"}
    assert assigned(range(3), live, {"a", "b"}, {}) == live
    target = assigned(range(8), dict.fromkeys(range(8), "a"), {"a", "b", "c"}, {})
    assert sorted(list(target.values()).count(name) for name in "abc") == [2, 3, 3]
    assert [target[shard] for shard in range(2)] == ["a", "a"]
    assert assigned([0, 1], {0: "a"}, {"a", "b", "c"}, {"c": frozenset({1})}) == {0: "a", 1: "c"}


def test_a_node_is_in_the_same_shard_in_each_process_and_shards_are_even() -> None:
    assert [shard_of(f"node_{n}", 4) for n in range(8)] == [shard_of(f"node_{n}", 4) for n in range(8)]
    assert shard_of("node_1", 4) == EXPECTED_SHARD
    sizes = [0] * 8
    for number in range(8000):
        sizes[shard_of(f"node_{number}", 8)] += 1
    assert min(sizes) > 850
    assert max(sizes) < 1150
