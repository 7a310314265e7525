"""A rank's whole configuration, validated. The only file that reads the environment.

A forked rank gets its `ForkRank` from the host; a spawned one (GPU host that already
holds a CUDA context) finds the same message in `HOLDFAST_FORK_RANK`.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import ForkRank
from trainer.errors import ConfigInvalid

FORK_RANK_VARIABLE = "HOLDFAST_FORK_RANK"
NICE_VARIABLE = "HOLDFAST_TRAINER_NICE"
STAGING_VARIABLE = "HOLDFAST_STAGING_DIR"
NODE_VARIABLE = "HOLDFAST_NODE"
MAX_NICE = 19
MIN_VOCABULARY = 256


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who this process is and what it trains."""

    ref: RankRef
    world_size: int
    device_index: int
    agent_socket: str
    config: TrainerConfig

    @property
    def micro_batch_count(self) -> int:
        """Micro-batches of one global batch."""
        return self.config.training.global_batch // self.config.training.micro_batch

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens whose loss counts in one micro-batch."""
        return self.config.training.micro_batch * self.config.model.sequence_length


def from_fork(order: ForkRank) -> RankSettings:
    """Raises ConfigInvalid."""
    check(order.config, order.world_size)
    return RankSettings(
        ref=order.ref,
        world_size=order.world_size,
        device_index=order.device_index,
        agent_socket=order.agent_socket,
        config=order.config,
    )


def fork_from_environment(environment: Mapping[str, str] = os.environ) -> ForkRank:
    """The order of a spawned rank. Raises ConfigInvalid when it is absent or malformed."""
    text = environment.get(FORK_RANK_VARIABLE)
    if text is None:
        raise ConfigInvalid(f"{FORK_RANK_VARIABLE} is not set; ranks are started by a rank host")
    try:
        return msgspec.json.decode(text, type=ForkRank)
    except msgspec.DecodeError as error:
        raise ConfigInvalid(f"{FORK_RANK_VARIABLE}: {error}") from error


def niceness(environment: Mapping[str, str] = os.environ) -> int:
    """How much ranks step back for others on a host whose cores they share with the control
    plane (HOLDFAST_TRAINER_NICE, 0..19; 0 where it is not set). Raises ConfigInvalid."""
    text = environment.get(NICE_VARIABLE, "0")
    if not text.isdecimal() or int(text) > MAX_NICE:
        raise ConfigInvalid(f"{NICE_VARIABLE} is {text!r}, not a number from 0 to {MAX_NICE}")
    return int(text)


def staging_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where checkpoints of an object store lie on their way there and back
    (HOLDFAST_STAGING_DIR; the machine's temporary directory where it is not set)."""
    return Path(environment.get(STAGING_VARIABLE) or Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}")


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """The node's id, from the agent (HOLDFAST_NODE); the host's name where there is none."""
    return environment.get(NODE_VARIABLE) or os.uname().nodename


def check(config: TrainerConfig, world_size: int) -> None:
    """Everything that would otherwise fail deep inside Megatron. Raises ConfigInvalid."""
    layout, model, training = config.parallelism, config.model, config.training
    faults = [
        (layout.cp != 1 or layout.ep != 1, "parallelism.cp and .ep must be 1 for the built-in trainer"),
        (world_size != layout.tp * layout.pp, f"world_size {world_size} is not tp*pp = {layout.tp * layout.pp}"),
        (model.layers % layout.pp != 0, f"model.layers {model.layers} must divide by pp {layout.pp}"),
        (model.heads % layout.tp != 0, f"model.heads {model.heads} must divide by tp {layout.tp}"),
        (model.hidden % model.heads != 0, f"model.hidden {model.hidden} must divide by heads {model.heads}"),
        ((model.kv_heads or model.heads) % layout.tp != 0, f"model.kv_heads must divide by tp {layout.tp}"),
        (model.vocab_size < MIN_VOCABULARY, f"model.vocab_size must be at least {MIN_VOCABULARY} (tokens are bytes)"),
        (model.vocab_size % layout.tp != 0, f"model.vocab_size must divide by tp {layout.tp}"),
        (training.global_batch % training.micro_batch != 0, "training.global_batch must divide by micro_batch"),
        (training.steps < 1, "training.steps must be at least 1"),
        (not 0 <= training.warmup_steps < training.steps, "training.warmup_steps must be less than steps"),
        (config.replicas < 1, "replicas must be at least 1"),
        (":" not in config.store, f"store {config.store!r} is not host:port"),
        (not config.checkpoint_dir, "checkpoint_dir is empty"),
    ]
    found = [text for wrong, text in faults if wrong]
    if found:
        raise ConfigInvalid("; ".join(found))


def store_address(config: TrainerConfig) -> tuple[str, int]:
    """(host, port) of the rendezvous store. Raises ConfigInvalid."""
    host, _, port = config.store.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigInvalid(f"store {config.store!r} is not host:port")
    return host.strip("[]"), int(port)
