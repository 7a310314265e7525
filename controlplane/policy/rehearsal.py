"""When a job's own faults are due, and whom they hit (`resiliency.faults`, S1.5).

Pure: the moments follow from the spec and the job's seed alone, so every control plane,
also one that has just been restarted, computes the same ones. What has been done is
counted from decisions, which are rows; a fault whose moment comes while the job recovers,
or while its target is out, waits. Time is training time: the seconds of committed steps.
"""

import hashlib
from itertools import accumulate
from typing import TypeVar

import msgspec

from controlplane.protocol.rank_faults import RANDOM, SCHEDULED, is_scheduled, kinds_for
from controlplane.protocol.spec import FaultSchedule, TrainSpec

T = TypeVar("T")

# S1.5: each delay is stretched by up to a fifth of itself.
JITTER_RATIO = 0.2


class DueFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fault `number` (from 0) of the schedule. `kind` in the schedule's words, `fault` and
    `value` in the command's. `target`: replica and rank inside it."""

    number: int
    kind: str
    fault: str
    value: float
    target: tuple[int, int]


def share(seed: int, number: int, what: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.blake2b(f"{seed}/{number}/{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def moment_s(schedule: FaultSchedule, seed: int, number: int) -> float:
    """Training seconds at which fault `number` is due: each comes `delay_s` + U(0, 0.2) x
    `delay_s` after the one before."""
    gaps = (schedule.delay_s * (1.0 + JITTER_RATIO * share(seed, n, "delay")) for n in range(number + 1))
    return list(accumulate(gaps))[-1]


def wait_s(spec: TrainSpec, *, training_s: float, fired: int) -> float | None:
    """Training seconds until the next fault; 0 when it is due, None when all are done."""
    schedule = spec.resiliency.faults
    if not is_scheduled(schedule) or not spec.resiliency.allow_faults or fired >= schedule.times:
        return None
    return max(0.0, moment_s(schedule, spec.training.seed, fired) - training_s)


def due(
    spec: TrainSpec, *, training_s: float, fired: int, replicas: tuple[int, ...], ranks_per_replica: int
) -> DueFault | None:
    """The fault to give now, if there is one and its target trains. `replicas`: indices of
    those that contribute, sorted."""
    left_s = wait_s(spec, training_s=training_s, fired=fired)
    if left_s is None or left_s > 0 or training_s <= 0 or not replicas:
        return None
    schedule, seed = spec.resiliency.faults, spec.training.seed
    kind = schedule.kind if schedule.kind != RANDOM else _choose(kinds_for(spec), seed, fired, "kind")
    if schedule.rank < 0:
        target = (
            _choose(replicas, seed, fired, "replica"),
            _choose(tuple(range(ranks_per_replica)), seed, fired, "rank"),
        )
    else:
        target = divmod(schedule.rank, ranks_per_replica)
    if target[0] not in replicas:
        return None
    fault, value = SCHEDULED[kind]
    return DueFault(number=fired, kind=kind, fault=fault, value=value, target=target)


def _choose(options: tuple[T, ...], seed: int, number: int, what: str) -> T:
    return options[int(share(seed, number, what) * len(options))]
