"""A Megatron-core GPT loop of somebody's own, with the five lines of `trainer.hooks`.

Two pipeline stages on gloo or NCCL. As a job: `entrypoint: ["python",
"examples/megatron_loop.py", "--steps", "200"]`. It runs by itself too, without an agent:
`torchrun --nproc-per-node 2 examples/megatron_loop.py --steps 20`. Lines that are there for
Holdfast are marked with (n); all others are an ordinary loop.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from trainer import device, hooks
from trainer.data import Corpus, load_corpus

device.prepare_import()  # Lets Megatron run without CUDA; does nothing on a GPU machine.

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

LENGTH, BATCH, MICRO_BATCHES, VOCABULARY = 32, 2, 4, 256


def build(stages: int) -> GPTModel:
    """This rank's stage."""
    config = TransformerConfig(
        num_layers=2 * stages,
        hidden_size=32,
        num_attention_heads=2,
        pipeline_model_parallel_size=stages,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
    )


def forward(batches: Iterator[torch.Tensor], model: GPTModel) -> tuple[torch.Tensor, Callable]:
    """One micro-batch: [BATCH, LENGTH + 1] tokens to the mean loss."""
    tokens = next(batches)
    positions = torch.arange(LENGTH, device=tokens.device).expand(BATCH, -1)
    output = model(tokens[:, :-1].contiguous(), positions, None, labels=tokens[:, 1:].contiguous())
    return output, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})


def train(step: int, model: GPTModel, optimizer: torch.optim.Optimizer, corpus: Corpus) -> float | None:
    """One optimizer step; the mean loss on the last stage, None elsewhere."""
    first = step * BATCH * MICRO_BATCHES
    numbers = torch.arange(first, first + BATCH * MICRO_BATCHES).view(MICRO_BATCHES, BATCH).tolist()
    where = next(model.parameters()).device
    batches = (torch.stack([torch.from_numpy(corpus.sample(n)) for n in row]).to(where) for row in numbers)
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=batches,
        model=model,
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
    return sum(float(part["loss"]) for part in losses) / MICRO_BATCHES if losses else None


def save(folder: Path, model: GPTModel, optimizer: torch.optim.Optimizer) -> None:
    """Every rank its part; all of them are on the disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"rank_{dist.get_rank()}.pt")
    dist.barrier()


def load(folder: Path, model: GPTModel, optimizer: torch.optim.Optimizer) -> None:
    """What `save` wrote."""
    state = torch.load(folder / f"rank_{dist.get_rank()}.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def main() -> int:
    """Train; returns the exit code."""
    parser = argparse.ArgumentParser(description="A GPT on the shipped text.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    parser.add_argument("--pause-s", type=float, default=0.0, help="added to each step, to watch it")
    options = parser.parse_args()
    run = hooks.start()  # (1)
    with run.section("setup"):  # (2)
        where = device.activate(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(device.backend())
        parallel_state.initialize_model_parallel(1, dist.get_world_size(), create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(1234, inference_rng_tracker=True, force_reset_rng=True)
        torch.manual_seed(1234)
        model = build(dist.get_world_size()).to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        corpus = load_corpus(None, sequence_length=LENGTH, seed=1, vocab_size=VOCABULARY)
        if run.resume:
            load(Path(run.resume.path), model, optimizer)
    for step in range(run.resume.step if run.resume else 0, options.steps):
        with run.step(step) as said:  # (3)
            said.report(loss=train(step, model, optimizer, corpus), tokens=LENGTH * BATCH * MICRO_BATCHES)
            time.sleep(options.pause_s)
        wanted = run.wanted()  # (4)
        if wanted.save:
            path = run.checkpoint_path(step + 1) or options.out / f"step_{step + 1}"
            with run.saving(path, step=step + 1):
                save(path, model, optimizer)
        if wanted.leave:
            break
    return run.finish()  # (5)


if __name__ == "__main__":
    sys.exit(main())
