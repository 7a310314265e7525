"""A replica of a real ring is killed and comes back, over and over; G8's measure of the others.

The joiner's processes are up and parked before the view that admits it is announced, so
that what they take from the survivors' cores while they start is seen apart.
"""

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.peers import workload
from benchmarks.small_ring import LOST, endless, training, wait
from controlplane.protocol.rank import CaughtUp, StepReport, ViewInstalled
from tests.integration.trainer.cluster import Cluster

SETTLE_STEPS = 2
TOGETHER_STEPS = 8
SIZE = "exchange and optimizer of a group that large, as in every later step"
WATCHED = (0, 1, 0)
_wait = partial(wait, poll_s=0.2)


class Gate(Cluster):
    """A ring that admits a joiner when it is told to."""

    held_back = ""

    def announce(self, reason: str, *, at_step: int | None = None) -> None:
        """Views without joiners go out at once."""
        if reason.startswith("join"):
            self.held_back = reason
        else:
            super().announce(reason, at_step=at_step)

    def admit(self) -> None:
        """The view that was held back."""
        with self.changed:
            reason, self.held_back = self.held_back, ""
            super().announce(reason)


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Steps of one survivor, in order: while the joiner's processes start, from the view that
    admits it to the step before its first contribution, and at full strength again. What both
    said of it."""

    starting: tuple[StepReport, ...]
    joining: tuple[StepReport, ...]
    together: tuple[StepReport, ...]
    installed: ViewInstalled
    level: CaughtUp


@dataclass(slots=True)
class Rejoins:
    """`alone`: the survivor's steps without the lost replica and with its next life parked."""

    alone: list[StepReport] = field(default_factory=list)
    rejoins: list[Rejoin] = field(default_factory=list)

    def extra(self, rejoin: Rejoin) -> dict[str, float]:
        """Seconds that the steps of `rejoin` took beyond as many alone, by part of the step. An
        exchange with one member more takes longer, now and in every later step: that part of it,
        by the median at full strength, stands apart."""
        together = [said for each in self.rejoins for said in each.together]
        larger_s = median(map(_exchange_s, together)) - median(map(_exchange_s, self.alone))
        of_size_s = len(rejoin.joining) * larger_s
        return {
            "view change": self._beyond(rejoin.joining, lambda said: said.stall_s),
            "commit waits for the donor's copy": self._beyond(rejoin.joining, lambda said: said.copy_wait_s),
            SIZE: of_size_s,
            "exchange and optimizer, beyond those of a group that large": self._beyond(rejoin.joining, _exchange_s)
            - of_size_s,
            "compute (competition for cores)": self._beyond(
                rejoin.joining, lambda said: said.step_time_s - said.stall_s - said.exchange_s
            ),
        }

    def _beyond(self, steps: Sequence[StepReport], part: Callable[[StepReport], float]) -> float:
        return sum(part(said) for said in steps) - len(steps) * median(part(said) for said in self.alone)


def rejoins(args: argparse.Namespace, directory: Path) -> Rejoins:
    """Lose a replica and take it back `args.rejoins` times. Raises PeerFailed."""
    base = endless(workload.trainer_config(delay_s=args.delay_s, interval_steps=workload.NO_SAVES), directory)
    config = msgspec.structs.replace(
        base,
        model=msgspec.structs.replace(base.model, hidden=args.hidden, layers=args.layers),
        training=msgspec.structs.replace(base.training, hash_every_steps=0),
    )
    found = Rejoins()
    with training(Gate, directory, config, calm_steps=args.calm_steps) as ring:
        for life in range(1, args.rejoins + 1):
            _rejoin(ring, life, args.calm_steps, found)
    return found


def _rejoin(ring: Gate, life: int, calm_steps: int, found: Rejoins) -> None:
    for rank in range(ring.world):
        os.killpg(ring.pids[LOST, life, rank], signal.SIGKILL)
    _wait(ring, lambda: LOST not in ring.members, "leave it out")
    calm_from = ring.committed(0) + SETTLE_STEPS
    _wait(ring, lambda: ring.committed(0) > calm_from + calm_steps, "go on alone")
    started, views = ring.committed(0), len(ring.views)
    ring.start(LOST, incarnation=life + 1)
    _wait(ring, lambda: bool(ring.held_back), "start again")
    up = ring.committed(0) + 1
    _wait(ring, lambda: ring.committed(0) > up + SETTLE_STEPS, "go on beside a parked joiner")
    ring.admit()
    _wait(ring, lambda: _level(ring, life + 1) is not None, "catch up")
    level = _level(ring, life + 1)
    assert level is not None, "just seen"
    _wait(ring, lambda: ring.committed(0) > level.step + TOGETHER_STEPS, "train together")
    joined_s, view = ring.views[views]
    steps = _steps(ring)
    joined = next(step for step, (at_s, _) in sorted(steps.items()) if at_s >= joined_s)
    found.alone += [steps[step][1] for step in (*range(calm_from, started), *range(up, joined))]
    found.rejoins.append(
        Rejoin(
            starting=tuple(steps[step][1] for step in range(started, up)),
            joining=tuple(steps[step][1] for step in range(joined, level.step)),
            together=tuple(steps[step][1] for step in range(level.step + SETTLE_STEPS, level.step + TOGETHER_STEPS)),
            installed=next(said for said in ring.of(ViewInstalled, 0, 0) if said.epoch == view.epoch),
            level=level,
        )
    )


def _exchange_s(said: StepReport) -> float:
    return said.exchange_s - said.copy_wait_s


def _level(ring: Cluster, incarnation: int) -> CaughtUp | None:
    with ring.changed:
        said = [m for _, key, m in ring.said if isinstance(m, CaughtUp) and key == (LOST, incarnation, 0)]
    return said[0] if said else None


def _steps(ring: Cluster) -> dict[int, tuple[float, StepReport]]:
    """Step to (when it was told of, what was said of it), by one rank."""
    with ring.changed:
        return {m.step: (at_s, m) for at_s, key, m in ring.said if isinstance(m, StepReport) and key == WATCHED}
