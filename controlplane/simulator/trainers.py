"""The trainers of several jobs on one fleet, as a node or a fault meets them: by the job of the rank."""

from collections.abc import Callable, Mapping
from typing import Protocol

from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.membership import Install, View
from controlplane.simulator.process import Process, Rank
from controlplane.simulator.timing import Timing
from controlplane.simulator.trainer import Trainer


class Trainers(Protocol):
    """What `Trainer` is to its node, and `Several` for several of them."""

    timing: Timing
    crash_starts: int

    def spawn(self, launch: ReplicaLaunch, node: str, joined: Callable[[Rank], None]) -> list[Rank]:
        """Start this node's ranks of a replica; `joined` when one has said hello."""

    def living(self) -> list[Process]:
        """Every incarnation that there was."""

    def process_of(self, rank: Rank) -> Process:
        """The incarnation a rank belongs to."""

    def kill(self, rank: Rank, *, quiet: bool = False) -> None:
        """The process is gone."""

    def wake(self, rank: Rank) -> None:
        """SIGCONT."""

    def break_group_of(self, process: Process) -> None:
        """The exchange of the epoch that it is in fails for every member."""

    def see_view(self, rank: Rank, view: View) -> None:
        """A view reaches a rank."""

    def see_install(self, rank: Rank, order: Install) -> None:
        """An install reaches a rank."""

    def unheard(self, rank: Rank) -> bool:
        """What it said last may be lost."""

    def save_now(self, rank: Rank, process: Process) -> None:
        """It is asked to."""

    def leave(self, rank: Rank, process: Process, end: Callable[[Rank], None]) -> None:
        """SIGTERM."""


class Several:
    """Of each job its own, by job id."""

    def __init__(self, timing: Timing, of: Mapping[str, Trainer]) -> None:
        self.timing, self._of, self.crash_starts = timing, of, 0

    def _its(self, rank: Rank) -> Trainer:
        return self._of[rank.ref.job_id]

    def spawn(self, launch: ReplicaLaunch, node: str, joined: Callable[[Rank], None]) -> list[Rank]:
        """Start this node's ranks of a replica; `joined` when one has said hello."""
        return self._of[launch.job_id].spawn(launch, node, joined)

    def living(self) -> list[Process]:
        """Every incarnation that there was."""
        return [process for trainer in self._of.values() for process in trainer.living()]

    def process_of(self, rank: Rank) -> Process:
        """The incarnation a rank belongs to."""
        return self._its(rank).process_of(rank)

    def kill(self, rank: Rank, *, quiet: bool = False) -> None:
        """The process is gone."""
        self._its(rank).kill(rank, quiet=quiet)

    def wake(self, rank: Rank) -> None:
        """SIGCONT."""
        self._its(rank).wake(rank)

    def break_group_of(self, process: Process) -> None:
        """The exchange of the epoch that it is in fails for every member."""
        self._of[process.launch.job_id].break_group_of(process)

    def see_view(self, rank: Rank, view: View) -> None:
        """A view reaches a rank."""
        self._its(rank).see_view(rank, view)

    def see_install(self, rank: Rank, order: Install) -> None:
        """An install reaches a rank."""
        self._its(rank).see_install(rank, order)

    def unheard(self, rank: Rank) -> bool:
        """What it said last may be lost."""
        return self._its(rank).unheard(rank)

    def save_now(self, rank: Rank, process: Process) -> None:
        """It is asked to."""
        self._its(rank).save_now(rank, process)

    def leave(self, rank: Rank, process: Process, end: Callable[[Rank], None]) -> None:
        """SIGTERM."""
        self._its(rank).leave(rank, process, end)
