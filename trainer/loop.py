"""The training loop, whole: compute -> exchange -> commit -> report -> boundary.

Runs in the main thread of one rank. It talks to nobody by itself: messages go through
`send`, other replicas are behind `Exchange` and `Membership`, orders behind `Boundary`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.protocol.rank import FromRank, TrainingDone
from controlplane.protocol.states import Phase, Section
from trainer.boundary import Boundary
from trainer.checkpoint.keeper import Keeper
from trainer.control.progress import Progress
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.standing import Standing
from trainer.engine import Engine
from trainer.exits import ExitCode
from trainer.recompute import Recomputer
from trainer.replica.commit import Commit
from trainer.replica.exchange import Exchange
from trainer.replica.membership import Membership
from trainer.replica.pilot import Pilot
from trainer.reporting import StepClock, step_report


@dataclass(slots=True, kw_only=True)
class Loop:
    """One rank's training: `steps` optimizer steps."""

    steps: int
    engine: Engine
    pilot: Pilot
    exchange: Exchange
    membership: Membership
    boundary: Boundary
    recomputer: Recomputer
    progress: Progress
    keeper: Keeper
    send: Callable[[FromRank], None]

    @property
    def standing(self) -> Standing:
        """Where this rank stands."""
        return self.pilot.standing

    def run(self) -> ExitCode:
        """Train until every step is committed, or until this rank has to leave."""
        self._enter(Phase.PARKED, Section.SETUP)
        self.membership.change_view()
        while self.standing.committed < self.steps:
            clock = StepClock()
            commit = self._step(clock)
            self.send(step_report(commit, clock, self.engine, self.standing))
            if (timings := self.engine.timings.due(commit.step, epoch=commit.epoch)) is not None:
                self.send(timings)
            if (code := self.boundary.cross(commit)) is not None:
                self.keeper.wait()
                return code
        self.boundary.finish()
        self._enter(Phase.IDLE, Section.OUT_OF_SECTION)
        self.send(TrainingDone(self.standing.committed))
        self.recomputer.run()
        self.keeper.wait()
        return ExitCode.DONE

    def _step(self, clock: StepClock) -> Commit:
        """Compute and exchange until the step in progress is committed, through any number of views."""
        while True:
            self._enter(Phase.COMPUTE)
            self.pilot.bring(on.Begun())
            if isinstance(ask := self.pilot.take(do.Compute), do.Compute):
                if ask.fresh:
                    self.engine.clear()
                self.engine.compute(ask.step, ask.todo)
                self.pilot.bring(on.Computed())
            self._enter(Phase.EXCHANGE)
            began_s = time.monotonic()
            commit = self.exchange.attempt()
            if commit is not None:
                clock.exchange_s += time.monotonic() - began_s
                return commit
            # It came to nothing: all of it, waiting for a peer that is gone too, held training up.
            self._enter(Phase.VIEW_CHANGE)
            commit = self.membership.change_view()
            clock.stall_s += time.monotonic() - began_s
            if commit is not None:
                return commit

    def _enter(self, phase: Phase, section: Section = Section.STEP) -> None:
        self.progress.enter(section, phase, step=self.standing.committed, epoch=self.standing.epoch)
