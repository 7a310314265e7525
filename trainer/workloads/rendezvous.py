"""Into a world and out of one: the variables that tell of it, the connections that made it.

Launchers tell a process its place in a world by variables.

Our own worlds meet at a store and are named by their generation, so they need none of
these; code that a rank calls may read them all the same, and one that is left from an
older world would send it to a dead address. Every entry into a world writes them anew.
"""

import signal
import threading
from collections.abc import Mapping, MutableMapping

import torch

from trainer import device
from trainer.replica.sockets import connections, shut_down
from trainer.workloads.pool import WAKE

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


def rendezvous(environment: Mapping[str, str]) -> dict[str, str]:
    """What code that is called here would find."""
    return {name: environment[name] for name in STALE if name in environment}


def isolate_device(environment: MutableMapping[str, str], number: int) -> None:
    """Let process `number` see one device alone, before it touches CUDA. Nothing on the CPU."""
    if device.has_cuda():
        environment[VISIBLE_DEVICES] = str(number % max(1, torch.cuda.device_count()))


def hang_up() -> int:
    """Shut every TCP connection of this process, returns how many. For a world that has lost
    a rank: some gloo groups outlive their last reference (torch 2.13) with their sockets
    open, and a peer further round the ring would wait for them until its timeout."""
    return sum(shut_down(descriptor, name) for descriptor, name in connections().items())


def hang_up_when_woken() -> None:
    """From now on WAKE makes a thread of this process hang up, whatever the main thread waits
    for. Sent by who knows that a rank is dead to those who may be waiting for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {WAKE})
    threading.Thread(target=_wait_for_wakes, name="wake", daemon=True).start()


def _wait_for_wakes() -> None:
    while True:
        signal.sigwait({WAKE})
        hang_up()
