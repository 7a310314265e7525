"""The training loop, whole: compute -> exchange -> commit -> report -> boundary.

Runs in the main thread of one rank. It talks to nobody by itself: messages go through
`send`, orders come from the mailbox, other replicas are behind `Exchange` and `Membership`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.rank import FromRank, StepReport, TrainingDone
from controlplane.protocol.states import Phase, Section
from trainer.checkpoint.local.tier import LocalOrder, LocalTier
from trainer.checkpoint.saver import SaveOrder, Saver
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.control.progress import Progress
from trainer.engine import Engine
from trainer.exits import ExitCode
from trainer.replica.exchange import Exchange
from trainer.replica.membership import Membership
from trainer.replica.standing import Commit, Standing

LEAVE_PATIENCE_S = 2.0
"""How long a member that was asked to leave goes on, so that all who were asked leave together."""


@dataclass(slots=True)
class _Clock:
    """Seconds of one step, by part."""

    began_s: float
    exchange_s: float = 0.0
    stall_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Loop:
    """One rank's training."""

    config: TrainerConfig
    engine: Engine
    standing: Standing
    exchange: Exchange
    membership: Membership
    saver: Saver
    local: LocalTier | None
    mailbox: Mailbox
    preemption: Preemption
    progress: Progress
    send: Callable[[FromRank], None]

    def run(self) -> ExitCode:
        """Train until every step is committed, or until this rank has to leave."""
        self._enter(Phase.PARKED, Section.SETUP)
        self.membership.change_view()
        while self.standing.committed < self.config.training.steps:
            clock = _Clock(time.monotonic())
            commit = self._step(clock)
            self._report(commit, clock)
            code = self._boundary(commit)
            if code is not None:
                return code
        return self._finish()

    def _step(self, clock: _Clock) -> Commit:
        """Compute and exchange until the step in progress is committed, through any number of views."""
        standing, engine = self.standing, self.engine
        if standing.done_step != standing.committed or not standing.done:
            engine.clear()
            standing.done, standing.done_step = (), standing.committed
        while True:
            self._enter(Phase.COMPUTE)
            if not standing.is_joiner:
                todo = standing.share_of_step(self._micro_batch_count)
                engine.compute(standing.committed, todo)
                standing.done, standing.todo = tuple(sorted({*standing.done, *todo})), ()
            self._enter(Phase.EXCHANGE)
            began_s = time.monotonic()
            commit = self.exchange.attempt()
            clock.exchange_s += time.monotonic() - began_s
            if commit is not None:
                return commit
            self._enter(Phase.VIEW_CHANGE)
            began_s = time.monotonic()
            change = self.membership.change_view()
            clock.stall_s += time.monotonic() - began_s
            if change.commit is not None:
                return change.commit

    def _report(self, commit: Commit, clock: _Clock) -> None:
        standing, engine, every = self.standing, self.engine, self.config.training.hash_every_steps
        hashed = every > 0 and standing.committed % every == 0 and not standing.is_joiner
        step_time_s = time.monotonic() - clock.began_s
        self.send(
            StepReport(
                step=commit.step,
                epoch=commit.epoch,
                step_time_s=step_time_s,
                tokens=self._micro_batch_count * engine.tokens_per_micro_batch,
                micro_batches=commit.micro_batches,
                trained=commit.trained if self.standing.ref.rank == 0 else (),
                loss=commit.applied.loss if commit.applied else None,
                grad_norm=commit.applied.grad_norm if commit.applied else None,
                parameter_hash=engine.parameter_hash() if hashed else None,
                stall_s=clock.stall_s,
                exchange_s=clock.exchange_s,
            )
        )
        timings, stalled = engine.timings, clock.stall_s > 0
        timings.step_over(commit.step, step_time_s=step_time_s, exchange_s=clock.exchange_s, stalled=stalled)
        report = timings.due(commit.step, epoch=commit.epoch)
        if report is not None:
            self.send(report)

    def _boundary(self, commit: Commit) -> ExitCode | None:
        """Saves and leaving. Every branch depends on what the replica agreed on in the step."""
        standing, intent = self.standing, self.standing.intent
        if commit.leaving and (commit.everyone_leaves or intent.leave_now):
            return self._leave(save=intent.leave_save and commit.everyone_leaves)
        self._save_locally()
        interval = self.config.checkpoint.interval_steps
        if intent.save_emergency or intent.save_manual:
            self._save_on_order("emergency" if intent.save_emergency else "manual")
        elif interval > 0 and standing.committed % interval == 0 and standing.committed < self.config.training.steps:
            self._save("interval", blocking=not self.config.checkpoint.asynchronous)
        return None

    def _save_locally(self) -> None:
        """Every contributor alike: the nodes' own disks, where the job has that tier."""
        standing = self.standing
        if self.local is None or standing.is_joiner or not self.local.is_due(standing.committed):
            return
        if standing.committed >= self.config.training.steps:
            return  # The final save is the persistent tier's.
        self._enter(Phase.SAVING, Section.CHECKPOINTING)
        order = LocalOrder(step=standing.committed, epoch=standing.epoch, contributors=standing.contributors)
        self.local.save(self.engine, order)

    def _save_on_order(self, kind: str) -> None:
        order = self.mailbox.take_save() if self.standing.ref.rank == 0 else None
        self._save(kind, blocking=not self.config.checkpoint.asynchronous, command_id=order.command_id if order else "")

    def _save(self, kind: str, *, blocking: bool, command_id: str = "") -> None:
        standing = self.standing
        if not standing.is_saver:
            return
        self._enter(Phase.SAVING, Section.CHECKPOINTING)
        self.saver.save(
            SaveOrder(
                step=standing.committed, epoch=standing.epoch, kind=kind, blocking=blocking, command_id=command_id
            )
        )

    def _leave(self, *, save: bool) -> ExitCode:
        """When all leave the state would be gone: the saver writes it. Else it lives on in those who stay."""
        stop = self.mailbox.stop()
        if save:
            self._save("emergency", blocking=True)
        self.saver.finish()
        unsaved = stop is not None and not stop.save and not self.preemption.asked
        return ExitCode.LEFT if unsaved else ExitCode.SAVED_AND_LEFT

    def _finish(self) -> ExitCode:
        if self.config.checkpoint.interval_steps > 0:
            self._save("final", blocking=True)
        self.saver.finish()
        if self.local is not None:
            self.local.finish()
        self._enter(Phase.IDLE, Section.OUT_OF_SECTION)
        self.send(TrainingDone(self.standing.committed))
        return ExitCode.DONE

    def _enter(self, phase: Phase, section: Section = Section.STEP) -> None:
        self.progress.enter(section, phase, step=self.standing.committed, epoch=self.standing.epoch)

    @property
    def _micro_batch_count(self) -> int:
        return self.config.training.global_batch // self.config.training.micro_batch


