"""Megatron-core's re-run state machine around the forward and backward pass.

A result that is refused (not finite, or a loss far above all seen) is computed again in
place, from the same samples, random state and raw gradient sums:

| the second time | diagnosis | this rank |
|---|---|---|
| good | transient | trains on with the second result, and tells |
| a spike again, the same | reproduced | trains on: the model computes it, and tells |
| not finite again, the same | persistent | exit 16: only other hardware can tell |
| refused again, but different | failed_validation | exit 17: this device cannot compute |

The raw sums are put back before the second run, so what is kept counts once, also when a
view change has added micro-batches to a step that holds some already. Megatron would write
a checkpoint before exit 16, so that the job could be resumed on another GPU; here the other
replicas hold the state and compute the same micro-batches next.

The other ranks of a replica whose rank refused a result learn it from the machine's own
all-reduce; they end as those who lost a peer.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from megatron.core import rerun_state_machine as megatron

from controlplane.protocol.rank import DeterminismReport, FromRank, NumericsReport
from controlplane.protocol.spec import Numerics
from trainer.errors import InnerPeerLost, NumericsSuspect, TrainerError, ValidationFailed

SPIKE_SAMPLES = 100
"""Losses seen before one can be a spike (Megatron's default)."""
SPIKE_TOLERANCE = 1e-3
"""Relative: a spike that comes again this close is the same spike."""
REPORT_EVERY_STEPS = 10
NOT_FINITE_LOSS, NOT_FINITE_GRADIENT, SPIKE = "loss_not_finite", "gradient_not_finite", "loss_spike"

Tensors = Sequence[torch.Tensor]


class Sums(Protocol):
    """The raw sums that a run adds to."""

    def raw_sums(self) -> list[torch.Tensor]:
        """Gradient buffers and the loss sum, by reference, in a fixed order."""


@dataclass(slots=True)
class _Refused:
    """A result refused in the first run: the `call`-th of the run, and what came of it."""

    call: int
    check: str
    first: torch.Tensor
    second: torch.Tensor | None = None


class Rerun:
    """One rank's. `tell` sends a report; it is connected once the rank has a link."""

    def __init__(self, wanted: Numerics, sums: Sums, *, last_step: int) -> None:
        self._settings, self._sums, self._last_step = wanted, sums, last_step
        self._tell: Callable[[FromRank], None] = _silent
        self._epoch: Callable[[], int] = _no_epoch
        self._calls = 0
        self._refused: _Refused | None = None
        self._refused_now = False
        self._counted_step, self._step_identical = -1, True
        self._steps = self._identical = 0
        self._difference = self._largest_difference = 0.0
        self._machine = self._build() if wanted.rerun != "disabled" else None

    def connect(self, tell: Callable[[FromRank], None], *, epoch: Callable[[], int]) -> None:
        """From now on reports go somewhere."""
        self._tell, self._epoch = tell, epoch

    def rest(self) -> None:
        """From now on results are taken as they come, and nothing is told: what is computed again was
        checked when it was trained."""
        self._machine, self._settings = None, Numerics(rerun="disabled", check_nan=False)

    def run(
        self,
        step: int,
        micro_batches: Sequence[int],
        batches: Iterator[Any],
        body: Callable[[Iterator[Any]], Tensors],
    ) -> None:
        """`body` takes batches, adds to the raw sums and gives the loss of each micro-batch
        (none except on the last stage). Raises NumericsSuspect, ValidationFailed, InnerPeerLost."""
        machine = self._machine
        if machine is None:
            body(batches)
            if self._settings.check_nan and not self._finite():
                raise NumericsSuspect(f"step {step}: gradient of micro-batches {list(micro_batches)} is not finite")
            return
        replayed = megatron.RerunDataIterator(batches)
        self._refused = None
        while machine.should_run_forward_backward(replayed):
            self._calls, self._refused_now, self._difference = 0, False, 0.0
            losses = body(replayed)
            self._validate(machine, losses)
        _save, leave, code = machine.should_checkpoint_and_exit()
        if self._settings.rerun == "report_determinism_stats":
            self._count(step)
        self._conclude(step, micro_batches, code if leave else 0)

    def _build(self) -> Any:
        """Megatron's machine of this process. Its own first-step exemption is for want of a
        checkpoint, which we do not need; its own statistics printer reads fields that its
        records do not have (megatron-core 0.16.1), so ours count instead."""
        megatron.destroy_rerun_state_machine()
        megatron.initialize_rerun_state_machine(
            state_save_func=self._save, state_restore_func=self._restore, mode=megatron.RerunMode(self._settings.rerun)
        )
        machine = megatron.get_rerun_state_machine()
        machine.first_iteration_complete = True
        machine._maybe_report_stats = lambda: None
        return machine

    def _save(self) -> dict[str, list[torch.Tensor]]:
        return {"sums": [tensor.clone() for tensor in self._sums.raw_sums()]}

    def _restore(self, saved: dict[str, list[torch.Tensor]]) -> None:
        for tensor, kept in zip(self._sums.raw_sums(), saved["sums"], strict=True):
            tensor.copy_(kept)

    def _validate(self, machine: Any, losses: Tensors) -> None:
        """The same calls in the same order in every run, which the machine relies on."""
        if self._settings.rerun == "report_determinism_stats":
            for tensor in self._sums.raw_sums():
                machine.validate_result(tensor.clone(), _never, "raw sums", self._compare)
            return
        for loss in losses:
            # A copy: the schedule goes on to divide the loss in place.
            value = loss.detach().clone()
            if self._settings.check_nan:
                self._check(machine, NOT_FINITE_LOSS, value, _not_finite, 0.0)
            if self._settings.check_spike:
                self._check(machine, SPIKE, value, lambda result: self._is_spike(machine, result), SPIKE_TOLERANCE)
        if self._settings.check_nan:
            for tensor in self._sums.raw_sums():
                self._check(machine, NOT_FINITE_GRADIENT, tensor.sum(), _not_finite, 0.0)

    def _check(
        self, machine: Any, check: str, result: torch.Tensor, refuse: Callable[[torch.Tensor], bool], tolerance: float
    ) -> None:
        """One call to the machine; `fatal` is what makes it diagnose as the table says."""
        call, refused = self._calls, self._refused
        self._calls += 1
        first_run = machine.state is megatron.RerunState.INITIAL_RUN
        fatal = False
        if not first_run:
            again = refuse(result)
            self._refused_now |= again and check != SPIKE
            if refused is not None and refused.call == call:
                refused.second = result
                same = difference(refused.first, result) <= tolerance
                fatal = again and not (same and check == SPIKE)
        asked_before = machine.rerun_requested
        machine.validate_result(result, refuse, check, difference, tolerance, fatal)
        if first_run and machine.rerun_requested and not asked_before:
            self._refused = _Refused(call, check, result)

    def _is_spike(self, machine: Any, result: torch.Tensor) -> bool:
        """In a second run the machine's samples are only read."""
        if machine.state is megatron.RerunState.INITIAL_RUN:
            return bool(
                machine.is_unexpectedly_large(result, self._settings.spike_factor, "loss", num_samples=SPIKE_SAMPLES)
            )
        largest = machine.max_values.get("loss", math.inf)
        return math.isfinite(result.item()) and abs(result.item()) >= largest * self._settings.spike_factor

    def _conclude(self, step: int, micro_batches: Sequence[int], code: int) -> None:
        """Tell what was found, and leave if it cannot be trusted."""
        refused = self._refused
        if refused is not None:
            diagnosis = _diagnosis(refused, code)
            self._tell(
                NumericsReport(
                    step=step,
                    epoch=self._epoch(),
                    check=refused.check,
                    diagnosis=diagnosis,
                    first_result=_text(refused.first),
                    second_result=_text(refused.second),
                    micro_batches=tuple(micro_batches),
                )
            )
        if code == 0 and not self._refused_now:
            return
        raise self._error(step, refused, code)

    def _error(self, step: int, refused: _Refused | None, code: int) -> TrainerError:
        if refused is None and not self._refused_now:
            return InnerPeerLost(f"step {step}: another rank of this replica refused a result")
        text = f"step {step}: {refused.check if refused else 'a result'} was refused twice on this device"
        if code == megatron.EXIT_CODE_FAILED_ON_RESULT_VALIDATION:
            return ValidationFailed(text)
        return NumericsSuspect(text)

    def _compare(self, first: torch.Tensor, second: torch.Tensor) -> float:
        """Bit for bit first; else the largest difference, relative to the largest element."""
        if torch.equal(first, second):
            return 0.0
        scale = float(torch.maximum(first.abs().max(), second.abs().max()))
        found = float((first - second).abs().max()) / scale if scale > 0 else math.inf
        self._difference = max(self._difference, found if math.isfinite(found) else math.inf)
        return self._difference

    def _count(self, step: int) -> None:
        """A step that a view change made longer counts once, and is identical if all of it was."""
        if step != self._counted_step:
            self._steps += 1
            self._identical += 1
            self._counted_step, self._step_identical = step, True
        if self._difference > 0 and self._step_identical:
            self._identical -= 1
            self._step_identical = False
        self._largest_difference = max(self._largest_difference, self._difference)
        if self._steps % REPORT_EVERY_STEPS == 0 or step == self._last_step:
            largest = self._largest_difference if math.isfinite(self._largest_difference) else 1.0
            self._tell(DeterminismReport(step, self._steps, self._identical, largest))

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(tensor.sum())) for tensor in self._sums.raw_sums())


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Of two 0-dim results, relative; 0 for two NaN or the same infinity, infinite for any
    other pair of which one is not finite."""
    a, b = first.item(), second.item()
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _diagnosis(refused: _Refused, code: int) -> str:
    if code == megatron.EXIT_CODE_RESUME_TO_DISAMBIGUATE:
        return "persistent"
    if code == megatron.EXIT_CODE_FAILED_ON_RESULT_VALIDATION:
        return "failed_validation"
    second = refused.second
    same = second is not None and difference(refused.first, second) <= SPIKE_TOLERANCE
    return "reproduced" if same and refused.check == SPIKE else "transient"


def _not_finite(result: torch.Tensor) -> bool:
    return not bool(torch.isfinite(result).all())


def _never(_result: torch.Tensor) -> bool:
    return False


def _text(result: torch.Tensor | None) -> str:
    return "" if result is None else f"{result.item():.6g}"


def _silent(_message: FromRank) -> None:
    return None


def _no_epoch() -> int:
    return 0
