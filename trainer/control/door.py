"""The debug door: what a rank answers about itself while its training thread is stuck.

PyTorch's worker server runs on C++ threads, so it answers `ping`, `fr_trace_json`,
`dump_traceback` and `wait_counter_values` from a rank that is blocked in C++ or whose
interpreter is locked. It listens on a unix socket beside the agent's, in a directory only
the agent's user can enter, and on nothing else; the agent is its one client. Our own
handler `holdfast_profile` samples all Python threads, for which the interpreter must be
free. The process groups are written down beside the socket once they are built, because
gloo's Flight Recorder loses them. A rank trains on without a door when it cannot be opened.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from controlplane.protocol.flight import FlightGroup

FOLDER = "doors"
MAX_PROFILE_S = 10.0
SAMPLE_INTERVAL_S = 0.01
MAX_FRAMES = 40
MAX_LINES = 60

_open: list[Any] = []


def door_path(agent_socket: str, pid: int) -> Path:
    """Where the rank of `pid` listens; its groups stand in the same name with `.json`."""
    return Path(agent_socket).parent / FOLDER / f"{pid}.sock"


def open_door(agent_socket: str) -> bool:
    """Listen, until the process ends. False, and a line in the log, when that fails."""
    path = door_path(agent_socket, os.getpid())
    previous_mask = os.umask(0o077)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        c10d._register_handler("holdfast_profile", _profile)
        _open.append(_listen(path))
    except (OSError, RuntimeError) as error:
        print(f"no debug door at {path}: {error}", file=sys.stderr, flush=True)
        return False
    finally:
        os.umask(previous_mask)
    return True


def _listen(path: Path) -> Any:
    """Bound by way of the open directory: a socket's own path may have 107 bytes at most."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return c10d._WorkerServer(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def write_groups(agent_socket: str) -> None:
    """Tell the door's client this process's groups: their names are the same at all ranks."""
    if not _open:
        return
    world = distributed_c10d._world
    # A group this rank is no member of stands there too, under a number and without a name.
    groups = [
        FlightGroup(name, _description(group), tuple(sorted(world.pg_group_ranks[group])))
        for group, name in world.pg_names.items()
        if group in world.pg_group_ranks
    ]
    path = door_path(agent_socket, os.getpid()).with_suffix(".json")
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(groups))
    draft.rename(path)


def sample(duration_s: float) -> str:
    """Where the Python threads were, every 10 ms: one line a stack, most frequent first.
    `count  thread: outermost > ... > innermost`, at most MAX_LINES."""
    counts: Counter[str] = Counter()
    until_s = time.monotonic() + min(max(duration_s, SAMPLE_INTERVAL_S), MAX_PROFILE_S)
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
        counts.update(_stack(frame) for frame in sys._current_frames().values())
        time.sleep(SAMPLE_INTERVAL_S)
    lines = [f"{count:5d}  {stack}" for stack, count in counts.most_common(MAX_LINES)]
    return "\n".join([f"{rounds} samples of every Python thread", *lines])


def _profile(request: Any, response: Any) -> None:
    response.set_content(sample(float(request.get_param("duration"))), "text/plain")
    response.set_status(200)


def _stack(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        code = frame.f_code
        names.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return " > ".join(reversed(names))


def _description(group: dist.ProcessGroup) -> str:
    described = str(getattr(group, "group_desc", "") or "")
    return "" if described == "undefined" else described
