"""Between two steps: the saves that are due, and leaving.

Every branch depends on what the ranks of the replica agreed on in the step, so that all of
them take it together.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.states import Phase, Section
from trainer.checkpoint.local.tier import LocalOrder, LocalTier
from trainer.checkpoint.saver import SaveOrder, Saver
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.control.progress import Progress
from trainer.core.standing import Standing
from trainer.engine import Engine
from trainer.exits import ExitCode
from trainer.replica.commit import Commit

LEAVE_PATIENCE_S = 2.0
"""How long a member that was asked to leave goes on, so that all who were asked leave together."""


@dataclass(slots=True, kw_only=True)
class Boundary:
    """One rank's side of it."""

    config: TrainerConfig
    engine: Engine
    standing: Standing
    saver: Saver
    local: LocalTier | None
    mailbox: Mailbox
    preemption: Preemption
    progress: Progress

    def cross(self, commit: Commit) -> ExitCode | None:
        """Save what is due. The code to leave with, when it is time to leave."""
        standing, intent = self.standing, commit.intent
        if commit.leaving and (commit.everyone_leaves or intent.leave_now):
            return self._leave(save=intent.leave_save and commit.everyone_leaves)
        self._save_locally()
        interval = self.config.checkpoint.interval_steps
        if intent.save_emergency or intent.save_manual:
            self._save_on_order("emergency" if intent.save_emergency else "manual")
        elif interval > 0 and standing.committed % interval == 0 and standing.committed < self.config.training.steps:
            self._save("interval", blocking=not self.config.checkpoint.asynchronous)
        return None

    def finish(self) -> None:
        """Every step is committed: save the last state and wait until it is."""
        if self.config.checkpoint.interval_steps > 0:
            self._save("final", blocking=True)
        self.saver.finish()
        if self.local is not None:
            self.local.finish()

    def _save_locally(self) -> None:
        """Every contributor alike: the nodes' own disks, where the job has that tier."""
        standing = self.standing
        if self.local is None or standing.is_joiner or not self.local.is_due(standing.committed):
            return
        if standing.committed >= self.config.training.steps:
            return  # The final save is the persistent tier's.
        self._enter_saving()
        order = LocalOrder(step=standing.committed, epoch=standing.epoch, contributors=standing.contributors)
        self.local.save(self.engine, order)

    def _save_on_order(self, kind: str) -> None:
        order = self.mailbox.take_save() if self.standing.ref.rank == 0 else None
        self._save(kind, blocking=not self.config.checkpoint.asynchronous, command_id=order.command_id if order else "")

    def _save(self, kind: str, *, blocking: bool, command_id: str = "") -> None:
        standing = self.standing
        if not standing.is_saver:
            return
        self._enter_saving()
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

    def _enter_saving(self) -> None:
        step, epoch = self.standing.committed, self.standing.epoch
        self.progress.enter(Section.CHECKPOINTING, Phase.SAVING, step=step, epoch=epoch)


class PendingRequests:
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
