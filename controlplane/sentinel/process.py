"""The sentinel: reads the stream, keeps the live state of its shards, scans, publishes.

Three threads: this one reads and scans (it must never wait for a decision), `Leadership` keeps the leases, `Net`
decides what nobody decided, sweeps. Of each shard another sentinel, where there is one, keeps its own live state warm
and takes over when the lease runs out. Nothing that one node sends ends a thread: a fault of ours makes the turn fail,
the sentinel says that it is blind, and continues.
"""

import gc
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from controlplane.protocol import first_use
from controlplane.protocol.frames import SESSIONS_START_PER_S, RankStatus, reconnect_within_s
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.recovery import clock_set
from controlplane.runtime import beats, bus, exporter, metrics, shards, windows
from controlplane.runtime.clock import ClockWatch
from controlplane.runtime.errors import LostLead
from controlplane.runtime.isolate import isolated
from controlplane.runtime.logs import get
from controlplane.runtime.seal import tally
from controlplane.runtime.shards import shard_of
from controlplane.sentinel import store_probe
from controlplane.sentinel.fallback import Net
from controlplane.sentinel.fence import Fence
from controlplane.sentinel.fleetmap import MapFollower
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.shard import Shard, Turn
from controlplane.sentinel.stream import StreamReader

SCAN_S = 0.25
MAP_S = 1.0
RANKS_S = 0.5
DEVICES_S = 1.0
HISTORY_S = 2.0
BLIND_LAG_S = 1.0
# A web process beats each second, and sends an empty batch where it has nothing to say.
UNHEARD_S = 3.0
# After our own side was unhealthy, silence is no evidence for this long.
RECOVER_S = 3.0
# What the live state dropped is counted in rows this often.
DROPPED_S = 5.0
LEAVE_S = 6.0
"""So long it stores history at its end: less than whoever stops it waits before he kills it."""
# A connection is open this long after an agent has begun to ask for it.
MARGIN_S = 1.0
COUNTS_S = 2.0
"""What another leader counted is counted while it is no older, nor newer, by our clock."""
GC_THRESHOLDS = (100_000, 50, 1000)
_log = get(__name__)


