"""Hooks as a callback of Megatron-Bridge (0.3.0 and later).

    with HoldfastCallback(save=save) as holdfast:
        pretrain(config, forward_step, callbacks=[holdfast])

It has the methods whose names Bridge's manager looks up, needs no base class of Bridge and
imports nothing of it. Bridge lets a callback's exception end the training, so all that is
done here goes through `Run`, which raises only what the program's own `save`, `leave` and
`agree` raise.

Leaving is left to Bridge: with `train.exit_signal_handler = True` it sees SIGTERM at the end
of a step, saves, and calls sys.exit(0) without another event. A stop that comes on the
agent's socket alone is turned into the same signal. Saving of its own it does without an
event too in 0.3, and its last save of all comes after `on_train_end`; `Framework` has both.
"""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from trainer.hooks.agreement import Agree, any_rank
from trainer.hooks.framework import Framework, at_interval, say
from trainer.hooks.run import Run, Step
from trainer.hooks.starting import start

Save = Callable[[Any], object]
"""Saves at once, or begins an asynchronous save, into `checkpoint.save` (a collective: it is
called on every rank at the same step). Its argument is the callback's context: state, model,
optimizer, scheduler; `context.state.train_state.step` steps are committed."""


def terminate_self(context: Any) -> None:
    """Ask Bridge's own exit handler for a save and an exit. Where it does not look for the
    signal nothing is sent, as that would end the program where it stands, or do nothing."""
    train = context.state.cfg.train
    if train.exit_signal_handler and signal.getsignal(train.exit_signal) is not signal.SIG_DFL:
        os.kill(os.getpid(), train.exit_signal)
    else:
        say("a stop waits: set train.exit_signal_handler")


class HoldfastCallback(Framework):
    """`save` None: save orders wait for Bridge's next save of its own. `run` None: start the
    hooks, without signal handlers, because Bridge has its own."""

    def __init__(
        self,
        *,
        save: Save | None = None,
        leave: Callable[[Any], None] = terminate_self,
        agree: Agree = any_rank,
        run: Run | None = None,
    ) -> None:
        super().__init__(run or start(agree=agree, signals=False))
        self._save, self._leave = save, leave
        self._setup, self._open = ExitStack(), ExitStack()
        self._step: Step | None = None
        self._told_to_leave = self._stepped = False
        self._setup.enter_context(self.run.section("setup"))

    def on_train_start(self, context: Any) -> None:
        """Model, optimizer and data are there."""
        self.began = True
        self._setup.close()
        if not self.run.active:
            return
        self.watch_saves(context.state.cfg.checkpoint.save)
        _arm_exit_handler(context)
        if not self.entered:
            say("pretrain() is not inside `with HoldfastCallback(...)`: its end will not be told")

    def on_train_step_start(self, context: Any) -> None:
        """The boundary behind the last step: Bridge has counted it and saved what it wanted to."""
        self._boundary(context)
        self._step = self._open.enter_context(self.run.step(int(context.state.train_state.step)))

    def on_train_step_end(self, context: Any) -> None:
        """One optimizer step is done; Bridge counts it next."""
        if self._step is not None:
            self._step.report(**_facts(context))
        self._step = None
        self._open.close()

    def on_eval_start(self, _context: Any) -> None:
        """Evaluation has the timeout of what is outside of every section, at each of its steps."""
        self._setup.close()
        self.run.beat()

    on_eval_step_start = on_eval_step_end = on_eval_end = on_eval_start
    on_test_start = on_test_step_start = on_test_step_end = on_test_end = on_eval_start

    def _boundary(self, context: Any) -> None:
        wanted = self.run.wanted()
        if wanted.leave:
            if not self._told_to_leave:
                self._told_to_leave = True
                self._leave(context)
        elif wanted.save and self._save is not None and not self._just_saved(context):
            with self.run.section("checkpointing"):
                self._save(context)
        self.tell_of_save()
        self._stepped = True

    def _just_saved(self, context: Any) -> bool:
        interval = context.state.cfg.checkpoint.save_interval
        return self.watching and self._stepped and at_interval(interval, context.state.train_state.step)


def _arm_exit_handler(context: Any) -> None:
    """Bridge up to 0.3.1 makes its handler and never installs it: SIGTERM would end the
    program where it stands."""
    train = context.state.cfg.train
    if not train.exit_signal_handler or train.exit_signal != signal.SIGTERM:
        say("SIGTERM will not save: set train.exit_signal_handler = True, and leave train.exit_signal at SIGTERM")
    elif signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        context.state.signal_handler.__enter__()


def _facts(context: Any) -> dict[str, Any]:
    """Loss and gradient norm of the step, where this rank has them. Losses are reduced
    already, on the last pipeline stage; several are told by their first."""
    if context.skipped_iter:
        return {}
    facts: dict[str, Any] = {}
    if context.grad_norm is not None:
        facts["grad_norm"] = context.grad_norm
    losses = list((context.loss_dict or {}).values())
    if losses:
        facts["loss"] = losses[0]
    train, model = context.state.cfg.train, context.state.cfg.model
    samples, length = getattr(train, "global_batch_size", None), getattr(model, "seq_length", None)
    if samples and length:
        facts["tokens"] = samples * length
    return facts
