"""Starting processes that outlive the agent: rank hosts and entrypoint ranks.

Each gets its own session (so that it dies by its own group alone), a log file opened for
appending, no stdin, and a clean environment: the few variables of the agent's that every
program needs (`INHERITED`), who its user is, and what its job's spec names. Where the agent is
root the process becomes its job's user before the job's program begins (`agents.ranks.become`).
"""

import hashlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from agents.core.state import Identity
from agents.errors import LaunchError
from agents.ranks.identity import read_stat
from agents.ranks.users import RunAs
from controlplane.protocol.launch import LISTENING_PORTS, RankRef, ReplicaLaunch

INHERITED = frozenset(
    {
        "PATH", "LANG", "LANGUAGE", "TZ", "HOSTNAME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "PYTHONUNBUFFERED", "PYTHONPATH", "HOLDFAST_TRAINER_NICE", "HOLDFAST_STAGING_DIR", "HOLDFAST_OUTER_BACKEND",
    }
)  # fmt: skip
INHERITED_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "MKL_", "OPENBLAS_", "TORCH_NCCL_",
    "PYTORCH_", "TRITON_",
)  # fmt: skip
"""Of the agent's own environment; the rest, with whatever secrets are in it, stays here."""
CHECKOUT = Path(__file__).resolve().parents[2]
BECOME = Path(__file__).with_name("become.py")
_BECOME_TIMEOUT_S = 20.0
SHARED_UMASK = 0o022
_MAX_PROBES = 64
_MAX_REMEMBERED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """As whom and within what a process of a job starts. `user` None: as the agent's own; `home`
    where that user has none; `inherit`: variables of the agent's that the node's policy passes
    on; `cgroups` (): the agent's own; `open_files` None: the agent's own limit."""

    user: RunAs | None = None
    home: str = ""
    inherit: tuple[str, ...] = ()
    cgroups: tuple[Path, ...] = ()
    open_files: int | None = None


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


def clean_environment(inherited: Mapping[str, str], standing: Standing) -> dict[str, str]:
    """What every process of a job starts with, before its own variables. `inherited` is the
    agent's environment; of a user's own there is its name and its home."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES) or name in standing.inherit
    }
    if (CHECKOUT / "pyproject.toml").exists():
        # The trainer and its hooks are no installed package here.
        kept.setdefault("PYTHONPATH", str(CHECKOUT))
    user = standing.user
    if user is None:
        own = {name: inherited[name] for name in ("HOME", "USER", "LOGNAME", "SHELL") if name in inherited}
        return kept | own
    return kept | {"HOME": user.home or standing.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}


def spawn_detached(argv: Sequence[str], *, extra: Mapping[str, str], log: int, standing: Standing) -> Identity:
    """Start a process in its own session, writing to the descriptor `log`; its identity. Raises
    LaunchError with the reason."""
    environment = clean_environment(os.environ, standing) | dict(extra)
    try:
        process = start(argv, environment, standing, stdout=log, stderr=log)
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot start {argv[0]}: {error}") from error
    # Reaped through its pidfd by the watcher; Popen must not do it too.
    process.returncode = 0
    stat = read_stat(process.pid)
    if stat is None:
        raise LaunchError(f"{argv[0]} exited before it could be inspected")
    return Identity(process.pid, stat.start_time_ticks)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    standing: Standing,
    *,
    stdout: int,
    stderr: int,
    cwd: str | None = None,
) -> "subprocess.Popen[bytes]":
    """The process, as its user and in its session, once its program has begun. Raises OSError,
    ValueError, LaunchError."""
    if standing.user is None and not standing.cgroups and standing.open_files is None:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
    order = os.memfd_create("order")
    ours, theirs = os.pipe()
    try:
        with os.fdopen(os.dup(order), "wb") as file:
            file.write(json.dumps(_order(argv, environment, standing)).encode())
        os.lseek(order, 0, os.SEEK_SET)
        process = subprocess.Popen(
            # Nothing of the job's own is in sight before its rights are those of its user: no
            # variable of its, and no directory of its to import from.
            [sys.executable, "-I", "-S", str(BECOME), str(order), str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=_for_become(os.environ),
            cwd=cwd,
            start_new_session=True,
            pass_fds=(order, theirs),
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(order)
        os.close(theirs)
    with os.fdopen(ours, "rb") as report:
        ready, _, _ = select.select([report], [], [], _BECOME_TIMEOUT_S)
        said = report.read().decode("utf-8", "replace") if ready else "it did not begin in time"
    if not said:
        return process
    process.kill()
    process.wait()
    who = f" as user {standing.user.name}" if standing.user else ""
    raise LaunchError(f"cannot start {argv[0]}{who}: {said}")


def _for_become(inherited: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter that is linked to libraries of its own needs to begin."""
    return {name: value for name, value in inherited.items() if name == "LD_LIBRARY_PATH"}


def _order(argv: Sequence[str], environment: Mapping[str, str], standing: Standing) -> dict[str, object]:
    user = standing.user
    return {
        "argv": list(argv),
        "env": dict(environment),
        "cgroups": [str(group) for group in standing.cgroups],
        "open_files": standing.open_files,
        "uid": user.uid if user else None,
        "gid": user.gid if user else None,
        "groups": list(user.groups) if user else [],
        # The agent's own user keeps nothing from itself; the server reads what its ranks save.
        "umask": user.umask if user else SHARED_UMASK,
    }
