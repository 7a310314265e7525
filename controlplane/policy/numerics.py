"""What a refused result proves, and against whom.

A rank that finds a result refused computes the step again in place and says what came out
(`protocol.rank.NumericsReport`, a signal of kind "numerics"). A persistent one cannot be
judged on the device that produced it: it takes other hardware. Here that comes by itself:
the replica leaves, its micro-batches are dealt out to the others, and either they commit
the step (the device was wrong) or another device refuses the same step (the result is what
the model computes from this data, and no device is to blame).
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from controlplane.policy.signals.numbers import LossNotFinite, LossSpike
from controlplane.policy.snapshot import JobSnapshot, SignalFact

KIND = "numerics"
TRANSIENT = "transient"
REPRODUCED = "reproduced"
PERSISTENT = "persistent"
FAILED_VALIDATION = "failed_validation"
ACCUSING = frozenset({PERSISTENT, FAILED_VALIDATION})
OF_LOSS = (LossNotFinite.KIND, LossSpike.KIND)
SPIKE_RATIO = 2.0
"""The median loss after a restart is above so many times the highest before: noise does not do that."""
NEWEST_STEPS = 16
"""So many steps are looked at, before the checkpoint, after the resume, and of the newest."""
LOSS_NOW, FINITE_STEP = "loss_now", "finite_step"
"""In the evidence of a finding about the loss, put there by whoever builds the snapshot: the median loss of the
newest steps, and the newer of the last two steps whose loss is a finite number."""


def findings(snapshot: JobSnapshot, *diagnoses: str) -> tuple[SignalFact, ...]:
    """Open findings with one of these diagnoses, by id."""
    return tuple(s for s in snapshot.signals if s.kind == KIND and s.evidence.get("diagnosis") in diagnoses)


def accuses(signal: SignalFact) -> bool:
    """Nothing is started on its device while it is open."""
    return signal.kind == KIND and signal.evidence.get("diagnosis") in ACCUSING


def step_of(signal: SignalFact) -> int:
    """The step that was refused, from 0."""
    return int(signal.value)


def reproduced(snapshot: JobSnapshot) -> tuple[SignalFact, ...]:
    """Persistent findings of one step, of two lives of replicas that share no device; empty if
    there are none. (Within one replica a bad value travels from stage to stage.)"""
    suspects = findings(snapshot, PERSISTENT)
    for signal in suspects:
        same = tuple(other for other in suspects if step_of(other) == step_of(signal))
        lives: dict[tuple[int | None, int | None], set[tuple[str | None, int | None]]] = {}
        for other in same:
            lives.setdefault((other.replica, other.incarnation), set()).add((other.node_id, other.device_index))
        mine = lives[(signal.replica, signal.incarnation)]
        if any(mine.isdisjoint(devices) for devices in lives.values()):
            return same
    return ()


def refuted(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """The step was committed without this device: what it computed was wrong."""
    return snapshot.job.committed_step > step_of(signal)


def losses_now(signal: SignalFact, newest: Sequence[tuple[int, float | None]]) -> SignalFact:
    """A finding about the loss, with what the loss is now. `newest`: the attempt's last steps, newest first, each with
    its loss (None: it was not told, or is no finite number)."""
    known = [loss for _, loss in newest if loss is not None]
    finite = next((step for step, loss in newest[:2] if loss is not None), None)
    now = {LOSS_NOW: median(known) if known else None, FINITE_STEP: finite}
    return msgspec.structs.replace(signal, evidence={**signal.evidence, **now})


def is_well_again(signal: SignalFact) -> bool:
    """What the loss was when it was found it is no more. A finite loss says that the parameters are: none comes of
    parameters that are no numbers."""
    if signal.kind == LossNotFinite.KIND:
        finite = signal.evidence.get(FINITE_STEP)
        return isinstance(finite, int) and finite > signal.value
    loss = signal.evidence.get(LOSS_NOW)
    return signal.kind == LossSpike.KIND and isinstance(loss, float) and loss <= SPIKE_RATIO * signal.threshold


def words_of_loss(signal: SignalFact) -> str:
    """What it is now, for sentences."""
    loss = signal.evidence.get(LOSS_NOW)
    return f"{loss:.3g}" if isinstance(loss, float) else "a number"
