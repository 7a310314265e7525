"""Starting processes that outlive the agent: rank hosts and entrypoint ranks.

Each gets its own session (so that it dies by its own group alone), a log file opened for
appending, no stdin, and an environment without the agent's own settings and without what
another launcher may have left in it: a stale rendezvous sends a rank to the wrong world.
"""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from agents.core.state import Identity
from agents.errors import LaunchError
from agents.ranks.identity import read_stat
from agents.ranks.logs import open_log
from controlplane.protocol.launch import LISTENING_PORTS, RankRef, ReplicaLaunch

_OWN_PREFIXES = ("HOLDFAST_AGENT_", "TORCHELASTIC_", "PET_")
_STALE = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
        "HOLDFAST_SOCKET", "HOLDFAST_REF", "HOLDFAST_CONFIG", "HOLDFAST_FORK_RANK",
    }
)  # fmt: skip
_MAX_PROBES = 64
_MAX_REMEMBERED = 1024


def host_argv(module: str, socket_path: Path, job_id: str) -> tuple[str, ...]:
    """The rank host's command line."""
    return (sys.executable, "-m", module, "--socket", str(socket_path), "--job-id", job_id)


def rank_ref_text(ref: RankRef) -> str:
    """The value of HOLDFAST_REF: the ref as JSON."""
    return msgspec.json.encode(ref).decode()


def rank_environment(ref: RankRef, launch: ReplicaLaunch, device_index: int, agent_socket: str) -> dict[str, str]:
    """What an entrypoint rank finds in its environment beyond the node's own.

    RANK and WORLD_SIZE are of the replica, which is one world; its ranks meet at MASTER_ADDR
    and MASTER_PORT, new for each incarnation. A rank sees its own device alone, so LOCAL_RANK
    is 0; where the job's env sets CUDA_VISIBLE_DEVICES it sees those, and LOCAL_RANK is the
    device index.
    """
    host, port = meeting_point(launch)
    shared = "CUDA_VISIBLE_DEVICES" in launch.env
    alone = {"CUDA_VISIBLE_DEVICES": str(device_index), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "LOCAL_WORLD_SIZE": "1"}
    return {
        **({} if shared else alone),
        **launch.env,
        "RANK": str(ref.rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(device_index) if shared else "0",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "HOLDFAST_SOCKET": agent_socket,
        "HOLDFAST_REF": rank_ref_text(ref),
        "HOLDFAST_CONFIG": msgspec.json.encode(launch.config).decode(),
    }


def meeting_point(launch: ReplicaLaunch) -> tuple[str, int]:
    """(host, port) where rank 0 of this incarnation listens.

    The port follows from the incarnation, so that the agents of several nodes name the same
    one without asking each other. Where all ranks are here, one that is taken is passed over.
    """
    slot = f"{launch.job_id}/{launch.attempt}/{launch.replica}/{launch.incarnation}"
    if launch.master_host:
        return launch.master_host, _port(slot, 0)
    return "127.0.0.1", _free_port(slot)


@lru_cache(maxsize=_MAX_REMEMBERED)
def _free_port(slot: str) -> int:
    """Remembered: rank 0 has taken it by the time the last rank asks."""
    for probe in range(_MAX_PROBES):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", _port(slot, probe)))
            except OSError:
                continue
            return _port(slot, probe)
    return _port(slot, 0)


def _port(slot: str, probe: int) -> int:
    digest = hashlib.blake2b(f"{slot}/{probe}".encode(), digest_size=8).digest()
    return LISTENING_PORTS[int.from_bytes(digest, "big") % len(LISTENING_PORTS)]


def clean_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without its own settings and without other launchers' variables."""
    return {
        name: value for name, value in inherited.items() if name not in _STALE and not name.startswith(_OWN_PREFIXES)
    }


def spawn_detached(argv: Sequence[str], *, extra: Mapping[str, str], log_path: Path) -> Identity:
    """Start a process in its own session; its identity. Raises LaunchError with the reason."""
    environment = clean_environment(os.environ) | extra
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open_log(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as log:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                close_fds=True,
            )
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot start {argv[0]}: {error}") from error
    # Reaped through its pidfd by the watcher; Popen must not do it too.
    process.returncode = 0
    stat = read_stat(process.pid)
    if stat is None:
        raise LaunchError(f"{argv[0]} was gone before it could be looked at")
    return Identity(process.pid, stat.start_time_ticks)
