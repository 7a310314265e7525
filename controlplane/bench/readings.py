"""Readings for thousands of agents, made once: series of the simulated probe, which agents share.

To simulate each device of a large fleet each second costs more than all else that a generator does. So there are a few
series of real readings, and each agent reads one of them from a place of its own.
"""

from dataclasses import dataclass
from functools import cached_property

from agents.probes.simulated import SimulatedProbe
from controlplane.protocol.samples import DeviceInfo, DeviceSample

SERIES, ROUNDS = 16, 120
HEATED_C = 98.0
Round = tuple[DeviceSample, ...]


@dataclass(frozen=True)
class Readings:
    """Of nodes with so many `devices`, a round each `interval_s`; all of them busy."""

    devices: int
    interval_s: float
    seed: int

    def of(self, agent: int, beat: int, *, heated: bool = False) -> Round:
        """What its devices read at this heartbeat; of one that is `heated` device 0 is far too warm."""
        series = (self._heated if heated else self._usual)[agent % SERIES]
        return series[(agent // SERIES + beat) % ROUNDS]

    def prepare(self) -> None:
        """Make all series now: that takes longer than an agent may be late."""
        for heated in (False, True):
            self.of(0, 0, heated=heated)

    def infos(self, node_name: str) -> tuple[DeviceInfo, ...]:
        """The devices, as the node's driver names them."""
        return SimulatedProbe(count=self.devices, node_name=node_name).devices()

    @cached_property
    def _usual(self) -> tuple[tuple[Round, ...], ...]:
        return tuple(self._series(number) for number in range(SERIES))

    @cached_property
    def _heated(self) -> tuple[tuple[Round, ...], ...]:
        return tuple(self._series(number, heated=True) for number in range(SERIES))

    def _series(self, number: int, *, heated: bool = False) -> tuple[Round, ...]:
        probe = SimulatedProbe(count=self.devices, node_name="bench", seed=self.seed * SERIES + number)
        busy = frozenset(range(self.devices))
        if heated:
            probe.inject(0, "overheat", HEATED_C)
        # Warm already: a device that warms up for a minute is no load that lasts.
        for warming in range(ROUNDS):
            probe.sample(float(warming), busy)
        return tuple(probe.sample(ROUNDS + turn * self.interval_s, busy) for turn in range(ROUNDS))
