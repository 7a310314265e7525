"""Starting processes that outlive the agent: rank hosts and entrypoint ranks.

Each gets its own session (so that it dies by its own group alone), a log file opened for
appending, no stdin, and an environment without the agent's own settings.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from agents.core.state import Identity
from agents.errors import LaunchError
from agents.ranks.identity import read_stat
from controlplane.protocol.launch import RankRef, ReplicaLaunch

_OWN_PREFIX = "HOLDFAST_AGENT_"


def host_argv(module: str, socket_path: Path, job_id: str) -> tuple[str, ...]:
    """The rank host's command line."""
    return (sys.executable, "-m", module, "--socket", str(socket_path), "--job-id", job_id)


def rank_ref_text(ref: RankRef) -> str:
    """The value of HOLDFAST_REF: the ref as JSON."""
    return msgspec.json.encode(ref).decode()


def rank_environment(ref: RankRef, launch: ReplicaLaunch, device_index: int, agent_socket: str) -> dict[str, str]:
    """What an entrypoint rank finds in its environment beyond the node's own.

    LOCAL_RANK is the device index, as launchers that give each rank all devices do.
    """
    return {
        **launch.env,
        "RANK": str(ref.rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(device_index),
        "HOLDFAST_SOCKET": agent_socket,
        "HOLDFAST_REF": rank_ref_text(ref),
        "HOLDFAST_CONFIG": msgspec.json.encode(launch.config).decode(),
    }


def spawn_detached(argv: Sequence[str], *, extra: Mapping[str, str], log_path: Path) -> Identity:
    """Start a process in its own session; its identity. Raises LaunchError with the reason."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_OWN_PREFIX)}
    environment.update(extra)
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(log_path, "ab") as log:
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
