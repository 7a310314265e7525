"""Hooks around Megatron-LM's `pretrain`, without an edit of Megatron-LM.

    from megatron.training import training
    from trainer.hooks.megatron_lm import Hooked

    with Hooked(training) as holdfast:
        sys.argv += holdfast.save_arguments() + holdfast.resume_arguments()
        pretrain(...)

`megatron.training.training` looks its functions up in its own module each time it calls
them, and `Hooked` puts itself around four: `train_step` is the step, `save_checkpoint` the
checkpointing, `evaluate` a sign of life at each of its steps, and
`checkpoint_and_decide_exit`, which Megatron-LM calls behind every counted step, the boundary
at which orders are carried out. SIGTERM is remembered by the hooks; with
--exit-signal-handler Megatron-LM's own handler takes it, saves and leaves at the same place.
"""

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.hooks.agreement import Agree, any_rank
from trainer.hooks.framework import Framework, at_interval, say
from trainer.hooks.run import Run
from trainer.hooks.starting import start

WRAPPED = ("train_step", "evaluate", "save_checkpoint", "checkpoint_and_decide_exit")
SHOULD_EXIT, GRAD_NORM = 3, 5
"""Their places in what `train_step` returns, since the re-run state machine came in."""


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

    def save_arguments(self) -> list[str]:
        """What the script's command line must hold behind its own --save, which gives way to it: only
        what lies in the job's directory counts as its checkpoint. Empty without an agent."""
        folder = self.run.checkpoint_dir
        return [] if folder is None else ["--save", str(folder)]

    def resume_arguments(self) -> list[str]:
        """What the script's command line must end with in a life that goes on from a
        checkpoint; empty in one that does not. An earlier --load gives way to it."""
        resume = self.run.resume
        if resume is None:
            return []
        return ["--load", str(Path(resume.path).parent), "--ckpt-step", str(resume.step)]

    def train_step(self, *given: Any, **named: Any) -> Any:
        """One step, in its section; what it returned is told and passed on."""
        args = self._training.get_args()
        self.began = True
        self._watch(args)
        self.tell_of_save()
        with suppress(_Refused), self.run.step(int(args.curr_iteration)) as said:
            result = self._own["train_step"](*given, **named)
            losses, skipped = result[0], result[1]
            if len(result) > SHOULD_EXIT and result[SHOULD_EXIT]:
                raise _Refused
            if not skipped:
                samples = self._training.get_num_microbatches() * args.micro_batch_size * args.data_parallel_size
                said.report(
                    loss=next(iter(losses.values()), None),
                    grad_norm=result[GRAD_NORM] if len(result) > GRAD_NORM else None,
                    tokens=samples * args.seq_length,
                )
        return result

    def evaluate(self, forward_step: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """An evaluation, outside of every section; each of its forward steps is a sign of life."""

        @functools.wraps(forward_step)
        def beating(*batch: Any, **options: Any) -> Any:
            self.run.beat()
            return forward_step(*batch, **options)

        return self._own["evaluate"](beating, *given, **named)

    def save_checkpoint(self, *given: Any, **named: Any) -> Any:
        """A save, or the start of an asynchronous one."""
        self._watch(self._training.get_args())
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
        wanted, args = self.run.wanted(), self._training.get_args()
        if (wanted.save or wanted.leave) and not args.save:
            say("nothing is saved on order: set --save")
        elif wanted.leave or (wanted.save and not at_interval(args.save_interval, iteration)):
            self._training.save_checkpoint_and_time(
                iteration, model, optimizer, scheduler, done, context, train_data_iterator=data
            )
        if wanted.leave:
            return True
        decide = self._own["checkpoint_and_decide_exit"]
        return bool(decide(model, optimizer, scheduler, iteration, done, context, data, *more, **named))

    def _watch(self, args: Any) -> None:
        if not self.watching:
            self.watch_saves(args.save)


class _Refused(Exception):
    """Megatron-LM does not trust the step's result and exits without counting it."""
