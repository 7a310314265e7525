"""The variables by which launchers tell a process its place in a world.

Our own worlds meet at a store and are named by their generation, so they need none of
these; code that a rank calls may read them all the same, and one that is left from an
older world would send it to a dead address. Every entry into a world writes them anew.
"""

from collections.abc import MutableMapping

import torch

from trainer import device

STALE = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def renew_rendezvous(environment: MutableMapping[str, str], *, rank: int, world_size: int, store: str) -> None:
    """Clear what an older world left, then tell of the new one. Each process sees one
    device, so it is always local rank 0 of 1. `store` is host:port."""
    for name in STALE:
        environment.pop(name, None)
    host, _, port = store.rpartition(":")
    environment.update(
        MASTER_ADDR=host.strip("[]"),
        MASTER_PORT=port,
        WORLD_SIZE=str(world_size),
        RANK=str(rank),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
    )


def isolate_device(environment: MutableMapping[str, str], number: int) -> None:
    """Let process `number` see one device alone, before it touches CUDA. Nothing on the CPU."""
    if device.has_cuda():
        environment[VISIBLE_DEVICES] = str(number % max(1, torch.cuda.device_count()))
