"""One job of a simulated world: its toy ranks, its checkers and what is true of it, and the server's part for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.protocol.spec import TrainSpec, micro_batch_count
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.control import Control
from controlplane.simulator.lens import Lens
from controlplane.simulator.rows import Rows
from controlplane.simulator.server import Job
from controlplane.simulator.store import Store
from controlplane.simulator.trainer import Trainer
from controlplane.simulator.truth import Truth

if TYPE_CHECKING:
    from controlplane.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job of `project` beside the first one of a world, submitted at `arrives_s`."""

    name: str
    spec: TrainSpec
    arrives_s: float = 0.0
    project: str = ""


class JobRun:
    """Of one job. `control`: once it is submitted."""

    def __init__(self, world: "World", job_id: str, name: str, spec: TrainSpec) -> None:
        self.id, self.name, self.spec = job_id, name, spec
        self._control: Control | None = None
        self.micro_batches = micro_batch_count(spec)
        self.checkers, self.truth = Checkers(world.kernel, self.micro_batches), Truth(world, self)
        self.checkers.slow, self.checkers.holders = self.truth.keeps, self.truth.holders
        self.checkers.is_rotten = world.storage.is_rotten
        self.trainer = Trainer(world.kernel, self.checkers, world.said, world.timing)
        self.lens = Lens()

    def submitted(self, control: Control) -> None:
        """The server knows it."""
        self._control = control
        control.decide = self.lens

    @property
    def job(self) -> Job:
        """As it is submitted."""
        return Job(id=self.id, name=self.name, spec=self.spec, checkers=self.checkers, sick=self.truth.sick)

    @property
    def is_here(self) -> bool:
        """It has been submitted."""
        return self._control is not None

    @property
    def control(self) -> Control:
        """The server's part for it."""
        assert self._control is not None, f"{self.name} has not been submitted"
        return self._control

    @property
    def rows(self) -> Rows:
        """What the server knows of it."""
        return self.control.rows

    @property
    def store(self) -> Store:
        """Their writer."""
        return self.control.store
