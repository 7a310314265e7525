"""The sentinel: reads the stream, keeps the live state, scans, publishes.

Two threads: this one reads and scans (it must never wait for a decision), `Net` leads,
decides what nobody decided, sweeps. A second sentinel keeps its own live state warm and
takes over when the lease runs out. Nothing that one node sends ends either thread: a fault
of ours makes the turn fail, the sentinel says that it is blind, and goes on.
"""

import signal
import threading
import time
from collections import Counter, deque
from functools import partial
from types import FrameType

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from controlplane.protocol import first_use
from controlplane.protocol.frames import reconnect_within_s
from controlplane.recovery import clock_set
from controlplane.runtime import beats, bus, counters, exporter, metrics, windows
from controlplane.runtime.clock import ClockWatch
from controlplane.runtime.isolate import isolated
from controlplane.runtime.logs import get
from controlplane.runtime.seal import tally
from controlplane.sentinel import scan, seeds, store_probe
from controlplane.sentinel.fallback import Net
from controlplane.sentinel.fleetmap import MapFollower
from controlplane.sentinel.history import QUIET_S, QUIET_SAMPLES, History
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.ourselves import Deafness
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
# A connection is open this long after an agent has begun to ask for it.
MARGIN_S = 1.0
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
    """Run once; `stop` from a signal or a test."""

    def __init__(self) -> None:
        self.name = beats.process_name("sentinel")
        self.net = Net(self.name)
        self.live_state = LiveState()
        self.scanner = scan.Scanner()
        quiet_s = max(QUIET_S, QUIET_SAMPLES * settings.SAMPLE_INTERVAL_S)
        self.history = History(settings.CHUNK_S, quiet_s=quiet_s)
        self.live_state.watch.gap_s = quiet_s
        self.reader = StreamReader()
        self.follower = MapFollower()
        self.fleet = self.follower.map
        self.stopping = threading.Event()
        self.started = time.monotonic()
        self.blind_until = self.started + settings.GRACE_S
        self.blind_why = "it has just started"
        self._turned_at = time.monotonic()
        self._lag = metrics.WorstLag("sentinel")
        self.clock = ClockWatch()
        self._steps: deque[tuple[float, float, float]] = deque()
        self.deafness = Deafness()
        self._led = False
        self._live_since: dict[str, float] = {}

    def run(self) -> None:
        """Until `stop`."""
        first_use.prepare()
        self.net.start()
        every = {
            "map": Every(MAP_S), "scan": Every(SCAN_S), "ranks": Every(RANKS_S),
            "devices": Every(DEVICES_S), "history": Every(HISTORY_S), "dropped": Every(DROPPED_S),
        }  # fmt: skip
        _log.info("sentinel started", name=self.name, grace_s=settings.GRACE_S)
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

    def _move_due(self) -> None:
        """What is due is moved with each step of the clock, in the order of the steps; one that could not be
        done, as the database was away, is done in a later turn."""
        while self._steps:
            step_s, set_s, up_s = self._steps[0]
            if not isolated("clock", "due", partial(clock_set.move_seen, step_s, set_s=set_s, up_s=up_s)):
                return
            self._steps.popleft()

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Finish the turn, store the history, give the lease back."""
        self.stopping.set()

    def _turn(self, every: dict[str, Every]) -> None:
        looked = every["map"].due(time.monotonic())
        if looked:
            self.follower.turn()
            self.live_state.expect(self.fleet.nodes, self.fleet.devices, self.fleet.placed, self.fleet.error_s)
            seeds.name(self.live_state, self.fleet)
        heard = self.reader.read()
        moment, now_s = time.monotonic(), time.time()
        self._watch_ourselves(moment)
        if step_s := self.clock.look(now_s, moment):
            self.live_state.clock_set(step_s)
            self._blind(f"the server's clock was set by {step_s:.1f} s")
            if self.net.term is not None:
                self._steps.append((step_s, now_s, windows.uptime()[1]))
        self._move_due()
        for item in heard:
            # A time in the future is not known; that it has come is.
            item.at_s = min(item.at_s, now_s)
        if heard:
            self.history.take(self.live_state.take(heard), self.live_state)
            if now_s >= heard[0].at_s:
                metrics.TELEMETRY_LAG.observe(now_s - heard[0].at_s)
        if every["dropped"].due(moment):
            self._count_dropped()
        if looked:
            self._miss(moment)
        if self.net.term is None:
            self._led = False
            if not self.reader.ok:
                self.stopping.wait(SCAN_S)
            return
        self._begin_to_lead()
        if every["scan"].due(moment):
            seeds.seed(self.live_state, self.fleet)
            blind = moment < self.blind_until
            sessions = {node_id: info.session_id for node_id, info in self.fleet.nodes.items() if info.connected}
            excused = self.deafness.excused(sessions, self.reader.batches.unheard_s, moment)
            if self.scanner.scan(self.live_state, self.fleet, now_s, blind=blind, excused=excused):
                blind = True
                self._blind("most nodes are silent at once", for_s=reconnect_within_s(len(self.fleet.nodes)) + MARGIN_S)
            step = {"clock_set_s": self.clock.set_s, "clock_step_s": self.clock.step_s}
            scan.publish(self.live_state, self.fleet, now_s, sight={"at_s": now_s, "blind": blind, **step})
        if every["ranks"].due(moment):
            self.scanner.wake_for_stuck(self.live_state, self.fleet)
            scan.tell_ranks(self.live_state, self.fleet, now_s)
        if every["devices"].due(moment):
            scan.tell_devices(self.live_state, self.fleet, now_s)
        if every["history"].due(moment):
            self.history.flush(now_s, known=self.fleet.nodes)
            self.history.publish()
        if not self.reader.ok:
            self.stopping.wait(SCAN_S)

    def _watch_ourselves(self, moment: float) -> None:
        """Loop lag and Redis: while they are bad, and for a while after, we were deaf."""
        lag_s = max(0.0, moment - self._turned_at - SCAN_S)
        self._turned_at = moment
        self._lag.note(lag_s, moment)
        if lag_s > BLIND_LAG_S:
            self._blind(f"our own loop was {lag_s:.1f} s late")
        if not self.reader.ok or not bus.health.ok:
            self._blind("redis is away")
        self.net.detail = {
            "loop_lag_s": round(lag_s, 3),
            "blind": moment < self.blind_until,
            "why": self.blind_why if moment < self.blind_until else "",
            "nodes": len(self.live_state.nodes),
            "ranks": len(self.live_state.ranks),
            "devices": len(self.live_state.slots),
            "duplicates": self.live_state.duplicates,
        }
        self.net.turned_at = moment

    def _count_dropped(self) -> None:
        """What frames named and the tables do not, to the counters that people see."""
        dropped, self.live_state.dropped = self.live_state.dropped, Counter()
        for (node_id, reason), number in dropped.items():
            metrics.FRAMES.labels(result=reason).inc(number)
            info = self.fleet.nodes.get(node_id)
            isolated("dropped", node_id, partial(counters.count, info.name if info else "?", reason, number=number))

    def _miss(self, moment: float) -> None:
        """A web process that lives and is not heard, or of which batches are missing: Redis lost
        them, or somebody took them out."""
        if missing := self.reader.take_missing():
            tally.note("telemetry_missing", number=missing)
            self._blind(f"{missing} batches of telemetry are missing")
        live = beats.live_web(within_s=UNHEARD_S)
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

    def _begin_to_lead(self) -> None:
        """A new leader has the first grace window: everybody may report before it judges."""
        if not self._led:
            newest = next(iter(windows.known()), None)
            if newest is not None:
                # Seen by a leader before, or found as this one took the lead.
                self.clock.set_s, self.clock.step_s = newest.set_at.timestamp(), newest.step_s
            self.blind_until = max(self.blind_until, time.monotonic() + settings.GRACE_S)
            self.blind_why = "it has just begun to lead"
            self._led = True

    def _leave(self) -> None:
        self.net.stop()
        if self._led:
            self.history.flush(time.time(), known=self.fleet.nodes, force=True)
            beats.release_lead("sentinel", self.name)
        _log.info("sentinel stopped", name=self.name)


def main() -> None:
    """Until SIGTERM or SIGINT."""
    exporter.start("sentinel")
    threading.Thread(target=store_probe.keep_looking, name="store", daemon=True).start()
    sentinel = Sentinel()
    signal.signal(signal.SIGTERM, sentinel.stop)
    signal.signal(signal.SIGINT, sentinel.stop)
    sentinel.run()
