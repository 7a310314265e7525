"""A rank's whole configuration, validated. The only file that reads the environment.

A forked rank gets its `ForkRank` from the host; a spawned one (GPU host that already
holds a CUDA context) finds the same message in `HOLDFAST_FORK_RANK`. A program of the job's
own finds its agent by `HOLDFAST_SOCKET` (`trainer.hooks`).
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.layout_checks import layout_faults
from controlplane.protocol.rank import ForkRank
from controlplane.protocol.spec import ranks_per_replica
from trainer.errors import ConfigInvalid

FORK_RANK_VARIABLE = "HOLDFAST_FORK_RANK"
SOCKET_VARIABLE = "HOLDFAST_SOCKET"
REF_VARIABLE = "HOLDFAST_REF"
CONFIG_VARIABLE = "HOLDFAST_CONFIG"
WORLD_SIZE_VARIABLE = "WORLD_SIZE"
NICE_VARIABLE = "HOLDFAST_TRAINER_NICE"
STAGING_VARIABLE = "HOLDFAST_STAGING_DIR"
NODE_VARIABLE = "HOLDFAST_NODE"
OUTER_BACKEND_VARIABLE = "HOLDFAST_OUTER_BACKEND"
OUTER_BACKENDS = ("nccl", "gloo")
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


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent tells a program of the job's own (`entrypoint`) in its environment.
    `world_size` is the ranks of the program's one world."""

    ref: RankRef
    agent_socket: str
    config: TrainerConfig
    world_size: int


def has_agent() -> bool:
    """An agent started this process."""
    return SOCKET_VARIABLE in os.environ


def hook_settings(environment: Mapping[str, str] = os.environ) -> HookSettings | None:
    """None: no agent started this process. Raises ConfigInvalid when what it set is malformed."""
    path = environment.get(SOCKET_VARIABLE)
    if not path:
        return None
    try:
        return HookSettings(
            ref=msgspec.json.decode(environment.get(REF_VARIABLE, ""), type=RankRef),
            agent_socket=path,
            config=msgspec.json.decode(environment.get(CONFIG_VARIABLE, ""), type=TrainerConfig),
            world_size=int(environment.get(WORLD_SIZE_VARIABLE, "1")),
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigInvalid(
            f"{REF_VARIABLE}, {CONFIG_VARIABLE} or {WORLD_SIZE_VARIABLE} is malformed: {error}"
        ) from error


def niceness(environment: Mapping[str, str] = os.environ) -> int:
    """How much ranks step back for others on a host whose cores they share with the control
    plane (HOLDFAST_TRAINER_NICE, 0..19; 0 where it is not set). Raises ConfigInvalid."""
    text = environment.get(NICE_VARIABLE, "0")
    if not text.isdecimal() or int(text) > MAX_NICE:
        raise ConfigInvalid(f"{NICE_VARIABLE} is {text!r}, not a number from 0 to {MAX_NICE}")
    return int(text)


def staging_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where checkpoints of an object store lie on their way there and back: this user's own folder
    in HOLDFAST_STAGING_DIR, or in the machine's temporary directory where that is not set."""
    return Path(environment.get(STAGING_VARIABLE) or tempfile.gettempdir()) / f"holdfast-{os.getuid()}"


def outer_backend(environment: Mapping[str, str] = os.environ) -> str | None:
    """What replicas exchange gradients by (HOLDFAST_OUTER_BACKEND): nccl, or gloo where replicas
    share a GPU, which NCCL refuses. None: what fits the device. Raises ConfigInvalid."""
    text = environment.get(OUTER_BACKEND_VARIABLE)
    if text is not None and text not in OUTER_BACKENDS:
        raise ConfigInvalid(f"{OUTER_BACKEND_VARIABLE} is {text!r}, not one of {', '.join(OUTER_BACKENDS)}")
    return text


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """The node's id, from the agent (HOLDFAST_NODE); the host's name where there is none."""
    return environment.get(NODE_VARIABLE) or os.uname().nodename


def check(config: TrainerConfig, world_size: int) -> None:
    """Everything that would otherwise fail deep inside Megatron, layouts by the rules that
    submit goes by. Raises ConfigInvalid."""
    layout, model, training = config.parallelism, config.model, config.training
    ranks = ranks_per_replica(layout)
    faults = [
        (world_size != ranks, f"world_size {world_size} is not tp x pp x cp x replica_dp = {ranks}"),
        (model.vocab_size < MIN_VOCABULARY, f"model.vocab_size must be at least {MIN_VOCABULARY} (tokens are bytes)"),
        (training.steps < 1, "training.steps must be at least 1"),
        (not 0 <= training.warmup_steps < training.steps, "training.warmup_steps must be less than steps"),
        (config.replicas < 1, "replicas must be at least 1"),
        (":" not in config.store, f"store {config.store!r} is not host:port"),
        (not config.checkpoint_dir, "checkpoint_dir is empty"),
    ]
    found = [text for wrong, text in faults if wrong]
    for fault in layout_faults(layout, model, training, built_in=True):
        found.append(f"{fault.pointer.removeprefix('/spec/').replace('/', '.')}: {fault.message}; {fault.fix}")
    if found:
        raise ConfigInvalid("; ".join(found))


def store_address(config: TrainerConfig) -> tuple[str, int]:
    """(host, port) of the rendezvous store. Raises ConfigInvalid."""
    host, _, port = config.store.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigInvalid(f"store {config.store!r} is not host:port")
    return host.strip("[]"), int(port)
