"""One scan: findings to rows. Called four times a second by the leader."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec
from django.conf import settings

from controlplane.changes.risks import Risk, risk_moved
from controlplane.changes.silence import Silence, fell_silent, is_heard
from controlplane.fleet.models import Device
from controlplane.fleet.services import set_device_present, set_device_risk
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job
from controlplane.policy.readings import READINGS
from controlplane.policy.signals.devices import ReadingPastLimit
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.policy.stuck import Alone, alone_at_work, settled
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.samples import DeviceSample
from controlplane.recovery import devices, signals
from controlplane.recovery.commit import commit
from controlplane.recovery.models import Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events
from controlplane.runtime.clock import ago, from_s
from controlplane.runtime.isolate import isolated
from controlplane.sentinel.detect import RiskLatch, RiskMove, find_silent, mostly_silent
from controlplane.sentinel.fleetmap import DEFAULT_SILENCE_S, FleetMap
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.readings import FLAGS, Finding

RAISED_S = 3600.0
"""What a device has for good, and a sentinel that led before has raised so lately, is no news of the next one's."""
Unit = Callable[[], AbstractContextManager[None]]


class Scanner:
    """Keeps what lasts between scans: the latches, who is known to be silent. `unit`: of each write (`sentinel.fence`).
    `mine`: nodes that are judged here. `others`: (silent nodes, of how many) of other shards, for each scan to come."""

    def __init__(self, unit: Unit = events.unit_of_work, mine: Callable[[str], bool] | None = None) -> None:
        self.unit, self.mine = unit, mine or (lambda node_id: True)
        self.others = (0, 0)
        self.latch = RiskLatch()
        self.silent: set[tuple[str, str]] = set()
        self.looked: set[str] = set()
        self.alone: frozenset[Alone] = frozenset()

    def scan(
        self,
        live_state: LiveState,
        fleet: FleetMap,
        now_s: float,
        *,
        blind: bool,
        excused: Collection[str] = frozenset(),
    ) -> bool:
        """Findings to rows. While `blind` nothing is concluded from silence, nor ever from that of
        the nodes `excused`. Returns True when so many are silent at once that we must be blind."""
        for node_id in fleet.nodes.keys() - live_state.nodes.keys():
            live_state.know(node_id, now_s)
        ours = mostly_silent(live_state, fleet, now_s, limit_s=DEFAULT_SILENCE_S, others=self.others)
        if not blind and not ours:
            interval_s = settings.FRAME_INTERVAL_S
            found = find_silent(live_state, fleet, now_s, frame_interval_s=interval_s, excused=excused)
            self._silence(found, fleet)
        for move in self.latch.step(live_state, fleet, now_s):
            if not isolated("risk", move.node_id, partial(_apply_risk, move, fleet, self.unit)):
                self.latch.forget(move.node_id, move.index)
        self._tell(live_state, fleet)
        self._ended(live_state, fleet)
        _returned(live_state, fleet, self.unit)
        return ours

    def _tell(self, live_state: LiveState, fleet: FleetMap) -> None:
        """Findings about devices; what could not be told, as the database is away or another one leads, stays."""
        news = deque(live_state.watch.news())
        try:
            while news:
                isolated("reading", news[0].node_id, partial(tell_reading, news[0], fleet, self.unit))
                news.popleft()
        finally:
            live_state.watch.found[:0] = news

    def wake_for_stuck(
        self,
        live_state: LiveState,
        show: Callable[[set[str]], object] | None = None,
        elsewhere: Callable[[str], Sequence[RankStatus] | None] | None = None,
    ) -> None:
        """A replica has begun to hold up all others of its job: a pass judges it. Once a step of it. `show`: writes
        the pictures of these jobs, by which the pass judges. `elsewhere`: what ranks of a job in other shards say, None
        where the job is judged there."""
        alone: frozenset[Alone] = frozenset()
        for job_id, ranks in live_state.jobs.items():
            said = [rank.status for rank in ranks.values()]
            if not settled(said):
                continue
            more = elsewhere(job_id) if elsewhere is not None else ()
            if more is not None:
                alone |= alone_at_work([*said, *more])
        if show is not None:
            show({found.job_id for found in alone - self.alone})
        for found in sorted(alone - self.alone):
            isolated("stuck", found.job_id, partial(_wake, found.job_id, self.unit))
        self.alone = alone

    def _ended(self, live_state: LiveState, fleet: FleetMap) -> None:
        """Devices that were barred before we began to watch: the state that did it may have ended
        meanwhile. Once for each."""
        for node_id, index in sorted(fleet.out):
            info = fleet.devices[node_id, index]
            over = () if info.healthy or info.id in self.looked else live_state.watch.ended(node_id, index)
            if over:
                self.looked.add(info.id)
                isolated("reading", node_id, partial(_end_states, info.id, over, self.unit))

    def _silence(self, found: list[Silence], fleet: FleetMap) -> None:
        now_silent = {(item.node_id, item.job_id) for item in found}
        failed = set()
        for item in found:
            key_of = (item.node_id, item.job_id)
            work = partial(_raise_silence, item, self.unit)
            if key_of not in self.silent and not isolated("silence", item.node_id, work):
                failed.add(key_of)
        still = Signal.objects.filter(kind=NodeSilent.KIND, settled_at=None).values_list("node_id", "job_id")
        for node_id, job_id in still:
            if (node_id, job_id) not in now_silent and self.mine(str(node_id)):
                isolated("silence", str(node_id), partial(_refute, str(node_id), str(job_id), self.unit))
        self.silent = now_silent - failed


