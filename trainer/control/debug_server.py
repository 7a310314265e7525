"""The debug server: what a rank answers about itself while its training thread is stuck.

PyTorch's worker server runs on C++ threads, so it answers `ping`, `fr_trace_json`,
`dump_traceback` and `wait_counter_values` from a rank that is blocked in C++ or whose
interpreter is locked. It listens on a unix socket beside the agent's, in a directory only
the agent's user can enter, and on nothing else; the agent is its one client. Our own
handlers (`debug_common.HANDLERS`) are Python, for which the interpreter must be free. The process
groups are written down beside the socket once they are built, because gloo's Flight Recorder
loses them. A rank trains on without it when it cannot be opened.
A program that brings its own loop opens `trainer.hooks.debug_server` first.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from controlplane.protocol.flight import FlightGroup
from trainer.control.debug_common import HANDLERS, listen_at

_open: list[Any] = []
_handlers: list[Any] = []
"""Torch lets go of them after the interpreter has ended: the last reference may not be torch's, or the process
ends by SIGABRT."""


def open_debug_server(path: Path) -> bool:
    """Listen there (`debug_common.debug_socket_path`), until the process ends. False, and a line in the log,
    when that fails."""
    try:
        path.with_suffix(".json").unlink(missing_ok=True)
        for name, answer in HANDLERS.items():
            _handlers.append(_handler(answer))
            c10d._register_handler(name, _handlers[-1])
        _open.append(listen_at(path, c10d._WorkerServer))
    except (OSError, RuntimeError) as error:
        print(f"no debug server at {path}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def group_names() -> tuple[str, ...]:
    """Of this process's groups, in the order of their making."""
    return tuple(distributed_c10d._world.pg_names.values())


def write_groups(path: Path) -> None:
    """Tell the client of the server at `path` this process's groups: their names are the same at
    all ranks. Where that fails the log says so."""
    if not _open:
        return
    world = distributed_c10d._world
    # A group this rank is no member of stands there too, under a number and without a name.
    groups = [
        FlightGroup(name, _description(group), tuple(sorted(world.pg_group_ranks[group])))
        for group, name in list(world.pg_names.items())
        if group in world.pg_group_ranks
    ]
    draft = path.with_suffix(".tmp")
    try:
        draft.write_bytes(msgspec.json.encode(groups))
        draft.rename(path.with_suffix(".json"))
    except OSError as error:
        print(f"no process groups at {path}: {error}", file=sys.stderr, flush=True)


def _handler(answer: Callable[[float], str]) -> Callable[[Any, Any], None]:
    def handle(request: Any, response: Any) -> None:
        response.set_content(answer(float(request.get_param("duration") or 1.0)), "text/plain")
        response.set_status(200)

    return handle


def _description(group: dist.ProcessGroup) -> str:
    described = str(getattr(group, "group_desc", "") or "")
    return "" if described == "undefined" else described
