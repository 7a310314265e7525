"""What a simulated trainer saves: each interval, and, where its `Timing` has it so, when it is asked and as it leaves.

The first contributor of an epoch saves for all. A rank that is asked to leave (SIGTERM) goes on to the end of the step
in hand, as its peers do, which may leave then too; where that comes to nothing it leaves at what it has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from controlplane.protocol.rank import CheckpointReport
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Process, Rank, save_of
from controlplane.simulator.timing import Timing
from trainer.core.rank import Stage

if TYPE_CHECKING:
    from controlplane.simulator.trainer import Report

STORED_MAX = 64
ENDS_S = 0.01
GOES_ON = (Stage.COMPUTING, Stage.SUMMING, Stage.PASSING)
Kind = Literal["interval", "emergency"]


class Saving:
    """The part of a trainer that saves. `stored`: by path the epochs in which each step was committed."""

    timing: Timing

    def __init__(self, kernel: Kernel, said: Callable[[Rank, Report], None]) -> None:
        self._kernel, self._said = kernel, said
        self.stored: dict[str, list[int]] = {}

    def save_now(self, rank: Rank, process: Process) -> None:
        """It is asked to, at the end of the step in hand."""
        if self.timing.saves_asked and rank.alive and not rank.hung:
            process.save_asked = True

    def _save(self, process: Process) -> None:
        """With the step that it has just committed, if it is to."""
        kind: Kind = "emergency" if process.save_asked else "interval"
        if process.saves_now or (process.save_asked and process.standing.is_saver):
            process.saves_until_s = self._kernel.now_s + self.timing.save_holds_s
            self._begin(process, kind)
        process.save_asked = False

    def _begin(self, process: Process, kind: Kind) -> float:
        took_s = self._kernel.between(*self.timing.save_s)
        self._said(process.first, save_of(process, process.committed, process.epoch, state="writing", kind=kind))
        self._kernel.after(took_s, self._saved, process, list(process.lineage), process.epoch, (took_s, kind))
        return took_s

    def _saved(self, process: Process, lineage: list[int], epoch: int, how: tuple[float, Kind]) -> None:
        """Durable, if the process lived that long."""
        if not process.able():
            return
        done: CheckpointReport = save_of(process, len(lineage), epoch, state="complete", kind=how[1])
        self.stored[done.path] = lineage
        if len(self.stored) > STORED_MAX:
            del self.stored[next(iter(self.stored))]
        process.left_well = process.left_s is not None
        self._said(process.first, msgspec.structs.replace(done, total_s=how[0]))

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, rank: Rank, process: Process, end: Callable[[Rank], None]) -> None:
        """SIGTERM: `end` when it has saved what is to be saved."""
        if not self.timing.saves_asked:
            end(rank)
            return
        process.leavers.append((rank, end))
        goes_on = rank.core.stage in GOES_ON and process.noticed != process.epoch and process.able()
        if process.left_s is None and not (goes_on and not process.interrupted()):
            self._leave(process)
        elif process.left_s is not None:
            self._kernel.after(max(0.0, process.left_s - self._kernel.now_s), end, rank)

    def _leave(self, process: Process) -> None:
        """At the end of a step, or at what it has."""
        process.token += 1
        saves = process.able() and process.loaded and process.standing.is_saver and process.committed > 0
        took_s = self._begin(process, "emergency") + ENDS_S if saves else 0.0
        process.left_s = self._kernel.now_s + took_s
        process.left_well = process.able() and not process.standing.is_saver
        for rank, end in process.leavers:
            self._kernel.after(took_s, end, rank)
