"""Commands of a person that a rank carries out beside its training (`protocol.rank_commands`), each once.

Each runs in a thread of its own: the control link goes on, and so does the training thread. What it has found, or
why it failed, is the answer.
"""

import gc
import sys
import threading
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.protocol import rank_commands as table
from controlplane.protocol.bounds import MAX_DETAIL_CHARS, fitted, fitted_tail
from controlplane.protocol.plain import shown
from controlplane.protocol.rank import FromRank
from controlplane.protocol.rank_commands import CarriedOut, CarryOut

MAX_REMEMBERED = 256
WHERE_CHARS = 80
GROUPED = {"line": "lineno", "file": "filename"}


def _collect_garbage(_asked: table.CollectGarbage) -> table.GarbageCollected:
    """Unreachable objects, then what the allocator of the device keeps cached."""
    objects = gc.collect()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return table.GarbageCollected(objects=objects)
    before_bytes = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return table.GarbageCollected(objects=objects, device_bytes=before_bytes - torch.cuda.memory_reserved())


def _trace_allocations(asked: table.TraceAllocations) -> table.AllocationsTraced:
    """What was allocated since it began and is still held; a second trace at the same time fails."""
    if tracemalloc.is_tracing():
        raise RuntimeError("allocations are being traced already")
    tracemalloc.start()
    try:
        time.sleep(asked.duration_s)
        found = tracemalloc.take_snapshot().statistics(GROUPED[asked.group_by])
    finally:
        tracemalloc.stop()
    places = (
        table.Place(where=_where(each.traceback[0], asked), held_bytes=each.size, blocks=each.count)
        for each in found[: table.MAX_PLACES]
    )
    return table.AllocationsTraced(held_bytes=sum(each.size for each in found), places=tuple(places))


def _where(frame: tracemalloc.Frame, asked: table.TraceAllocations) -> str:
    """The end of it: a long path begins with what all of them share."""
    text = f"{frame.filename}:{frame.lineno}" if asked.group_by == "line" else frame.filename
    return fitted_tail(shown(text, layout=False), WHERE_CHARS)


HANDLERS: dict[type[table.RankCommand], Callable[[Any], table.Answer]] = {
    table.CollectGarbage: _collect_garbage,
    table.TraceAllocations: _trace_allocations,
}
"""Each is given the command and returns its answer; what it raises is why it failed."""


class RankCommands:
    """Put to by the control link's thread alone."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def put(self, command: CarryOut, send: Callable[[FromRank], None]) -> None:
        """Begin it, unless it was begun before."""
        if command.command_id in self._seen:
            return
        self._seen[command.command_id] = None
        while len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        name = f"command {command.name}"
        threading.Thread(target=_carry_out, args=(command, send), name=name, daemon=True).start()


def _carry_out(command: CarryOut, send: Callable[[FromRank], None]) -> None:
    if command.name not in table.BY_NAME:
        send(CarriedOut(command.command_id, False, f"this rank knows no command {command.name!r}"))
        return
    try:
        asked = table.read(command.name, command.fields)
        found = HANDLERS[type(asked)](asked)
        detail, result = fitted(found.sentence, MAX_DETAIL_CHARS), msgspec.json.encode(found).decode()
        if len(result) > MAX_DETAIL_CHARS:
            raise ValueError(f"its answer has {len(result)} characters, more than {MAX_DETAIL_CHARS}")
    except Exception as error:  # Whatever a handler raises is its answer; the rank trains on.
        send(CarriedOut(command.command_id, False, fitted(repr(error), MAX_DETAIL_CHARS)))
        return
    send(CarriedOut(command.command_id, True, detail, result))
