"""One rank's part of PPO: roll out, value, update. Knows nothing of the controller.

Every forward pass runs on micro-batches of one size, so that a sample's numbers are the
same in every mesh; only the order in which gradients of replicas are summed can differ.
Losses are sums over response bytes, divided by their count over all replicas once, when
Megatron finishes the gradients.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from controlplane.protocol.launch import TrainerConfig
from trainer.errors import NumericsSuspect
from trainer.workloads.mesh import MeshRank
from trainer.workloads.ppo.messages import Experience, Prompts, Responses, UpdateRows
from trainer.workloads.ppo.models import Trained, build_actor, build_critic
from trainer.workloads.ppo.settings import PpoSettings

Batch = dict[str, torch.Tensor]
Head = Callable[[torch.Tensor, Batch], torch.Tensor]
"""A model's output on the last stage and its micro-batch -> what to keep of it."""
Loss = Callable[[torch.Tensor, Batch], tuple[torch.Tensor, torch.Tensor]]
"""Likewise -> (summed loss, sums to report)."""
SEED_BITS = 62


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of one model's update: `sums` are zero except on the last stage."""

    sums: list[float]
    norm: float


class PpoEngine:
    """Both models of this rank. All ranks of a replica call each method together."""

    def __init__(self, settings: PpoSettings, config: TrainerConfig, place: MeshRank, device: torch.device) -> None:
        self.settings, self.place, self._device = settings, place, device
        self.actor = build_actor(config, device)
        self.critic = build_critic(self.actor, config, device)
        self._is_last = parallel_state.is_pipeline_last_stage()
        self._run = get_forward_backward_func()
        # Building drew as many numbers as this stage has layers; from here on all ranks draw alike.
        random.seed(settings.seed)
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)

    @property
    def models(self) -> tuple[Trained, Trained]:
        """Actor, critic."""
        return self.actor, self.critic

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the training state, by reference, in a fixed order."""
        return [tensor for trained in self.models for tensor in trained.tensors()]

    def roll_out(self, prompts: Prompts) -> Responses:
        """Sample a response to each prompt. Empty except on the last pipeline stage."""
        seeds = self._sample_seeds(prompts.sample)
        tokens = torch.tensor(prompts.tokens, device=self._device)
        for position in range(self.settings.response_length):
            tokens = torch.cat([tokens, self._next_tokens(tokens, seeds, position)], dim=1)
        log_probs = self._forward(self.actor, tokens, lambda output, _batch: -self._of_response(output), labelled=True)
        values = self._forward(self.critic, tokens, lambda output, _batch: self._of_response(output.squeeze(-1)))
        if not self._is_last:
            return Responses([], [], [], [], [])
        return Responses(
            sample=list(prompts.sample),
            dp=[self.place.dp] * len(prompts.sample),
            tokens=tokens[:, self.settings.prompt_length :].tolist(),
            log_probs=torch.cat(log_probs).tolist(),
            values=torch.cat(values).tolist(),
        )

    def update(self, batch: Experience) -> UpdateRows:
        """One optimizer step of both models on one mini-batch. Raises NumericsSuspect."""
        fields = ("log_probs", "values", "advantages", "returns")
        parts = {name: torch.tensor(getattr(batch, name), dtype=torch.float32) for name in fields}
        tokens = torch.tensor(batch.tokens)
        actor = self._train(self.actor, tokens, parts, self._actor_loss, sums=2, labelled=True)
        critic = self._train(self.critic, tokens, parts, self._value_loss, sums=1)
        return UpdateRows(
            dp=[self.place.dp],
            samples=[list(batch.sample)],
            actor_loss=[actor.sums[0]],
            value_loss=[critic.sums[0]],
            clipped=[round(actor.sums[1])],
            actor_norm=[actor.norm],
            critic_norm=[critic.norm],
        )

    def _sample_seeds(self, samples: Sequence[int]) -> list[int]:
        """One seed for each of my samples. Every rank draws those of the whole global batch
        from its random state, so that all states stay equal and none depends on the mesh."""
        count = self.settings.global_batch
        drawn = torch.randint(2**SEED_BITS, (count,)).tolist()
        return [drawn[sample % count] for sample in samples]

    def _next_tokens(self, tokens: torch.Tensor, seeds: Sequence[int], position: int) -> torch.Tensor:
        """[samples, 1]: one byte for each sample, drawn on the last stage, known on all."""

        def logits(output: torch.Tensor, _batch: Batch) -> torch.Tensor:
            return tensor_parallel.gather_from_tensor_model_parallel_region(output[:, tokens.shape[1] - 1])

        found = self._forward(self.actor, tokens, logits)
        drawn = torch.zeros(len(seeds), 1, dtype=torch.long, device=self._device)
        if self._is_last:
            # Gumbel's way: the largest of logit + noise is a draw from the softmax.
            noise = torch.stack([_noise(seed, position, found[0].shape[-1]) for seed in seeds]).to(self._device)
            drawn = (torch.cat(found).double() + noise).argmax(dim=-1, keepdim=True)
        group = parallel_state.get_pipeline_model_parallel_group()
        dist.broadcast(drawn, parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
        return drawn

    def _forward(
        self, trained: Trained, tokens: torch.Tensor, head: Head, *, labelled: bool = False
    ) -> list[torch.Tensor]:
        """What `head` keeps of each micro-batch; nothing except on the last stage."""

        def step(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
            batch = next(batches)
            output = model(batch["inputs"], batch["positions"], None, labels=batch.get("labels"))
            return output, lambda result, non_loss_data: head(result, batch)

        with torch.no_grad():
            kept: list[torch.Tensor] = self._run(
                forward_step_func=step,
                data_iterator=self._micro_batches(tokens, {}, labelled=labelled),
                model=trained.model,
                num_microbatches=len(tokens) // self.settings.micro_batch,
                seq_length=self.settings.sequence_length,
                micro_batch_size=self.settings.micro_batch,
                forward_only=True,
                collect_non_loss_data=True,
            )
        return kept

    def _train(
        self,
        trained: Trained,
        tokens: torch.Tensor,
        parts: dict[str, torch.Tensor],
        loss: Loss,
        *,
        sums: int,
        labelled: bool = False,
    ) -> _Outcome:
        def step(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
            batch = next(batches)
            output = model(batch["inputs"], batch["positions"], None, labels=batch.get("labels"))

            def result(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
                total, told = loss(self._of_response(output), batch)
                return total, torch.tensor(batch["returns"].numel(), dtype=torch.int, device=output.device), told

            return output, result

        trained.model.zero_grad_buffer()
        trained.optimizer.zero_grad()
        told = self._run(
            forward_step_func=step,
            data_iterator=self._micro_batches(tokens, parts, labelled=labelled),
            model=trained.model,
            num_microbatches=len(tokens) // self.settings.micro_batch,
            seq_length=self.settings.sequence_length,
            micro_batch_size=self.settings.micro_batch,
            forward_only=False,
        )
        bytes_here = torch.tensor(len(tokens) * self.settings.response_length, dtype=torch.int, device=self._device)
        finalize_model_grads([trained.model], bytes_here)
        fine, norm, _zeros = trained.optimizer.step()
        if not fine or norm is None or norm != norm:
            raise NumericsSuspect(f"{trained.name}: the gradient of this mini-batch is not finite (norm {norm})")
        trained.schedule.step(increment=1)
        return _Outcome(torch.stack(told).sum(dim=0).tolist() if told else [0.0] * sums, float(norm))

    def _actor_loss(self, losses: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Clipped surrogate. `losses`: [micro_batch, response_length] negative log-probabilities."""
        ratio = torch.exp(-losses - batch["log_probs"])
        low, high = 1.0 - self.settings.clip_ratio, 1.0 + self.settings.clip_ratio
        gain = torch.minimum(ratio * batch["advantages"], ratio.clamp(low, high) * batch["advantages"])
        clipped = ((ratio < low) | (ratio > high)).sum()
        total = -gain.sum()
        return total, torch.stack([total.detach(), clipped.float()])

    def _value_loss(self, output: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared error, of the value or of the value held near the old one, whichever is worse."""
        values, old, reach = output.squeeze(-1), batch["values"], self.settings.value_clip
        near = old + (values - old).clamp(-reach, reach)
        total = 0.5 * torch.maximum((values - batch["returns"]) ** 2, (near - batch["returns"]) ** 2).sum()
        return total, total.detach().reshape(1)

    def _of_response(self, output: torch.Tensor) -> torch.Tensor:
        """The positions that predict response bytes."""
        return output[:, self.settings.prompt_length - 1 :]

    def _micro_batches(
        self, tokens: torch.Tensor, parts: dict[str, torch.Tensor], *, labelled: bool
    ) -> Iterator[Batch]:
        """Cut by `micro_batch`. Inputs are filled up with zeros to the full length: attention
        is causal, so what comes later changes nothing before it."""
        size, length = self.settings.micro_batch, self.settings.sequence_length
        positions = torch.arange(length, device=self._device).unsqueeze(0).expand(size, -1).contiguous()
        for first in range(0, len(tokens), size):
            rows = tokens[first : first + size].to(self._device)
            inputs = torch.zeros(size, length, dtype=torch.long, device=self._device)
            known = rows[:, :length]
            inputs[:, : known.shape[1]] = known
            batch = {"inputs": inputs, "positions": positions}
            if labelled:
                batch["labels"] = rows[:, 1:].contiguous()
            yield batch | {name: part[first : first + size].to(self._device) for name, part in parts.items()}


def _noise(seed: int, position: int, size: int) -> torch.Tensor:
    """[size] Gumbel noise of one byte of one sample, drawn on the CPU whatever the device."""
    generator = torch.Generator().manual_seed(seed + position)
    uniform = torch.rand(size, dtype=torch.float64, generator=generator).clamp_min(torch.finfo(torch.float64).tiny)
    return -torch.log(-torch.log(uniform))
