"""The newest pictures, for decisions, the API and the browsers: written where something has changed, in few bytes.

Called by the leader in each turn. How often a picture is written depends on what it costs, never what it says: each
node's at most once in `NODE_EVERY_S` and `NODES_AT_ONCE` of them in a turn, the longest waiting first; ranks of jobs
each turn while they are few, once in `RANKS_LATEST_S` at the latest. How long each node is silent is in one picture
of all nodes, which is new in each turn. To browsers goes what one of them watches, by what their web processes say
(`bus.watch_key`); of a web process that does not say it, everything. Of nodes and ranks it is no more than one page
can show, however large the fleet.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import Phase, Section
from controlplane.runtime import bus
from controlplane.runtime.clock import from_s, iso
from controlplane.runtime.isolate import isolated
from controlplane.runtime.shards import part_name
from controlplane.sentinel.columns import Floats
from controlplane.sentinel.fleetmap import FleetMap
from controlplane.sentinel.heard import LiveNode, LiveRank
from controlplane.sentinel.live_state import LiveState

NODE_EVERY_S = 0.9
"""Samples come once a second; an agent that sends events in between does not cost more."""
NODES_AT_ONCE = 1000
REFRESH_S = bus.LIVE_EXPIRE_S / 3
"""What does not change is written again before it expires."""
RANKS_A_SECOND = 16_000
RANKS_LATEST_S = 1.0
EARLY_S = 0.1
"""A turn that comes a little early is not put off to the next."""
REACHABLE_S = 1.0
MOST_NODES, MOST_RANKS = 64, 256
"""A browser that watches a job on more nodes, or of more ranks, is not sent all of them each second: it shows a picture
of them, which it asks for (`jobs.mesh`), and one replica."""
Elsewhere = Callable[[str], Mapping[str, Any] | None]
_json = msgspec.json.Encoder().encode


class RankLive(msgspec.Struct, frozen=True):
    """A rank's live state as the API shows it, at the moment of the picture. Ages in seconds."""

    section: Section
    phase: Phase
    step: int
    phase_age_s: float
    silent_s: float
    phase_since_s: float
    at: str | None


