"""Hooks as a callback of Megatron-Bridge.

    from trainer.hooks.bridge import HoldfastCallback
    pretrain(config, forward_step, callbacks=[HoldfastCallback(save=save)])

It has the methods that Bridge's `Callback` documents and takes what its contexts hold; it
needs no base class of Bridge (its manager looks methods up by name) and imports nothing of
it. Written against the documented interface of `megatron.bridge.training.callbacks`; it
never ran with Bridge itself, which cannot be installed without CUDA. Bridge lets a
callback's exception end the training, so all that is done here goes through `Run`, which
raises only what the program's own `save`, `leave` and `agree` raise.

Leaving is left to Bridge: set `train.exit_signal_handler = True`, and the SIGTERM that a
preemption sends makes it save and exit at the end of the step. A stop that comes on the
agent's socket alone is turned into the same signal.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainer.hooks.agreement import Agree, any_rank
from trainer.hooks.run import Run, Step
from trainer.hooks.starting import start

Save = Callable[[Any], Path | str]
"""Saves at once (a collective: it is called on every rank at the same step) and returns the
checkpoint's directory. Its argument is the callback's context: state, model, optimizer,
scheduler; `context.state.train_state.step` steps are committed."""


def terminate_self(_context: Any) -> None:
    """Ask Bridge's own exit handler for a save and an exit; without one nothing is sent, as
    the signal would end the program where it stands."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        print("holdfast hooks: a stop waits: set train.exit_signal_handler", file=sys.stderr, flush=True)
        return
    os.kill(os.getpid(), signal.SIGTERM)


class HoldfastCallback:
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
        self.run = run or start(agree=agree, signals=False)
        self._save, self._leave = save, leave
        self._setup, self._open, self._aside = ExitStack(), ExitStack(), ExitStack()
        self._step: Step | None = None
        self._told_to_leave = self._saving = False
        self._setup.enter_context(self.run.section("setup"))

    def on_train_start(self, context: Any) -> None:
        """Model, optimizer and data are there."""
        self._setup.close()

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

    def on_train_end(self, context: Any) -> None:
        """All steps are committed. (Bridge does not call it when it exits on a signal.)"""
        self.run.finish()

    def on_eval_start(self, context: Any) -> None:
        """Evaluation has the timeout of what is outside of every section."""
        self._aside.enter_context(self.run.section("out_of_section"))

    def on_eval_end(self, context: Any) -> None:
        """Back to training."""
        self._aside.close()

    def on_test_start(self, context: Any) -> None:
        """As evaluation."""
        self.on_eval_start(context)

    def on_test_end(self, context: Any) -> None:
        """As evaluation."""
        self.on_eval_end(context)

    def on_checkpoint_save(self, context: Any) -> None:
        """Bridge saved by itself, and says so once it is durable. A local checkpoint is a part
        of one rank's disk, not a directory that anybody resumes from."""
        if self._saving or "LOCAL" in str(context.checkpoint_type).upper():
            return
        self.run.saved(Path(str(context.checkpoint_name)), step=int(context.state.train_state.step))

    def _boundary(self, context: Any) -> None:
        wanted = self.run.wanted()
        if wanted.leave:
            if not self._told_to_leave:
                self._told_to_leave = True
                self._leave(context)
        elif wanted.save and self._save is not None:
            self._saving = True
            try:
                with self.run.section("checkpointing"):
                    path = self._save(context)
            finally:
                self._saving = False
            self.run.saved(path, step=int(context.state.train_state.step))


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
