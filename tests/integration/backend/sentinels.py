"""Sentinels whose rows are real and whose Redis is a dictionary, one turn at a time."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.runtime import beats, bus
from controlplane.runtime.clock import now_s
from controlplane.runtime.models import ProcessBeat
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.process import SCAN_S, Every, Sentinel
from tests.integration.backend.builders import live_ranks, ref_of

ALL = ("scan", "ranks", "devices", "history", "dropped")
BROKEN = {"row_remap_failure": True}


class Redis:
    """What readers find, and what browsers were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: dict[str, Any] = {}
        self.said: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(bus, "write_live", self.write)
        monkeypatch.setattr(bus, "read_live", lambda name: self.live.get(name, {}))
        monkeypatch.setattr(bus, "read_live_of", lambda names: {n: self.live[n] for n in names if n in self.live})
        monkeypatch.setattr(bus, "publish_volatiles", self.say)
        monkeypatch.setattr(bus, "write_parts", lambda changes: {})
        monkeypatch.setattr(bus, "read_parts", lambda name: [])
        monkeypatch.setattr(bus, "drop_parts", lambda names: True)
        monkeypatch.setattr(bus.health, "ok", True)
        monkeypatch.setattr(bus.health, "note", lambda error: None)

    def write(self, states: dict[str, Any]) -> bool:
        self.live |= msgspec.json.decode(msgspec.json.encode(states))
        return True

    def say(self, messages: Iterable[tuple[str, dict[str, Any]]]) -> bool:
        self.said += msgspec.json.decode(msgspec.json.encode(list(messages)))
        return True


class Quiet:
    """A reader that brings what the test puts into it."""

    def __init__(self) -> None:
        self.ok, self.heard, self.batches = True, list[Heard](), self

    def read(self) -> list[Heard]:
        found, self.heard = self.heard, []
        return found

    def take_missing(self) -> int:
        return 0

    def unheard_s(self, web: str) -> float | None:
        return 0.0


class Scene:
    """Sentinels by name, each of which hears all that agents say; one turn at a time."""

    def __init__(self, count: int, *names: str) -> None:
        self.seq = 0
        self.sentinels = {}
        for name in names:
            sentinel = Sentinel()
            sentinel.reader = Quiet()  # type: ignore[assignment]
            sentinel.leadership = Leadership(name, count)
            sentinel.blind_until = 0.0
            self.sentinels[name] = sentinel

    def lead(self, name: str, *shards: int, term: int) -> None:
        """As if its leases had been taken."""
        for shard in shards:
            lease = beats.lease_name(shard)
            ProcessBeat.objects.filter(name=lease).delete()
            Leadership(name, 64)._raise(lease, None)
            ProcessBeat.objects.filter(name=lease).update(term=term)
        leadership = self.sentinels[name].leadership
        held = Held(term=term, kept_s=time.monotonic() + 1e6)
        leadership.held = {**leadership.held, **dict.fromkeys(shards, held)}

    def frames(self, readings: dict[tuple[str, int], dict[str, Any]] | None = None) -> list[Heard]:
        """One of each node, with its ranks in an exchange but those that `works`."""
        self.seq += 1
        found = []
        for node in Node.objects.order_by("pk"):
            samples = tuple(
                DeviceSample(index=index, temperature_c=50.0, **(readings or {}).get((node.id, index), {}))
                for index in range(2)
            )
            frame = AgentFrame(seq=self.seq, uptime_s=float(self.seq), devices=samples, ranks=self.ranks(node.id))
            found.append(Heard(node_id=node.id, session_id="s", at_s=now_s(), frame=frame))
        return found

    def ranks(self, node_id: str) -> tuple[RankStatus, ...]:
        return tuple(
            RankStatus(
                ref=ref_of(row), state=RankState.TRAINING, pid=1, device_index=row.device.index, section=Section.STEP,
                phase=Phase.EXCHANGE if row.replica.index else Phase.COMPUTE, step=20, phase_age_s=6.0, silent_s=0.1,
            )
            for job in Job.objects.all()
            for row in live_ranks(job)
            if row.node_id == node_id
        )  # fmt: skip

    def turn(self, name: str, heard: list[Heard]) -> None:
        """All of it is due."""
        sentinel = self.sentinels[name]
        sentinel.blind_until = 0.0
        sentinel.reader.heard = heard  # type: ignore[attr-defined]
        sentinel._turned_at = time.monotonic()
        sentinel._turn({part: Every(SCAN_S) for part in ("map", *ALL)})
