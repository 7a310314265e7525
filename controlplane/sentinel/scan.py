"""One scan: findings to rows, pictures to Redis. Called four times a second by the leader."""

import time
from collections.abc import Collection
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
from controlplane.policy.stuck import Alone, alone_at_work
from controlplane.protocol.samples import DeviceSample
from controlplane.recovery import devices, signals
from controlplane.recovery.commit import commit
from controlplane.recovery.models import Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import bus, events
from controlplane.runtime.clock import from_s, iso
from controlplane.runtime.isolate import isolated
from controlplane.sentinel.detect import RiskLatch, RiskMove, find_silent, mostly_silent
from controlplane.sentinel.fleetmap import DEFAULT_SILENCE_S, FleetMap
from controlplane.sentinel.live_state import LiveState, live_of, sample_fields
from controlplane.sentinel.readings import FLAGS, Finding


class Scanner:
    """Keeps what lasts between scans: the latches, who is known to be silent."""

    def __init__(self) -> None:
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
        for node_id in fleet.nodes:
            live_state.know(node_id, now_s)
        ours = mostly_silent(live_state, fleet, now_s, limit_s=DEFAULT_SILENCE_S)
        if not blind and not ours:
            interval_s = settings.FRAME_INTERVAL_S
            found = find_silent(live_state, fleet, now_s, frame_interval_s=interval_s, excused=excused)
            self._silence(found, fleet)
        for move in self.latch.step(live_state, fleet, now_s):
            if not isolated("risk", move.node_id, partial(_apply_risk, move, fleet)):
                self.latch.forget(move.node_id, move.index)
        for finding in live_state.watch.news():
            isolated("reading", finding.node_id, partial(_tell_reading, finding, fleet))
        self._ended(live_state, fleet)
        _returned(live_state, fleet)
        return ours

    def wake_for_stuck(self, live_state: LiveState, fleet: FleetMap) -> None:
        """A replica has begun to hold up all others of its job: a pass judges it. Once a step of it."""
        told = (rank.status for ref, rank in live_state.ranks.items() if fleet.placed.get(ref) == rank.node_id)
        alone = alone_at_work(told)
        for found in sorted(alone - self.alone):
            isolated("stuck", found.job_id, partial(wake_job, found.job_id))
        self.alone = alone

    def _ended(self, live_state: LiveState, fleet: FleetMap) -> None:
        """Devices that were barred before we began to watch: the state that did it may have ended
        meanwhile. Once for each."""
        for (node_id, index), info in fleet.devices.items():
            over = () if info.healthy or info.id in self.looked else live_state.watch.ended(node_id, index)
            if over:
                self.looked.add(info.id)
                isolated("reading", node_id, partial(_end_states, info.id, over))

    def _silence(self, found: list[Silence], fleet: FleetMap) -> None:
        now_silent = {(item.node_id, item.job_id) for item in found}
        failed = set()
        for item in found:
            key_of = (item.node_id, item.job_id)
            work = partial(_raise_silence, item)
            if key_of not in self.silent and not isolated("silence", item.node_id, work):
                failed.add(key_of)
        still = Signal.objects.filter(kind=NodeSilent.KIND, settled_at=None).values_list("node_id", "job_id")
        for node_id, job_id in still:
            if (node_id, job_id) not in now_silent:
                isolated("silence", str(node_id), partial(_refute, str(node_id), str(job_id)))
        self.silent = now_silent - failed


def _raise_silence(item: Silence) -> None:
    with events.unit_of_work():
        rows = JobRows(Job.objects.get(pk=item.job_id), seen_at=from_s(item.began_s(time.time())))
        commit(fell_silent(rows, item), rows)


def _refute(node_id: str, job_id: str) -> None:
    with events.unit_of_work():
        rows = JobRows(Job.objects.get(pk=job_id))
        commit(is_heard(rows, node_id), rows)


def _apply_risk(move: RiskMove, fleet: FleetMap) -> None:
    device = Device.objects.select_related("node").get(pk=fleet.devices[(move.node_id, move.index)].id)
    with events.unit_of_work():
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


def _tell_reading(found: Finding, fleet: FleetMap) -> None:
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
    with events.unit_of_work():
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


