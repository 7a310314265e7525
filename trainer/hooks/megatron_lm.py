"""Hooks around Megatron-LM's `pretrain`, without an edit of Megatron-LM.

    from megatron.training import training
    from trainer.hooks.megatron_lm import Hooked

    with Hooked(training) as holdfast:
        pretrain(...)

`training.train` looks three functions up in its own module each time it calls them, and
`Hooked` puts itself around those: `train_step` is the step, `save_checkpoint` the
checkpointing, and `checkpoint_and_decide_exit`, which Megatron-LM calls behind every counted
step, the boundary at which orders are carried out. SIGTERM is remembered by the hooks; with
--exit-signal-handler Megatron-LM's own handler takes it, saves and leaves at the same place.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from trainer.hooks.agreement import Agree, any_rank
from trainer.hooks.framework import Framework
from trainer.hooks.run import Run
from trainer.hooks.starting import start

WRAPPED = ("train_step", "save_checkpoint", "checkpoint_and_decide_exit")
GRAD_NORM = 5
"""Its place in what `train_step` returns, since the re-run state machine came in."""


class Hooked(Framework):
    """`training` is the module `megatron.training.training`. `run` None: start the hooks.
    Raises AttributeError at `with` if a function it needs is not there."""

    def __init__(self, training: Any, *, agree: Agree = any_rank, run: Run | None = None) -> None:
        super().__init__(run or start(agree=agree))
        self._training = training
        self._own: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Self:
        self._own = {name: getattr(self._training, name) for name in WRAPPED}
        for name in WRAPPED:
            setattr(self._training, name, getattr(self, name))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, own in self._own.items():
            setattr(self._training, name, own)
        super().__exit__(kind, error, trace)

    def train_step(self, *given: Any, **named: Any) -> Any:
        """One step, in its section; what it returned is told and passed on."""
        args = self._training.get_args()
        if not self.watching:
            self.watch_saves(args.save)
        self.tell_of_save()
        with self.run.step(int(args.curr_iteration)) as said:
            result = self._own["train_step"](*given, **named)
            losses, skipped = result[0], result[1]
            if not skipped:
                grad_norm = result[GRAD_NORM] if len(result) > GRAD_NORM else None
                said.report(
                    loss=next(iter(losses.values()), None),
                    grad_norm=grad_norm,
                    tokens=args.global_batch_size * args.seq_length,
                )
        return result

    def save_checkpoint(self, *given: Any, **named: Any) -> Any:
        """A save, or the start of an asynchronous one."""
        with self.run.section("checkpointing"):
            return self._own["save_checkpoint"](*given, **named)

    def checkpoint_and_decide_exit(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        iteration: int,
        done: Any,
        context: Any,
        data: Any,
        *more: Any,
        **named: Any,
    ) -> bool:
        """`iteration` steps are committed. True: leave."""
        wanted = self.run.wanted()
        if (wanted.save or wanted.leave) and self._training.get_args().save:
            self._training.save_checkpoint_and_time(
                iteration, model, optimizer, scheduler, done, context, train_data_iterator=data
            )
        if wanted.leave:
            return True
        decide = self._own["checkpoint_and_decide_exit"]
        return bool(decide(model, optimizer, scheduler, iteration, done, context, data, *more, **named))
