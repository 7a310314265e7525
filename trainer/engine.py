"""One rank's computation: micro-batches in, raw gradient sums kept, reduced gradient applied.

Raw sums and Megatron's finished gradients are kept apart. After a view change more
micro-batches may be added to a step whose gradients were already finished (tied
embeddings are all-reduced between the first and last stage), and finishing twice would
count them twice. So the schedule runs with no `finalize_model_grads_func`, the buffers
keep the raw sums, and `stage` finishes a copy: save the raw sums, finalize in place,
clone the result for the exchange, put the raw sums back.

Inside a replica each data-parallel rank keeps the sums of its own part of the replica's
micro-batches, and each context-parallel rank those of its part of every sequence; finalizing
adds them up, so that each of them stages the replica's vector. With the distributed optimizer
a rank has the sum of its part only, stages that, steps it, and gathers the parameters; the
parts are the same in every replica.

The staged vector is [gradients | count of each micro-batch | loss sum | leaving per member].
The counts travel with the gradients they count, so the reduced vector
itself proves that each sample of the step is in it exactly once, whoever dies afterwards.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from controlplane.protocol.launch import TrainerConfig
from trainer.batches import Batch, check_counts, counted_tokens, filler_count, inner_share, make_batch
from trainer.checkpoint import rng
from trainer.context import local_part
from trainer.control.faults import Faults
from trainer.control.rerun import Rerun
from trainer.control.timings import Timings
from trainer.data import Corpus, load_corpus, micro_batch_samples
from trainer.errors import MembershipViolated
from trainer.model import build_model, forward_step
from trainer.optimizer import build_optimizer, build_schedule, set_schedule, state_tensors
from trainer.shared_state import own_parts
from trainer.stopwatch import stopwatch_for


@dataclass(frozen=True, slots=True)
class Tail:
    """What travels behind the gradients, summed over the members. `trained`: ids of the
    micro-batches in the sum, each as often as it is in it."""

    trained: tuple[int, ...]
    loss_sum: float
    leaving: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of one optimizer step. `loss` is None except on the last pipeline stage."""

    loss: float | None
    grad_norm: float | None