def _end_states(device_id: str, over: tuple[str, ...]) -> None:
    with events.unit_of_work():
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


def _returned(live_state: LiveState, fleet: FleetMap) -> None:
    """A device that had fallen off the bus gives samples again."""
    for key, info in fleet.devices.items():
        sample = live_state.nodes[key[0]].samples.get(key[1]) if key[0] in live_state.nodes else None
        if info.present or sample is None or not sample.present or sample.temperature_c is None:
            continue
        isolated("device", key[0], partial(_is_back, info.id, key))


def _is_back(device_id: str, key: tuple[str, int]) -> None:
    with events.unit_of_work():
        set_device_present(Device.objects.select_related("node").get(pk=device_id))
        signals.settle_keys(f"device_lost:{key[0]}:{key[1]}", "the device is back")


def publish(live_state: LiveState, fleet: FleetMap, now_s: float, *, sight: dict[str, Any]) -> None:
    """The newest pictures, for load, the API and the browsers, in one round trip."""
    ranks: dict[str, dict[str, Any]] = {}
    for ref, rank in live_state.ranks.items():
        # A node speaks for ranks placed on it, and for no others.
        if fleet.placed.get(ref) != rank.node_id:
            continue
        field = f"{ref.replica}.{ref.incarnation}.{ref.rank}"
        ranks.setdefault(ref.job_id, {})[field] = live_of(rank, now_s)
    silent = {n: round(live_state.silent_s(n, now_s), 3) for n in fleet.nodes if n in live_state.nodes}
    published: dict[str, dict[str, Any]] = {"sight": sight, "nodes": silent}
    published["fleet"] = {"reachable_risk": live_state.reachable_risk()}
    published |= {f"job:{job_id}": fields for job_id, fields in ranks.items()}
    for node_id, silent_s in silent.items():
        isolated("live state", node_id, partial(_put_node, published, live_state, node_id, silent_s))
    bus.write_live(published)


def tell_ranks(live_state: LiveState, fleet: FleetMap, now_s: float) -> None:
    """Rank pictures to the browsers, a message a job."""
    by_job: dict[str, list[dict[str, Any]]] = {}
    for ref, rank in live_state.ranks.items():
        if fleet.placed.get(ref) == rank.node_id:
            where = {"replica": ref.replica, "incarnation": ref.incarnation, "rank": ref.rank}
            by_job.setdefault(ref.job_id, []).append({**where, **live_of(rank, now_s)})
    for job_id, ranks in by_job.items():
        message = {"type": "ranks", "job_id": job_id, "at": iso(from_s(now_s)), "ranks": ranks}
        bus.publish_volatile(f"job:{job_id}", message)


def tell_devices(live_state: LiveState, fleet: FleetMap, now_s: float) -> None:
    """Device pictures to the browsers: to those of the node, and of the jobs on it."""
    for node_id in fleet.nodes:
        if node_id in live_state.nodes and live_state.nodes[node_id].samples:
            isolated("live state", node_id, partial(_tell_node, live_state, fleet, node_id, now_s))


def _tell_node(live_state: LiveState, fleet: FleetMap, node_id: str, now_s: float) -> None:
    silent_s = round(live_state.silent_s(node_id, now_s), 3)
    devices = _node_fields(live_state, node_id, silent_s)["devices"]
    message = {
        "type": "devices", "node_id": node_id, "at": iso(from_s(now_s)), "silent_s": silent_s, "devices": devices
    }  # fmt: skip
    for topic in (f"node:{node_id}", "overview", *(f"job:{j}" for j in sorted(fleet.jobs_on.get(node_id, ())))):
        bus.publish_volatile(topic, message)


def _put_node(published: dict[str, dict[str, Any]], live_state: LiveState, node_id: str, silent_s: float) -> None:
    published[f"node:{node_id}"] = _node_fields(live_state, node_id, silent_s)


def _node_fields(live_state: LiveState, node_id: str, silent_s: float) -> dict[str, Any]:
    node = live_state.nodes[node_id]
    devices = [sample_fields(live_state, node_id, sample) for _, sample in sorted(node.samples.items())]
    return {"agent": {**node.agent, "silent_s": silent_s}, "devices": devices}