def _raise_silence(item: Silence, unit: Unit) -> None:
    with unit():
        rows = JobRows(Job.objects.get(pk=item.job_id), seen_at=from_s(item.began_s(time.time())))
        commit(fell_silent(rows, item), rows)


def _refute(node_id: str, job_id: str, unit: Unit) -> None:
    with unit():
        rows = JobRows(Job.objects.get(pk=job_id))
        commit(is_heard(rows, node_id), rows)


def _apply_risk(move: RiskMove, fleet: FleetMap, unit: Unit) -> None:
    device = Device.objects.select_related("node").get(pk=fleet.devices[(move.node_id, move.index)].id)
    with unit():
        set_device_risk(device, move.score)
        risk = Risk(
            node_id=move.node_id,
            index=move.index,
            device_id=device.id,
            uuid=device.uuid,
            score=move.score,
            limit=move.limit,
            parts=move.parts,
        )
        rows = JobRows(Job.objects.filter(pk=move.job_id).first() if move.job_id else None)
        commit(risk_moved(rows, risk, alarm=move.alarm), rows)


def _wake(job_id: str, unit: Unit) -> None:
    with unit():
        wake_job(job_id)


def tell_reading(found: Finding, fleet: FleetMap, unit: Unit) -> None:
    """A finding about a device becomes a row, or ends one."""
    info = fleet.devices.get((found.node_id, found.index))
    if info is None:
        return
    device = Device.objects.select_related("node").get(pk=info.id)
    if info.uuid and device.uuid != info.uuid:
        # Another one is there since a moment ago: what was compared is none of its own.
        return
    if not found.over and found.reading in FLAGS and READINGS[found.reading].is_in(device.health_reason):
        # It is out for that, and who had it in hand may have acknowledged it: no news of a watch that begins.
        return
    if found.first and found.reading in FLAGS and _was_raised(info.id, found.reading):
        return
    with unit():
        if found.over:
            signals.settle_keys(ReadingPastLimit.key_of(info.id, found.reading), "it has ended")
            devices.reading_ended(device, found.reading)
        else:
            limit = READINGS[found.reading]
            past = ReadingPastLimit(
                job_id=info.job_id,
                node_id=found.node_id,
                device_index=found.index,
                device_id=info.id,
                node=device.node.name,
                what=limit.in_words(found.value),
                found=found.value,
                limit=limit.value,
                reading=found.reading,
                uuid=device.uuid,
                more=_told(found.sample),
            )
            signals.raise_signal(past)
        if info.job_id:
            wake_job(info.job_id)


def _was_raised(device_id: str, reading: str) -> bool:
    """A sentinel before has raised it lately, and what was done about it left it as it is: whoever leads next is no
    reason to raise it again."""
    key = ReadingPastLimit.key_of(device_id, reading)[:160]
    return Signal.objects.filter(key=key, created_at__gte=ago(RAISED_S)).exists()


def _end_states(device_id: str, over: tuple[str, ...], unit: Unit) -> None:
    with unit():
        device = Device.objects.select_related("node").get(pk=device_id)
        for reading in over:
            signals.settle_keys(ReadingPastLimit.key_of(device_id, reading), "it has ended")
            devices.reading_ended(device, reading)
            device.refresh_from_db()


def _told(sample: DeviceSample) -> dict[str, Any]:
    """The device's readings at that moment, but those that it does not give."""
    fields = msgspec.to_builtins(sample)
    fields["throttle_reasons"] = " ".join(sample.throttle_reasons or ())
    return {name: value for name, value in fields.items() if value not in (None, "") and name != "index"}


def _returned(live_state: LiveState, fleet: FleetMap, unit: Unit) -> None:
    """A device that had fallen off the bus gives samples again."""
    for key in sorted(fleet.out):
        info = fleet.devices[key]
        sample = live_state.nodes[key[0]].samples.get(key[1]) if key[0] in live_state.nodes else None
        if info.present or sample is None or not sample.present or sample.temperature_c is None:
            continue
        isolated("device", key[0], partial(_is_back, info.id, key, unit))


def _is_back(device_id: str, key: tuple[str, int], unit: Unit) -> None:
    with unit():
        set_device_present(Device.objects.select_related("node").get(pk=device_id))
        signals.settle_keys(f"device_lost:{key[0]}:{key[1]}", "the device is back")
