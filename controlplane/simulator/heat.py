"""Devices that run hot, and the score that finds them.

Every `SAMPLE_S` a device that is or was hot gives a sample, and what the server makes of them (`policy.risk`) is its
risk, of which `changes.risks` says when it is a finding. It draws from chances of its own.
"""

import random

from controlplane.changes.risks import Risk, RiskState, risk_moved
from controlplane.policy.risk import SAMPLE_S, RiskSample, risk_parts, risk_score
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.spec import RiskTrigger
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.server import Server

OVERHEATS = "device_overheats"
"""Its name among the faults that happened."""
LASTS_S = (20.0, 60.0)
COOL_C, RISES_C, HOTTEST_C = 60.0, 8.0, 95.0
Device = tuple[str, int]


class Heat:
    """`until_s`: when each device begins to cool; `samples` of each, the newest last."""

    def __init__(self, kernel: Kernel, server: Server, wanted: RiskTrigger, seed: int) -> None:
        self._kernel, self._server, self._wanted = kernel, server, wanted
        self._random = random.Random(f"heat {seed}")
        self.until_s: dict[Device, float] = {}
        self.samples: dict[Device, list[RiskSample]] = {}
        self._states: dict[Device, RiskState] = {}

    def schedule(self, since_s: float, until_s: float, count: int) -> None:
        """So many devices under replicas run hot for a while."""
        if count:
            self._kernel.after(SAMPLE_S, self._score)
        for _ in range(count):
            self._kernel.after(self._random.uniform(since_s, until_s), self.begin)

    def begin(self) -> None:
        """One of those that are in use."""
        rows = [row for row in self._server.rows.replicas.values() if row.state in LIVE_REPLICA]
        places = sorted({(place.node_id, place.device_index) for row in rows for place in row.placements})
        if places:
            device = self._random.choice(places)
            self.until_s[device] = self._kernel.now_s + self._random.uniform(*LASTS_S)
            self._kernel.log("fault", f"device {device[1]} of {device[0]} runs hot")

    def _score(self) -> None:
        self._kernel.after(SAMPLE_S, self._score)
        for device, until_s in self.until_s.items():
            self._sample(device, heats=self._kernel.now_s < until_s)
            if not self._server.paused:
                self._judge(device)

    def _sample(self, device: Device, *, heats: bool) -> None:
        known = self.samples.setdefault(device, [])
        before_c = known[-1].temperature_c or COOL_C if known else COOL_C
        change_c = RISES_C if heats else -RISES_C
        temperature_c = min(HOTTEST_C, max(COOL_C, before_c + change_c))
        known.append(RiskSample(at_s=self._kernel.now_s, temperature_c=temperature_c, errors=int(heats)))

    def _judge(self, device: Device) -> None:
        (node_id, index), store, wanted = device, self._server.store, self._wanted
        samples, state = self.samples[device], self._states.setdefault(device, RiskState())
        score = self._server.rows.nodes[node_id].risks[index] = risk_score(samples)
        alarm = state.step(score, limit=wanted.threshold, hysteresis_s=wanted.hysteresis_s, now_s=self._kernel.now_s)
        if alarm is not None:
            name = f"{node_id}-{index}"
            risk = Risk(
                node_id=node_id,
                index=index,
                device_id=name,
                uuid=name,
                score=score,
                limit=wanted.threshold,
                parts=risk_parts(samples),
            )
            store.commit(risk_moved(store, risk, alarm=alarm))