class Every:
    """True once in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = 0.0

    def due(self, moment: float) -> bool:
        """By the monotonic clock."""
        if moment - self.at < self.seconds:
            return False
        self.at = moment
        return True


class Sentinel:
    """Run once; `stop` from a signal or a test. `shards`: those that it hears, by number."""

    def __init__(self) -> None:
        self.name, self.count = beats.process_name(beats.SENTINEL), settings.SENTINEL_SHARDS
        self.leadership = Leadership(self.name, self.count)
        self.net = Net(self.leadership)
        self.follower = MapFollower(self.count)
        self.shards: dict[int, Shard] = {}
        self.reader = StreamReader(self._hears if self.count > 1 else None)
        self.stopping = threading.Event()
        self.started = time.monotonic()
        self.blind_until = self.started + settings.GRACE_S
        self.blind_why = "it has just started"
        self._turned_at = time.monotonic()
        self._lag = metrics.WorstLag("sentinel")
        self.clock = ClockWatch()
        self._steps: deque[tuple[float, float, float]] = deque()
        self._live_since: dict[str, float] = {}
        if self.count == 1:
            self.hear(0)

    def run(self) -> None:
        """Until `stop`."""
        first_use.prepare()
        self.leadership.start()
        self.net.start()
        every = {
            "map": Every(MAP_S), "scan": Every(SCAN_S), "ranks": Every(RANKS_S),
            "devices": Every(DEVICES_S), "history": Every(HISTORY_S), "dropped": Every(DROPPED_S),
        }  # fmt: skip
        _log.info("sentinel started", name=self.name, grace_s=settings.GRACE_S, shards=self.count)
        while not self.stopping.is_set():
            try:
                self._turn(every)
            except DatabaseError as error:
                self._blind("the database is away")
                _log.warning("the database is away", error=str(error))
                self.stopping.wait(SCAN_S)
            except Exception as error:
                # A catch-all: whatever is wrong, the next turn may see again, and health tells.
                self._blind(f"a turn failed: {type(error).__name__}")
                metrics.ISOLATED_FAILURES.labels(what="sentinel_turn").inc()
                _log.exception("a turn failed")
                self.stopping.wait(SCAN_S)
            finally:
                close_old_connections()
        self._leave()

    def hear(self, number: int) -> Shard:
        """From now on; the same one again where it is heard."""
        if number not in self.shards:
            fleet = self.follower.maps[number]
            self.shards[number] = Shard(
                number,
                fleet,
                mine=lambda node_id: shard_of(node_id, self.count) == number,
                elsewhere=partial(self._elsewhere, number) if self.count > 1 else None,
                statuses=partial(self._statuses, number) if self.count > 1 else None,
            )
            self.shards[number].expect(None)
        return self.shards[number]

    def _hears(self, node_id: str) -> bool:
        return shard_of(node_id, self.count) in self.shards

    def _follow(self, moment: float) -> None:
        """The shards that are ours to lead or to stand by for."""
        wanted = self.leadership.follow | self.leadership.held.keys() | ({0} if self.count == 1 else set())
        for number in wanted:
            self.hear(number)
        for number in self.shards.keys() - wanted:
            del self.shards[number]
        self.leadership.ready = frozenset(
            number for number, shard in self.shards.items() if shard.term is None and shard.ready(moment)
        )

    def _move_due(self) -> None:
        """What is due is moved with each step of the clock, in the order of the steps; one that could not be
        done, as the database was away, is done in a later turn."""
        try:
            while self._steps and (term := self.leadership.term()) is not None:
                if not isolated("clock", "due", partial(self._move, Fence(0, term), *self._steps[0])):
                    return
                self._steps.popleft()
        except LostLead as error:
            # Whoever took the lead found these steps by the lease, which a clock before them had kept.
            _log.warning("leads no more", error=str(error))
            self._steps.clear()

    def _move(self, fence: Fence, step_s: float, set_s: float, up_s: float) -> None:
        with fence.unit_of_work():
            clock_set.move_seen(step_s, set_s=set_s, up_s=up_s)

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Finish the turn, store the history, give the leases back."""
        self.stopping.set()

    def _turn(self, every: dict[str, Every]) -> None:
        self._follow(time.monotonic())
        looked = every["map"].due(time.monotonic())
        if looked:
            self.follower.turn()
            for shard in self.shards.values():
                shard.expect(self.follower.touched)
        heard = self.reader.read()
        moment, now_s = time.monotonic(), time.time()
        self._watch_ourselves(moment)
        self._watch_clock(moment, now_s)
        self._take(heard, now_s)
        if looked:
            self._miss(moment)
        due = frozenset(name for name, each in every.items() if name != "map" and each.due(moment))
        turn = Turn(
            moment=moment,
            now_s=now_s,
            due=due,
            health={"clock_set_s": self.clock.set_s, "clock_step_s": self.clock.step_s},
            unheard_s=self.reader.batches.unheard_s,
        )
        counts = self._counts(now_s) if self.count > 1 and "scan" in due else {}
        for number, shard in list(self.shards.items()):
            others = [count for other, count in counts.items() if other != number]
            both = sum(each[0] for each in others), sum(each[1] for each in others)
            # What is wrong with one keeps no other from being led.
            if not isolated("sentinel_turn", str(number), partial(self._serve, shard, replace(turn, others=both))):
                self._blind(f"a turn of shard {number} failed")
        if not self.reader.ok:
            self.stopping.wait(SCAN_S)

    def _serve(self, shard: Shard, turn: Turn) -> None:
        """Lead it, or stand by for it."""
        held = self.leadership.held.get(shard.number)
        if held is None or held.term == shard.ended:
            shard.rest(turn, led=shard.number in self.leadership.elsewhere)
            return
        if not held.holds(time.monotonic()):
            # Not renewed in time: it may be another one's by now, or ours still.
            return
        try:
            if shard.term != held.term:
                self._begin_to_lead(shard, held)
            if shard.lead(turn, paused=turn.moment < self.blind_until):
                self._blind("most nodes are silent at once", for_s=self._return_s() + MARGIN_S)
            to = self.leadership.giving.get(shard.number)
            if shard.give(to, turn.now_s):
                self._hand_over(shard, str(to))
        except LostLead as error:
            _log.warning("leads no more", error=str(error))
            shard.end()

    def _hand_over(self, shard: Shard, to: str) -> None:
        """What we hold of it is stored before: who gets it has heard the rest too, and shows it."""
        term = shard.term
        assert term is not None
        with shard.fence.unit_of_work():
            self.leadership.hand_over(shard.number, term, to)
        shard.end()

    def _watch_clock(self, moment: float, now_s: float) -> None:
        if step_s := self.clock.look(now_s, moment):
            for shard in self.shards.values():
                shard.live_state.clock_set(step_s)
            self._blind(f"the server's clock was set by {step_s:.1f} s")
            if self.leadership.term() is not None:
                self._steps.append((step_s, now_s, windows.uptime()[1]))
        self._move_due()

    def _take(self, heard: list[Heard], now_s: float) -> None:
        for item in heard:
            # A time in the future is not known; that it has come is.
            item.at_s = min(item.at_s, now_s)
        if not heard:
            return
        by_shard: dict[int, list[Heard]] = {}
        for item in heard:
            by_shard.setdefault(shard_of(item.node_id, self.count), []).append(item)
        for number, mine in by_shard.items():
            if number in self.shards:
                self.shards[number].take(mine)
        if now_s >= heard[0].at_s:
            metrics.TELEMETRY_LAG.observe(now_s - heard[0].at_s)

    def _counts(self, now_s: float) -> dict[int, tuple[int, int]]:
        """(silent nodes, of how many) of each shard whose leader told just now."""
        found = {}
        for number, part in enumerate(shards.read_parts("sight")):
            if abs(now_s - float(part.get("at_s", 0.0))) <= COUNTS_S:
                found[number] = int(part.get("silent", 0)), int(part.get("nodes", 0))
        return found

    def _elsewhere(self, number: int, job_id: str) -> Mapping[str, Any] | None:
        """The live states of a job's ranks in other shards; None: it is another shard's to tell of the whole job."""
        spread = self.follower.shards_of(job_id) or {number}
        if min(spread) != number:
            return None
        names = [shards.part_name(f"job:{job_id}", other, self.count) for other in sorted(spread - {number})]
        return {name: live for part in bus.read_live_of(names).values() for name, live in part.items()}

    def _statuses(self, number: int, job_id: str) -> list[RankStatus] | None:
        """As far as `policy.stuck` reads them."""
        elsewhere = self._elsewhere(number, job_id)
        return None if elsewhere is None else [status_of(job_id, name, live) for name, live in elsewhere.items()]

    def _return_s(self) -> float:
        """Over how many seconds the fleet's agents spread their return."""
        nodes = sum(len(fleet.nodes) for fleet in self.follower.maps)
        return reconnect_within_s(nodes, beats.sessions_per_s(SESSIONS_START_PER_S))

    def _watch_ourselves(self, moment: float) -> None:
        """Loop lag and Redis: while they are bad, and for a while after, we were deaf."""
        lag_s = max(0.0, moment - self._turned_at - SCAN_S)
        self._turned_at = moment
        self._lag.note(lag_s, moment)
        if lag_s > BLIND_LAG_S:
            self._blind(f"our own loop was {lag_s:.1f} s late")
        if not self.reader.ok or not bus.health.ok:
            self._blind("redis is away")
        heard = [shard.live_state for shard in self.shards.values()]
        self.leadership.detail = {
            "loop_lag_s": round(lag_s, 3),
            "blind": moment < self.blind_until,
            "why": self.blind_why if moment < self.blind_until else "",
            "nodes": sum(len(each.nodes) for each in heard),
            "ranks": sum(len(each.ranks) for each in heard),
            "devices": sum(len(each.slots) for each in heard),
            "duplicates": sum(each.duplicates for each in heard),
        }
        self.leadership.turned_at = moment

    def _miss(self, moment: float) -> None:
        """A web process that lives and is not heard, or of which batches are missing: Redis lost
        them, or somebody took them out."""
        if missing := self.reader.take_missing():
            tally.note("telemetry_missing", number=missing)
            self._blind(f"{missing} batches of telemetry are missing")
        live = beats.live_web(within_s=UNHEARD_S)
        for shard in self.shards.values():
            if shard.term is not None:
                shard.publisher.hear_watched(live)
        self._live_since = {name: self._live_since.get(name, moment) for name in live}
        for name, since in self._live_since.items():
            unheard_s = self.reader.batches.unheard_s(name)
            if moment - since > UNHEARD_S and (unheard_s is None or unheard_s > UNHEARD_S):
                self._blind(f"nothing is heard from web process {name}, which is alive")

    def _blind(self, why: str, *, for_s: float = RECOVER_S) -> None:
        until = time.monotonic() + for_s
        if time.monotonic() >= self.blind_until:
            _log.warning("blind: silence is no evidence for now", why=why)
        self.blind_why = why
        self.blind_until = max(self.blind_until, until)

    def _begin_to_lead(self, shard: Shard, held: Held) -> None:
        """A new leader has the first grace window: everybody may report before it judges. One that was given what it
        has heard for as long needs none."""
        newest = next(iter(windows.known()), None)
        if newest is not None:
            # Seen by a leader before, or found as this one took the lead.
            self.clock.set_s, self.clock.step_s = newest.set_at.timestamp(), newest.step_s
        if not (held.handed and shard.ready(time.monotonic())):
            self.blind_until = max(self.blind_until, time.monotonic() + settings.GRACE_S)
            self.blind_why = "it has just begun to lead"
        shard.begin(held.term)

    def _leave(self) -> None:
        try:
            self.net.stop()
            # The leases are kept while it stores, which takes seconds for thousands of nodes.
            self._store_all(time.monotonic() + LEAVE_S)
        finally:
            self.leadership.stop()
            try:
                self.leadership.leave()
            except DatabaseError as error:
                _log.warning("its leases are not given back, and lapse: the database is away", error=str(error))
        _log.info("sentinel stopped", name=self.name)

    def _store_all(self, until_s: float) -> None:
        for shard in self.shards.values():
            try:
                if shard.term is not None and (left := shard.store(until_s=until_s)):
                    _log.warning("history is not stored: there was no more time", nodes=left, within_s=LEAVE_S)
            except LostLead as error:
                _log.warning("leads no more", error=str(error))
            except DatabaseError as error:
                nodes = shard.history.waiting()
                _log.warning("history is not stored: the database is away", nodes=nodes, error=str(error))


def status_of(job_id: str, name: str, live: Mapping[str, Any]) -> RankStatus:
    """What another sentinel shows of a rank, as far as it does."""
    replica, incarnation, rank = (int(each) for each in name.split("."))
    return RankStatus(
        ref=RankRef(job_id, 0, replica, incarnation, rank), state=RankState.TRAINING, pid=0, device_index=0,
        section=Section(live["section"]), phase=Phase(live["phase"]), step=int(live["step"]),
        phase_age_s=float(live["phase_age_s"]), silent_s=float(live["silent_s"]),
    )  # fmt: skip


def collect_seldom() -> None:
    """The live state is some millions of objects, none of which is garbage: a full pass of Python's collector over
    them stops the loop for longer than silence is judged by, and finds nothing. What a turn makes is freed by its
    counts; young cycles are looked for after so many allocations as a large fleet makes in a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def main() -> None:
    """Until SIGTERM or SIGINT."""
    collect_seldom()
    exporter.start("sentinel")
    threading.Thread(target=store_probe.keep_looking, name="store", daemon=True).start()
    sentinel = Sentinel()
    signal.signal(signal.SIGTERM, sentinel.stop)
    signal.signal(signal.SIGINT, sentinel.stop)
    sentinel.run()