class Publisher:
    """Of one shard. `watched`: topics that a browser watches; None: it is not known, so all of them. `elsewhere`: of a
    job the live states of its ranks in other shards, None where another shard tells of the whole job."""

    def __init__(self, shard: int = 0, count: int = 1, elsewhere: Elsewhere | None = None) -> None:
        self._named = partial(part_name, shard=shard, count=count)
        self._elsewhere = elsewhere or (lambda job_id: {})
        self.watched: frozenset[str] | None = None
        self._written_s: Floats = np.empty(0)
        self._ranks_s = -np.inf
        self._reachable: tuple[float, float | None] = (-np.inf, None)
        self._risks: dict[int, tuple[int, bytes]] = {}

    def hear_watched(self, processes: Collection[str]) -> None:
        """What the browsers of these web processes watch now."""
        found = bus.read_live_of([bus.watch_key(name) for name in processes])
        topics = [found.get(bus.watch_key(name), {}).get("topics") for name in processes]
        known = [each for each in topics if each is not None]
        self.watched = None if len(known) < len(topics) else frozenset().union(*known)

    def publish(self, live_state: LiveState, now_s: float, *, sight: dict[str, Any]) -> None:
        """What is due of everything, in one round trip or a few."""
        if not 0.0 <= now_s - self._reachable[0] < REACHABLE_S:
            self._reachable = now_s, live_state.reachable_risk()
        published: dict[str, Any] = {
            self._named("sight"): sight,
            self._named("nodes"): _silent(live_state, now_s),
            self._named("fleet"): _scored(live_state, self._reachable[1]),
        }
        every_s = min(RANKS_LATEST_S, len(live_state.ranks) / RANKS_A_SECOND)
        if not 0.0 <= now_s - self._ranks_s < every_s - EARLY_S:
            self._ranks_s = now_s
            published |= {self._job(job_id): ranks_of(ranks, now_s) for job_id, ranks in live_state.jobs.items()}
        for node_id in self._due(live_state, now_s):
            isolated("live state", node_id, partial(self._put_node, published, live_state, node_id, now_s))
        if not bus.write_live(published):
            self._written_s[:], self._ranks_s = -np.inf, -np.inf

    def publish_jobs(self, live_state: LiveState, now_s: float, job_ids: Collection[str]) -> None:
        """The ranks of these jobs at once: a decision about them is asked for."""
        if job_ids:
            bus.write_live({self._job(job_id): ranks_of(live_state.jobs[job_id], now_s) for job_id in job_ids})

    def _job(self, job_id: str) -> str:
        return self._named(f"job:{job_id}")

    def tell_ranks(self, live_state: LiveState, now_s: float) -> None:
        """Rank pictures to the browsers, a message a job that is watched; of larger jobs they ask (`jobs.mesh`)."""
        at = iso(from_s(now_s))
        bus.publish_volatiles(
            (f"job:{job_id}", {"type": "ranks", "job_id": job_id, "at": at, "ranks": [*_placed(ranks, now_s), *more]})
            for job_id, ranks in live_state.jobs.items()
            if self._is_watched(f"job:{job_id}") and (more := self._rest_of(job_id)) is not None
            if len(ranks) + len(more) <= MOST_RANKS
        )

    def _rest_of(self, job_id: str) -> list[dict[str, Any]] | None:
        """Of its ranks in other shards, as the page has them; None: another shard tells of this job."""
        elsewhere = self._elsewhere(job_id)
        if elsewhere is None:
            return None
        return [{**_place(name), **live} for name, live in elsewhere.items()]

    def tell_devices(self, live_state: LiveState, fleet: FleetMap, now_s: float) -> None:
        """Device pictures to the browsers: to those of the node, and of the jobs on it that have few nodes."""
        if self.watched is None or self.watched:
            bus.publish_volatiles(self._devices_of_all(live_state, fleet, now_s))

    def _devices_of_all(
        self, live_state: LiveState, fleet: FleetMap, now_s: float
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        at, wide = iso(from_s(now_s)), self._wide(fleet)
        for node_id in fleet.nodes:
            node = live_state.nodes.get(node_id)
            if node is None or not node.samples:
                continue
            jobs = sorted(fleet.jobs_on.get(node_id, set()) - wide)
            topics: tuple[str, ...] = (f"node:{node_id}", *(f"job:{job_id}" for job_id in jobs))
            topics = tuple(topic for topic in topics if self._is_watched(topic))
            if not topics or not isolated("live state", node_id, partial(self._devices, live_state, node)):
                continue
            message = {
                "type": "devices", "node_id": node_id, "at": at,
                "silent_s": round(live_state.silent_s(node_id, now_s), 3),
                "devices": msgspec.Raw(self._devices(live_state, node)),
            }  # fmt: skip
            yield from ((topic, message) for topic in topics)

    def _wide(self, fleet: FleetMap) -> set[str]:
        """Jobs on more nodes than a page can show, in all shards together."""
        return {job_id for job_id, nodes in fleet.nodes_of.items() if len(nodes) > MOST_NODES}

    def _is_watched(self, topic: str) -> bool:
        return self.watched is None or topic in self.watched

    def _due(self, live_state: LiveState, now_s: float) -> list[str]:
        """Nodes whose picture is written in this turn: first those whose picture expires soon, the oldest before the
        others, then those that have said something."""
        rows = len(live_state.last_seen_s)
        if len(self._written_s) < rows:
            self._written_s = np.concatenate([self._written_s, np.full(rows - len(self._written_s), -np.inf)])
        age_s = now_s - self._written_s
        # An age below 0: the clock was set back.
        age_s[age_s < 0.0] = np.inf
        old = np.flatnonzero(age_s[: len(live_state.names)] >= REFRESH_S)
        by_age = old[np.argsort(-age_s[old], kind="stable")].tolist()
        due = dict.fromkeys(islice((name for row in by_age if (name := live_state.names[row])), NODES_AT_ONCE))
        recent = (age_s < NODE_EVERY_S).tolist()
        for node_id in live_state.changed:
            if len(due) >= NODES_AT_ONCE:
                break
            if not recent[live_state.nodes[node_id].row]:
                due[node_id] = None
        for node_id in due:
            live_state.changed.pop(node_id, None)
        return list(due)

    def _put_node(self, published: dict[str, Any], live_state: LiveState, node_id: str, now_s: float) -> None:
        node = live_state.nodes[node_id]
        self._written_s[node.row] = now_s
        silent_s = round(live_state.silent_s(node_id, now_s), 3)
        published[f"node:{node_id}"] = {
            "agent": {**node.agent, "silent_s": silent_s},
            "devices": msgspec.Raw(self._devices(live_state, node)),
        }

    def _devices(self, live_state: LiveState, node: LiveNode) -> bytes:
        """Its devices' newest readings, each with its score and each part's share of that."""
        if not node.shown:
            scored, found = live_state.scoring.scored, []
            for index, sample in sorted(node.samples.items()):
                slot = node.slots[index]
                found.append(_json(sample)[:-1] + self._risk(live_state, slot, int(scored[slot])))
            node.shown = b"[" + b",".join(found) + b"]"
        return node.shown

    def _risk(self, live_state: LiveState, slot: int, scored: int) -> bytes:
        """The end of a device's JSON; the same until it is scored again."""
        known = self._risks.get(slot)
        if known is None or known[0] != scored:
            score = float(live_state.risk[slot])
            risk = None if np.isnan(score) else score
            body = _json({"risk": risk, "risk_parts": live_state.scoring.shares(slot)})
            known = self._risks[slot] = (scored, b"," + body[1:])
        return known[1]


def ranks_of(ranks: Mapping[RankRef, LiveRank], now_s: float) -> dict[str, RankLive]:
    """The pictures of a job's ranks by their names in it; ages go on while nothing is heard."""
    said = list(ranks.values())
    at_s = np.array([rank.at_s for rank in said])
    since_s = np.maximum(0.0, now_s - at_s)
    phase_age_s = np.array([rank.status.phase_age_s for rank in said])
    silent_s = np.array([rank.status.silent_s for rank in said])
    text = {moment: iso(from_s(moment)) for moment in set(at_s.tolist())}
    shown = map(
        RankLive,
        [rank.status.section for rank in said],
        [rank.status.phase for rank in said],
        [rank.status.step for rank in said],
        (phase_age_s + since_s).round(3).tolist(),
        (silent_s + since_s).round(3).tolist(),
        (at_s - phase_age_s).round(3).tolist(),
        [text[moment] for moment in at_s.tolist()],
    )
    return dict(zip([rank.field for rank in said], shown, strict=True))


def _placed(ranks: Mapping[RankRef, LiveRank], now_s: float) -> list[dict[str, Any]]:
    return [
        {"replica": ref.replica, "incarnation": ref.incarnation, "rank": ref.rank, **msgspec.structs.asdict(live)}
        for ref, live in zip(ranks, ranks_of(ranks, now_s).values(), strict=True)
    ]


def _place(name: str) -> dict[str, int]:
    """A rank's, by its name in the live state of its job."""
    replica, incarnation, rank = name.split(".")
    return {"replica": int(replica), "incarnation": int(incarnation), "rank": int(rank)}


def _silent(live_state: LiveState, now_s: float) -> dict[str, float]:
    """Seconds since each node was heard."""
    silent_s = np.maximum(0.0, now_s - live_state.last_seen_s[: len(live_state.names)]).round(3).tolist()
    return {name: age_s for name, age_s in zip(live_state.names, silent_s, strict=True) if name}


def _scored(live_state: LiveState, reachable: float | None) -> dict[str, float | None]:
    """What its devices can score at most; nothing while there are some, and none was scored yet."""
    return {} if reachable is None and live_state.expects_devices else {"reachable_risk": reachable}