class Wishes:
    """This rank's (leaving, leave_now, leave_save, save_emergency, save_manual), when called.

    Save orders count at rank 0 of the saver only, so that one order makes one checkpoint
    however its copies arrive; the other replicas drop theirs.
    """

    def __init__(self, standing: Standing, mailbox: Mailbox, preemption: Preemption) -> None:
        self._standing, self._mailbox, self._preemption = standing, mailbox, preemption
        self._stop_seen_s: float | None = None

    def __call__(self) -> Sequence[bool]:
        """Asked before each exchange; the replica acts on what all its ranks agree on."""
        stop, order = self._mailbox.stop(), self._mailbox.save()
        now_s = time.monotonic()
        if stop is not None and self._stop_seen_s is None:
            self._stop_seen_s = now_s
        asked_s = max(self._preemption.age_s(), now_s - self._stop_seen_s if self._stop_seen_s else 0.0)
        leaving = self._preemption.asked or stop is not None
        if order is not None and not (self._standing.is_saver and self._standing.ref.rank == 0):
            self._mailbox.take_save()
            order = None
        return (
            leaving,
            leaving and asked_s > LEAVE_PATIENCE_S,
            self._preemption.asked or (stop is not None and stop.save),
            order is not None and order.kind == "emergency",
            order is not None and order.kind != "emergency",
        )
