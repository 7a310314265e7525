"""A program's side of its agent: where it is, what it has done, what is wanted of it.

The training loop calls in, the control link's thread calls `_installed`. Nothing here waits
for the agent but `finish`, and nothing raises into the loop but the program's own agreement
and its own code: an error of ours is printed and costs a report.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import SaveNow, StepReport, TrainingDone
from controlplane.protocol.states import Phase, Section
from trainer.config import HookSettings
from trainer.control.link import ControlLink
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.control.progress import Progress
from trainer.exits import ExitCode
from trainer.hooks.agreement import Agree
from trainer.hooks.saves import Save, Saves

DRAIN_S = 5.0
COMMIT_S = 60.0
"""How long `finish` waits for the last checkpoint's digests."""
MAX_NOTES = 20
PHASES = {
    Section.SETUP: Phase.BUILDING,
    Section.STEP: Phase.COMPUTE,
    Section.CHECKPOINTING: Phase.SAVING,
    Section.OUT_OF_SECTION: Phase.IDLE,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to do at this step boundary; equal on every rank. `save` before `leave`."""

    save: bool = False
    leave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The parts that speak with the agent."""

    settings: HookSettings
    link: ControlLink
    mailbox: Mailbox
    progress: Progress
    preemption: Preemption
    saves: Saves
    agree: Agree


class Step:
    """What one step has to tell; sent when its block ends without an exception."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def report(self, **facts: Any) -> None:
        """`loss` (mean per token; from whichever rank has it), `tokens` of the global batch,
        `grad_norm`, `micro_batches` this replica computed, `trained` ids in the gradient.
        Numbers, or anything float() and int() take; later calls win field by field."""
        self.facts.update(facts)


class Run:
    """`control` None: no agent is there, and every method does nothing.

    Sections and steps belong to one thread, the training loop's; everything else may be
    called from any thread.
    """

    def __init__(self, control: Control | None) -> None:
        self._control = control
        self._lock = threading.RLock()
        self._section = Section.OUT_OF_SECTION
        self._step = control.progress.report().step if control else 0
        self._order: SaveNow | None = None
        self._ordered_at = 0
        self._saved_at = self._step
        self._leaving = self._saved_to_leave = False
        self._notes = 0

    @property
    def active(self) -> bool:
        """An agent started this program."""
        return self._control is not None

    @property
    def resume(self) -> Resume | None:
        """The checkpoint to load first (`path`, `step`); None: begin at step 0."""
        return self._control.settings.config.resume if self._control else None

    @property
    def checkpoint_dir(self) -> Path | None:
        """The job's own directory: a checkpoint that lies elsewhere is refused by the control plane."""
        return Path(self._control.settings.config.checkpoint_dir) if self._control else None

    def checkpoint_path(self, step: int) -> Path | None:
        """A directory for a save of `step` committed steps that no other save uses: a life
        that goes back to an older checkpoint comes by the same steps again."""
        if self._control is None or self.checkpoint_dir is None:
            return None
        return self.checkpoint_dir / f"step_{step:08d}-i{self._control.settings.ref.incarnation}"

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """`setup`, `step`, `checkpointing` or `out_of_section`: each has its own timeout.
        They nest; when one ends, the one around it goes on."""
        before = self._section
        self._enter(self._named(name))
        try:
            yield
        finally:
            self._enter(before)

    def beat(self) -> None:
        """The loop is getting on. For programs that mark no sections, with the job's watchdog
        set to "heartbeat": the first beat ends setup. Inside a section it counts for nothing,
        because the section's own limit holds there."""
        with self._lock:
            if self._section is Section.OUT_OF_SECTION:
                self._enter(Section.OUT_OF_SECTION)
                self._quietly(lambda control: control.progress.renew())

    @contextmanager
    def step(self, number: int) -> Iterator[Step]:
        """Step `number` (from 0). It is reported, as committed, when the block ends."""
        scope, began_s, before = Step(), time.monotonic(), self._section
        self._enter(Section.STEP, step=number)
        try:
            yield scope
        except BaseException:
            self._enter(before)
            raise
        self._quietly(lambda control: control.link.send(self._report(number, scope, began_s)))
        self._enter(before, step=number + 1)

    def wanted(self) -> Wanted:
        """Ask at each step boundary, on every rank: the ranks agree, so that all save and
        leave at the same one. A save is wanted when one was ordered, and when `interval_steps` of
        the job's `checkpoint` have passed since the last. Raises only what the agreement raises."""
        control = self._control
        if control is None:
            return Wanted()
        stop, asked = control.mailbox.stop(), control.preemption.asked
        order = self._order_at_hand(control)
        due = order is not None or self._interval_over(control)
        mine = (due, asked or stop is not None, asked or (stop is not None and stop.save))
        agreed = list(map(int, mine)) if control.settings.world_size == 1 else control.agree(list(map(int, mine)))
        if agreed is None:
            self._note("orders wait: the ranks cannot agree yet (torch.distributed is not set up; see agree=)")
            return Wanted()
        save, leave, save_first = (bool(flag) for flag in agreed)
        if save and order is not None:
            with self._lock:
                self._order, self._ordered_at = control.mailbox.take_save(), self._step
        self._leaving = self._leaving or leave
        return Wanted(save=save or save_first, leave=leave)

    @contextmanager
    def saving(self, path: Path | str, *, step: int) -> Iterator[None]:
        """Around a save of `step` committed steps into directory `path`, new for each save.

        When the block ends on rank 0, every rank must have written (a collective save sees
        to that). An exception is reported and passed on. For an asynchronous save use
        `section("checkpointing")` around its start, and `saved` when it is durable.
        """
        save = self._begin(path, step)
        try:
            with self.section(Section.CHECKPOINTING):
                yield
        except BaseException as error:
            told = error
            self._quietly(lambda control: control.saves.fail(save, told))
            raise
        self._complete(save)

    def saved(self, path: Path | str, *, step: int) -> None:
        """An asynchronous save is durable on every rank. Any thread may say so."""
        self._complete(self._begin(path, step))

    def leave(self) -> None:
        """This program goes before its end, for a reason that `wanted` did not give: a handler
        of its own saw the signal first. The save that follows counts as the one to leave with."""
        self._leaving = True

    def settle(self) -> None:
        """As `finish`, for a program that ends with an exit code of its own: what there is to
        tell is told, and nothing of an end."""
        self._close(done=False)

    def finish(self) -> int:
        """The loop is over: tell the agent, wait for it briefly, and return the exit code:
        0 when it ran to its end, 15 when it left on order with its state saved, 14 without."""
        self._close(done=not self._leaving)
        if not self._leaving:
            return ExitCode.DONE
        return ExitCode.SAVED_AND_LEFT if self._saved_to_leave else ExitCode.LEFT

    def _close(self, *, done: bool) -> None:
        control = self._control
        if control is None:
            return
        control.saves.wait(COMMIT_S)
        if done:
            self._enter(Section.OUT_OF_SECTION)
            self._quietly(lambda control: control.link.send(TrainingDone(self._step)))
        self._quietly(lambda control: control.link.drain(DRAIN_S))

    def _order_at_hand(self, control: Control) -> SaveNow | None:
        """Rank 0's copy counts; the others drop theirs, so one order makes one checkpoint."""
        if control.settings.ref.rank != 0:
            control.mailbox.take_save()
            return None
        return control.mailbox.save()

    def _interval_over(self, control: Control) -> bool:
        """Rank 0's steps count, as its orders do; the others follow by agreement."""
        interval_steps = control.settings.config.checkpoint.interval_steps
        return control.settings.ref.rank == 0 and 0 < interval_steps <= self._step - self._saved_at

    def _begin(self, path: Path | str, step: int) -> Save:
        with self._lock:
            self._saved_at = max(self._saved_at, step)
            order = None
            if step >= self._ordered_at:  # An asynchronous save from before the order is not its answer.
                order, self._order = self._order, None
        kind = order.kind if order else "preemption" if self._leaving else "scheduled"
        epoch = self._control.progress.epoch if self._control else 0
        save = Save(path=Path(path), step=step, epoch=epoch, kind=kind, order=order, began_s=time.monotonic())
        self._quietly(lambda control: control.saves.begin(save))
        return save

    def _complete(self, save: Save) -> None:
        self._saved_to_leave = self._leaving
        self._quietly(lambda control: control.saves.complete(save))

    def _report(self, number: int, scope: Step, began_s: float) -> StepReport:
        facts = scope.facts
        loss, grad_norm = facts.get("loss"), facts.get("grad_norm")
        return StepReport(
            step=number,
            epoch=self._control.progress.epoch if self._control else 0,
            step_time_s=time.monotonic() - began_s,
            tokens=int(facts.get("tokens", 0)),
            micro_batches=tuple(int(number) for number in facts.get("micro_batches", ())),
            loss=None if loss is None else float(loss),
            grad_norm=None if grad_norm is None else float(grad_norm),
            trained=tuple(int(number) for number in facts.get("trained", ())),
        )

    def _enter(self, section: Section, *, step: int | None = None) -> None:
        """Cross a border."""
        with self._lock:
            self._section = section
            self._step = self._step if step is None else int(step)
            self._quietly(
                lambda control: control.progress.enter(
                    section, PHASES[section], step=self._step, epoch=control.progress.epoch
                )
            )

    def installed(self, epoch: int) -> None:
        """Called by the link's thread: from now on reports are of `epoch`."""
        self._quietly(lambda control: control.saves.enter(epoch))
        with self._lock:
            self._quietly(
                lambda control: control.progress.enter(
                    self._section, PHASES[self._section], step=self._step, epoch=epoch
                )
            )

    def _named(self, name: str) -> Section:
        try:
            return Section(name)
        except ValueError:
            self._note(f"section {name!r} is none of {', '.join(Section)}; it counts as out_of_section")
            return Section.OUT_OF_SECTION

    def _quietly(self, act: Callable[[Control], object]) -> None:
        """The one catch-all: whatever goes wrong on our side, the program trains on."""
        if self._control is None:
            return
        try:
            act(self._control)
        except Exception as error:
            self._note(f"a report was lost: {error!r}")

    def _note(self, text: str) -> None:
        """Into the rank's log, a bounded number of times."""
        self._notes += 1
        if self._notes <= MAX_NOTES:
            print(f"holdfast hooks: {text}", file=sys.stderr, flush=True)
