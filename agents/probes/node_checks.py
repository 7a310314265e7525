"""Reads what the node's checks are judged by: drivers, storage, links, an external checker.

Called by the runtime, off its loop and with a deadline, because a dead file system blocks
whoever touches it. It writes one small file for a moment and changes nothing else; a job's own
interpreter is asked for its libraries (`probes.libraries`).

The external checker is a program of the operator's that listens on a unix stream socket: it
is sent one JSON line, `{"node": NAME}`, and answers one, `{"healthy": true|false, "reason":
TEXT}`. Where it cannot be reached, is late or answers something else, it is as if there
were none; only an explicit `false` counts.
"""

import errno
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from agents.core.health import NvLinks, Readings, Storage
from agents.core.policy import Policy, is_below
from agents.errors import LaunchError
from agents.probes.libraries import Interpreters, own_libraries
from agents.probes.programs import fault_of
from agents.ranks.files import acting_as, make_below
from agents.ranks.launch import Standing
from agents.ranks.users import group_of
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.samples import DeviceInfo

EXTERNAL_TIMEOUT_S = 3.0
NETWORK_CLASS = Path("/sys/class/net")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAX_ANSWER_BYTES = 64 * 1024


def read_node(
    *,
    name: str,
    devices: tuple[DeviceInfo, ...],
    paths: Iterable[str],
    interfaces: Iterable[str],
    checker: str,
    nvlinks: tuple[NvLinks, ...] = (),
    connected: frozenset[int] = frozenset(),
    nvswitch: str = "",
    network_class: Path = NETWORK_CLASS,
) -> Readings:
    """What holds for every launch. `checker`: path of its socket, "" for none; `nvlinks` and
    `connected` as the sampler last read them, for a driver that hangs must not be asked here;
    `nvswitch` as the kernel log tells (`probes.kernel_log`)."""
    return Readings(
        drivers=tuple(info.driver_version for info in devices),
        storages=tuple(read_storage(path) for path in paths),
        links=tuple((link, _text(network_class / link / "operstate")) for link in interfaces),
        nvlinks=nvlinks,
        connected=connected,
        external=ask_checker(checker, name) if checker else None,
        nvswitch=nvswitch,
    )


def read_launch(
    launch: ReplicaLaunch,
    devices: tuple[DeviceInfo, ...],
    interpreters: Interpreters,
    standing: Standing,
    *,
    policy: Policy,
    node_id: str = "",
) -> Readings:
    """What this launch needs besides: where it saves, and what it runs and with what. Its directories below
    a root of the node's policy are made here, for the job's user; the rest is done as that user.
    In a thread of its own."""
    wanted = [path for path in (launch.config.checkpoint_dir, _local(launch, node_id)) if os.path.isabs(path)]
    interpreter, libraries, program = "", own_libraries(), ""
    if launch.entrypoint is not None:
        program = fault_of(launch, standing)
        interpreter, libraries = interpreters.libraries_of(launch, standing) if not program else ("", ())
    return Readings(
        storages=tuple(_made(path, standing, policy) or _writable(path, standing) for path in wanted),
        libraries=libraries,
        interpreter=interpreter,
        program=program,
        cuda=any(info.driver == "nvml" for info in devices),
    )


def read_storage(path: str) -> Storage:
    """Write a file into `path`, or where it would be made, and see how much room is left. One
    that cannot be written for want of room has 0 bytes free."""
    place = Path(path)
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        trial = place / f".holdfast-check-{uuid.uuid4().hex}"
        try:
            trial.write_bytes(b"holdfast")
        finally:
            # A full disk takes the file's name and refuses what is in it.
            trial.unlink(missing_ok=True)
        room = os.statvfs(place)
    except OSError as error:
        full = error.errno in NO_ROOM
        return Storage(path=path, error=error.strerror or str(error), free_bytes=0 if full else None)
    return Storage(path=path, free_bytes=room.f_bavail * room.f_frsize)


def _local(launch: ReplicaLaunch, node_id: str) -> str:
    """Where this node keeps local checkpoints of the job, "" where it keeps none: on disks the
    job's own folder (`trainer.checkpoint.local.disk`), in memory one of its user's."""
    tier = launch.config.checkpoint.local
    if tier.dir is None or tier.medium == "memory" or not node_id:
        return tier.dir or ""
    return f"{tier.dir.rstrip('/')}/{node_id}/{launch.job_id}"


def _made(path: str, standing: Standing, policy: Policy) -> Storage | None:
    """See that the job's user has the directory; None: nothing stands in its way."""
    root = next((root for root in policy.checkpoint_roots if is_below(path, (root,))), None)
    if standing.user is None or root is None:
        return None
    try:
        make_below(root, path.rstrip("/"), standing.user, group=group_of(policy))
    except (OSError, LaunchError) as error:
        return Storage(path=path, error=getattr(error, "strerror", None) or str(error))
    return None


def _writable(path: str, standing: Standing) -> Storage:
    """A launch's own path, whose room is not asked for: a full one fails a save, which is told
    and tried again, and would fail the start on every node alike."""
    with acting_as(standing.user):
        found = read_storage(path)
    return Storage(path=path, error="" if found.free_bytes == 0 else found.error)


def ask_checker(path: str, node_name: str) -> tuple[bool, str] | None:
    """(healthy, reason); None where it gave no answer that can be understood."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            due_s = time.monotonic() + EXTERNAL_TIMEOUT_S
            connection.settimeout(EXTERNAL_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(json.dumps({"node": node_name}).encode() + b"\n")
            answer = json.loads(_line(connection, due_s))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("healthy"), bool):
        return None
    return answer["healthy"], str(answer.get("reason", ""))


def _line(connection: socket.socket, due_s: float) -> bytes:
    """What it says until it ends its line, or has said enough. Raises TimeoutError when that is
    not done by `due_s`: a socket's own timeout begins anew with each byte."""
    said = b""
    while b"\n" not in said and len(said) < _MAX_ANSWER_BYTES:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the checker is late")
        connection.settimeout(left_s)
        part = connection.recv(_MAX_ANSWER_BYTES - len(said))
        if not part:
            break
        said += part
    return said.partition(b"\n")[0]


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
