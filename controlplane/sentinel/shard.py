"""One shard of the fleet as this sentinel hears it: led, or ready to be.

Who does not lead hears the same frames and writes nothing: it keeps the live state, the newest of the history, and
what it found lately. Who begins to lead starts its judgement from the rows, as the leader before left them there; of
what was found in the last seconds it raises what that one had no time for, once.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.conf import settings

from controlplane.fleet.models import Device
from controlplane.policy.readings import READINGS
from controlplane.policy.signals.devices import ReadingPastLimit
from controlplane.protocol.frames import RankStatus
from controlplane.recovery.models import Signal
from controlplane.runtime import counters, metrics
from controlplane.runtime.clock import ago
from controlplane.runtime.isolate import isolated
from controlplane.sentinel import seeds
from controlplane.sentinel.detect import silent_count
from controlplane.sentinel.fence import Fence
from controlplane.sentinel.fleetmap import DEFAULT_SILENCE_S, FleetMap
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import FULL, QUIET_S, QUIET_SAMPLES, History
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.ourselves import Deafness
from controlplane.sentinel.publishing import Publisher
from controlplane.sentinel.readings import Finding
from controlplane.sentinel.scan import Scanner, tell_reading
from controlplane.telemetry.selectors import stored_until

LATE_S, MOST_LATE = 30.0, 20_000
"""Findings of so long are kept while another one leads, and so many of them, the newest, while nobody does."""
SLACK_S = 15.0
"""Two sentinels find the same in the same frames, one of them so much later at most."""
READY_FRAMES = 3.0
"""After so many frames of each node who hears a shard may be given it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the loop, as every shard needs it. `due`: which of its parts. `health`: what is shown of our own
    side, `others`: (silent nodes, of how many) in the shards of other leaders."""

    moment: float
    now_s: float
    due: frozenset[str]
    health: Mapping[str, Any]
    unheard_s: Callable[[str], float | None]
    others: tuple[int, int] = (0, 0)


class Shard:
    """`term`: under which we began to lead it, None while we do not; `ended`: that of the last time. `elsewhere`, as
    `Publisher` has it; `statuses`: the same for `Scanner`."""

    def __init__(
        self,
        number: int,
        fleet: FleetMap,
        *,
        mine: Callable[[str], bool],
        elsewhere: Callable[[str], Mapping[str, Any] | None] | None = None,
        statuses: Callable[[str], Sequence[RankStatus] | None] | None = None,
    ) -> None:
        self.number, self.fleet, self._mine = number, fleet, mine
        self._elsewhere, self._statuses = elsewhere, statuses
        self.since, self.ended = time.monotonic(), 0
        self.term: int | None = None
        self.live_state = LiveState()
        quiet_s = max(QUIET_S, QUIET_SAMPLES * settings.SAMPLE_INTERVAL_S)
        self.history = History(settings.CHUNK_S, quiet_s=quiet_s)
        self.live_state.watch.gap_s = quiet_s
        self.deafness = Deafness()
        self.fence = Fence(number, 0)
        self.scanner, self.publisher = Scanner(mine=mine), self._publisher()
        self._late: deque[tuple[float, Finding]] = deque(maxlen=MOST_LATE)
        self._giving: tuple[str, float] | None = None

    def _publisher(self) -> Publisher:
        return Publisher(self.number, settings.SENTINEL_SHARDS, self._elsewhere)

    def ready(self, moment: float) -> bool:
        """It was heard for long enough to lead it without a grace."""
        interval_s = max(settings.FRAME_INTERVAL_S, settings.SAMPLE_INTERVAL_S)
        return moment - self.since >= max(settings.GRACE_S, READY_FRAMES * interval_s)

    def expect(self, touched: frozenset[str] | None) -> None:
        """The map has changed, of these nodes."""
        fleet = self.fleet
        self.live_state.expect(fleet.nodes, fleet.devices, fleet.placed, fleet.error_s, touched=touched)
        seeds.name(self.live_state, fleet, touched)

    def take(self, heard: list[Heard]) -> None:
        """Frames of its nodes."""
        self.history.take(self.live_state.take(heard), self.live_state)

    def begin(self, term: int) -> None:
        """To lead: nothing of what was known when we led before is true still, the rows are."""
        self.history.lead(stored_until())
        self.term, self.fence, self._giving = term, Fence(self.number, term), None
        self.scanner, watched = Scanner(self.fence.unit_of_work, self._mine), self.publisher.watched
        self.publisher = self._publisher()
        self.publisher.watched = watched
        self.live_state.calm[:] = False

    def end(self) -> None:
        """Another one leads, or will in a moment: what our leases say of this term is old."""
        self.ended, self.term = self.term or self.ended, None

    def rest(self, turn: Turn, *, led: bool) -> None:
        """While another one leads (`led`), which writes, or nobody knows who does."""
        self.term = None
        self.live_state.dropped.clear()
        self._late.extend((turn.moment, finding) for finding in self.live_state.watch.news())
        if led:
            self._forget_done(turn)
        if "history" in turn.due:
            self.history.rest(turn.now_s, led=led)

    def _forget_done(self, turn: Turn) -> None:
        """What whoever leads has done: it raises findings, and compares counters with what was before. While nobody
        leads nothing of it is done."""
        while self._late and turn.moment - self._late[0][0] > LATE_S:
            self._late.popleft()
        begun = self.live_state.watch.begun
        for node_id in [each for each, began_s in begun.items() if turn.now_s - began_s > LATE_S]:
            del begun[node_id]

    def lead(self, turn: Turn, *, paused: bool) -> bool:
        """What is due. `paused`: nothing is concluded from silence. True: so many are silent at once that it is rather
        our fault. Raises LostLead."""
        ours = False
        if "dropped" in turn.due:
            self._count_dropped()
        if "scan" in turn.due:
            ours = self._scan(turn, paused)
        if "ranks" in turn.due:
            show = partial(self.publisher.publish_jobs, self.live_state, turn.now_s)
            self.scanner.wake_for_stuck(self.live_state, show, self._statuses)
            self.publisher.tell_ranks(self.live_state, turn.now_s)
        if "devices" in turn.due:
            self.publisher.tell_devices(self.live_state, self.fleet, turn.now_s)
        if "history" in turn.due:
            self.history.flush(turn.now_s, known=self.fleet.nodes, unit=self.fence.unit_of_work)
            self.history.publish()
        return ours

    def store(self, *, until_s: float = math.inf) -> int:
        """All of the history that is not stored, in parts; of how many nodes it is not at `until_s` (monotonic).
        Raises LostLead."""
        while (left := self.history.waiting()) and time.monotonic() < until_s:
            self.history.force(known=self.fleet.nodes, unit=self.fence.unit_of_work)
        return left

    def give(self, to: str | None, now_s: float) -> bool:
        """Store what was heard until it was first to be given to `to`, a part a turn; True: all of it is. None: it is
        to be given to nobody. Raises LostLead."""
        if to is None:
            self._giving = None
            return False
        # Samples are dated by a clock that may have been set back since.
        if self._giving is None or self._giving[0] != to or self._giving[1] > now_s:
            self._giving = to, now_s
        heard_s = self._giving[1]
        self.history.force(known=self.fleet.nodes, until_s=heard_s, unit=self.fence.unit_of_work)
        return not self.history.waiting(until_s=heard_s)

    def _scan(self, turn: Turn, paused: bool) -> bool:
        self._raise_late(turn.moment)
        seeds.seed(self.live_state, self.fleet)
        nodes = self.fleet.nodes
        sessions = {node_id: info.session_id for node_id, info in nodes.items() if info.connected}
        excused = self.deafness.excused(sessions, turn.unheard_s, turn.moment)
        self.scanner.others = turn.others
        ours = self.scanner.scan(self.live_state, self.fleet, turn.now_s, blind=paused, excused=excused)
        counts: dict[str, int] = {}
        if settings.SENTINEL_SHARDS > 1:
            counts["silent"], counts["nodes"] = silent_count(
                self.live_state, self.fleet, turn.now_s, limit_s=DEFAULT_SILENCE_S
            )
        health = {"at_s": turn.now_s, "blind": ours or paused, **turn.health, **counts}
        self.publisher.publish(self.live_state, turn.now_s, sight=health)
        return ours

    def _raise_late(self, moment: float) -> None:
        """What the leader before may have had no time for."""
        while self._late:
            at, finding = self._late[0]
            isolated("reading", finding.node_id, partial(self._tell_late, finding, moment - at))
            self._late.popleft()

    def _tell_late(self, finding: Finding, age_s: float) -> None:
        info = self.fleet.devices.get((finding.node_id, finding.index))
        if info is None:
            return
        if not finding.over:
            key = ReadingPastLimit.key_of(info.id, finding.reading)[:160]
            if Signal.objects.filter(key=key, created_at__gte=ago(age_s + SLACK_S)).exists():
                return
            if READINGS[finding.reading].is_in(Device.objects.get(pk=info.id).health_reason):
                return
        tell_reading(finding, self.fleet, self.fence.unit_of_work)

    def _count_dropped(self) -> None:
        """What frames named and the tables do not, to the counters that people see."""
        dropped, self.live_state.dropped = self.live_state.dropped, Counter()
        lost, self.history.lost = self.history.lost, Counter()
        dropped += Counter({(node_id, FULL): number for node_id, number in lost.items()})
        for (node_id, reason), number in dropped.items():
            metrics.FRAMES.labels(result=reason).inc(number)
            info = self.fleet.nodes.get(node_id)
            isolated("dropped", node_id, partial(self._count, info.name if info else "?", reason, number))

    def _count(self, name: str, reason: str, number: int) -> None:
        with self.fence.unit_of_work():
            counters.count(name, reason, number=number)