class Engine:
    """Model, optimizer and gradient buffers of this rank. Knows nothing of other replicas."""

    def __init__(self, config: TrainerConfig, device: torch.device, faults: Faults) -> None:
        self.config = config
        self.device = device
        self.faults = faults
        self.chunks = build_model(config, device)
        self.optimizer = build_optimizer(config.training, self.chunks)
        self.schedule = build_schedule(config.training, self.optimizer)
        self.corpus: Corpus = load_corpus(
            config.training.data,
            sequence_length=config.model.sequence_length,
            seed=config.training.seed,
            vocab_size=config.model.vocab_size,
        )
        self.is_last_stage = parallel_state.is_pipeline_last_stage()
        self._stepped = [part for buffer in self._buffers() for part in own_parts(buffer)]
        self.gradient_elements = sum(part.numel() for part in self._stepped)
        self._data_group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self._computed: list[int] = []
        self._loss_sum = torch.zeros(1, device=device)
        watch = stopwatch_for(device, pipeline_stages=config.parallelism.pp)
        self.timings = Timings(interval_s=config.timing_interval_s, watch=watch)
        self.rerun = Rerun(config.training.numerics, self, last_step=config.training.steps - 1)

    @property
    def micro_batch_count(self) -> int:
        """Micro-batches of a global batch."""
        return self.config.training.global_batch // self.config.training.micro_batch

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one micro-batch."""
        return self.config.training.micro_batch * self.config.model.sequence_length

    def clear(self) -> None:
        """Forget the gradients of the step behind."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._computed.clear()
        self._loss_sum.zero_()

    def compute(self, step: int, micro_batches: Sequence[int]) -> None:
        """Forward and backward of my part of the replica's `micro_batches`; adds to the raw
        sums. Raises NumericsSuspect, ValidationFailed and InnerPeerLost where a result is
        refused (`trainer.control.rerun`)."""
        if not micro_batches:
            return
        self.faults.at_compute()
        layout = self.config.parallelism
        mine = inner_share(micro_batches, parallel_state.get_data_parallel_rank(), layout.replica_dp)
        fillers = (min(micro_batches),) * filler_count(micro_batches, len(mine), layout)
        if not mine and not fillers:
            return
        count = len(mine) + len(fillers)
        first, *others = (self._batches(step, mine, fillers, first=chunk == 0) for chunk in range(layout.vp))
        self.rerun.run(step, micro_batches, first, lambda feed: self._forward_backward([feed, *others], count))
        self._computed.extend(mine)

    def _forward_backward(self, feeds: list[Iterator[Batch]], count: int) -> list[torch.Tensor]:
        """One run of Megatron's schedule, with a feed for each model chunk; the loss sum of each
        micro-batch on the last stage."""
        timed = [self.timings.data(feed) for feed in feeds]
        with self.timings.compute(count):
            losses: list[torch.Tensor] = get_forward_backward_func()(
                forward_step_func=self.timings.forward(forward_step),
                data_iterator=timed if len(timed) > 1 else timed[0],
                model=self.chunks if len(timed) > 1 else self.chunks[0],
                num_microbatches=count,
                seq_length=self.config.model.sequence_length,
                micro_batch_size=self.config.training.micro_batch,
                forward_only=False,
            )
        for loss in losses:
            self._loss_sum += loss / counted_tokens(self.config)
        if self.faults.take_nan():
            next(self._buffers()).grad_data.fill_(float("nan"))
        return losses

    def raw_sums(self) -> list[torch.Tensor]:
        """What a run of the schedule adds to, by reference."""
        return [*(buffer.grad_data for buffer in self._buffers()), self._loss_sum]

    def stage(self, micro_batches: Sequence[int], *, leaving: Sequence[bool]) -> torch.Tensor:
        """A contributor's vector for the exchange; the raw sums are left as they were. All
        ranks of the replica call it together. Raises MembershipViolated when they have not
        computed the replica's `micro_batches`, each once."""
        raw = [buffer.grad_data.clone() for buffer in self._buffers()]
        finalize_model_grads(self.chunks, None)
        finished = [part.clone() for part in self._stepped]
        for buffer, kept in zip(self._buffers(), raw, strict=True):
            buffer.grad_data.copy_(kept)
        return torch.cat([*finished, self._replica_head(micro_batches), self._flags(leaving)])

    def stage_zeros(self, *, leaving: Sequence[bool]) -> torch.Tensor:
        """A joiner's vector: no gradient, weight 0."""
        zeros = torch.zeros(self.gradient_elements, device=self.device)
        return torch.cat([zeros, self._tail_head((), loss_sum=0.0), self._flags(leaving)])

    def _replica_head(self, micro_batches: Sequence[int]) -> torch.Tensor:
        """The head of the whole replica's tail: its `micro_batches`, and its loss sum."""
        layout = self.config.parallelism
        parts = torch.zeros(layout.cp, self.micro_batch_count + 1, device=self.device)
        parts[parallel_state.get_context_parallel_rank()] = self._tail_head(
            self._computed, loss_sum=float(self._loss_sum)
        )
        if layout.replica_dp * layout.cp > 1:
            dist.all_reduce(parts, group=self._data_group)
        check_counts(parts[:, :-1], micro_batches)
        return self._tail_head(micro_batches, loss_sum=float(parts[:, -1].sum()))

    def _tail_head(self, micro_batches: Sequence[int], *, loss_sum: float) -> torch.Tensor:
        counts = [0.0] * self.micro_batch_count
        for number in micro_batches:
            counts[number] += 1.0
        return torch.tensor([*counts, loss_sum], device=self.device)

    def _flags(self, leaving: Sequence[bool]) -> torch.Tensor:
        return torch.tensor([float(flag) for flag in leaving], device=self.device)

    def tail(self, reduced: torch.Tensor) -> Tail:
        """Read the tail of a reduced vector."""
        numbers = reduced[self.gradient_elements :].tolist()
        counts, loss_sum = numbers[: self.micro_batch_count], numbers[self.micro_batch_count]
        return Tail(
            trained=tuple(number for number, count in enumerate(counts) for _ in range(round(count))),
            loss_sum=loss_sum,
            leaving=tuple(number > 0 for number in numbers[self.micro_batch_count + 1 :]),
        )

    def apply(self, reduced: torch.Tensor) -> Applied:
        """Divide by the tokens of the global batch and take the optimizer step.

        All ranks of the replica call it together (clipping reduces the norm over them).
        Raises MembershipViolated when the vector is not one whole global batch.
        """
        tail = self.tail(reduced)
        if tail.trained != tuple(range(self.micro_batch_count)):
            raise MembershipViolated(
                f"reduced gradient holds micro-batches {tail.trained}, not each of {self.micro_batch_count} once"
            )
        tokens = self.micro_batch_count * counted_tokens(self.config)
        offset = 0
        for part in self._stepped:
            part.copy_(reduced[offset : offset + part.numel()])
            part.div_(tokens)
            offset += part.numel()
        with self.timings.optimizer():
            _ok, grad_norm, _zeros = self.optimizer.step()
        self.schedule.step(increment=1)
        loss = tail.loss_sum / self.micro_batch_count if self.is_last_stage else None
        return Applied(loss=loss, grad_norm=None if grad_norm is None else float(grad_norm))

    def stand_at(self, step: int) -> None:
        """Put the schedule where `step` committed steps leave it."""
        set_schedule(self.schedule, step)

    def state(self) -> list[torch.Tensor]:
        """Every tensor that makes up this rank's training state, once, in a fixed order, by
        reference. In fp32 a parameter is its own main parameter."""
        once: dict[tuple[int, int], torch.Tensor] = {}
        for tensor in (*(parameter.data for parameter in self._parameters()), *state_tensors(self.optimizer)):
            once.setdefault((tensor.data_ptr(), tensor.numel()), tensor)
        return list(once.values())

    def state_hash(self) -> str:
        """xxh3 (128 bits, hex) of all that the next step depends on: this rank's parameters, its
        optimizer's state, the schedule's place and the random state. Replicas differ by accident, if
        they do: it is no proof against a forger."""
        digest = xxhash.xxh3_128(self.schedule.num_steps.to_bytes(8, "little"))
        for tensor in (*self.state(), rng.drawn(self.device)):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        for chunk in self.chunks:
            yield from chunk.parameters()

    def _buffers(self) -> Iterator[Any]:
        for chunk in self.chunks:
            yield from chunk.buffers
            yield from chunk.expert_parallel_buffers

    def _batches(
        self, step: int, micro_batches: Sequence[int], fillers: Sequence[int], *, first: bool
    ) -> Iterator[Batch]:
        """For one chunk of the model; only the `first` of a rank is slowed down."""
        training = self.config.training
        for place, micro_batch in enumerate((*micro_batches, *fillers)):
            delay_s = training.step_delay_s + self.faults.slow_s if first else 0.0
            if delay_s > 0:
                time.sleep(delay_s)
            numbers = micro_batch_samples(
                step, micro_batch, global_batch=training.global_batch, size=training.micro_batch
            )
            samples = [self.corpus.sample(number) for number in numbers]
            batch = make_batch(self.config, samples, numbers, self.device, filler=place >= len(micro_batches))
            yield local_part(batch) if self.config.parallelism.cp > 1 else batch
