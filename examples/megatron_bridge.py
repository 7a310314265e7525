"""A tiny GPT under Megatron-Bridge's own `pretrain`, with Holdfast's callback.

As a job: `entrypoint: ["python", "examples/megatron_bridge.py"]`, which saves in the job's directory.
It runs by itself too, without an agent: `torchrun --nproc-per-node 2
examples/megatron_bridge.py --save /tmp/run1`. Lines that are there for Holdfast are marked
with (n); all others are an ordinary program. It needs Megatron-Bridge, which is none of
Holdfast's dependencies: docs/hooks.md says with which versions it ran.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.train import save_checkpoint_and_time

from trainer.hooks.bridge import HoldfastCallback

LENGTH = 32


def configure(options: argparse.Namespace) -> ConfigContainer:
    """Two layers a stage, mock data, checkpoints in torch_dist."""
    return ConfigContainer(
        model=GPTModelProvider(
            num_layers=2 * options.stages,
            hidden_size=32,
            ffn_hidden_size=64,
            num_attention_heads=2,
            seq_length=LENGTH,
            pipeline_model_parallel_size=options.stages,
            pipeline_dtype=torch.float32,
            transformer_layer_spec=local_layer_spec,
            gradient_accumulation_fusion=False,
            cross_entropy_loss_fusion=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        train=TrainingConfig(
            micro_batch_size=2,
            global_batch_size=8,
            train_iters=options.steps,
            eval_interval=options.eval_interval,
            eval_iters=2,
            exit_signal_handler=True,  # (1) Bridge saves and exits on SIGTERM.
        ),
        optimizer=OptimizerConfig(optimizer="adam", lr=1e-3, min_lr=1e-4, use_distributed_optimizer=False),
        scheduler=SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            start_weight_decay=0.01,
            end_weight_decay=0.01,
            override_opt_param_scheduler=True,  # A later life may be given more steps.
        ),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=False),
        dist=DistributedInitConfig(
            distributed_backend="nccl" if torch.cuda.device_count() else "gloo",
            # A job's rank sees its own device alone.
            external_gpu_device_mapping=torch.cuda.device_count() == 1,
        ),
        dataset=MockGPTDatasetConfig(
            seq_length=LENGTH,
            random_seed=1234,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            dataloader_type="single",
            num_workers=options.workers,
        ),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=255),
        logger=LoggerConfig(log_interval=1),
        checkpoint=CheckpointConfig(
            save=str(options.save), save_interval=options.save_interval, async_save=options.async_save
        ),
    )


def save(context: Any) -> None:  # (2) On order, between two steps.
    """As Bridge saves by itself, its parameter gathering and timers included."""
    done = context.state.train_state.floating_point_operations_so_far
    save_checkpoint_and_time(context.state, context.model, context.optimizer, context.scheduler, done, {})


def main() -> None:
    """Parse, configure, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--save-interval", type=int, default=1000)
    parser.add_argument("--eval-interval", type=int, default=1000)
    parser.add_argument("--async-save", action="store_true")
    options = parser.parse_args()
    with HoldfastCallback(save=save) as holdfast:  # (3)
        config = configure(options)
        if holdfast.run.checkpoint_dir:  # (4)
            config.checkpoint.save = str(holdfast.run.checkpoint_dir)
        if holdfast.run.resume:
            config.checkpoint.load = str(Path(holdfast.run.resume.path).parent)
            config.checkpoint.ckpt_step = holdfast.run.resume.step
        pretrain(config, forward_step, callbacks=[holdfast])  # (5)


if __name__ == "__main__":
    main()
