"""Commands of a person that a rank carries out beside its training (`protocol.rank_commands`), each once.

Each runs in a thread of its own: the control link goes on, and so does the training thread. Its text, or why it
failed, is the answer.
"""

import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable

from controlplane.protocol.bounds import MAX_DETAIL_CHARS, fitted
from controlplane.protocol.rank import FromRank
from controlplane.protocol.rank_commands import CarriedOut, CarryOut

MAX_REMEMBERED = 256


def _collect_garbage(_value: float) -> str:
    """Unreachable objects, then what the allocator of the device keeps cached."""
    freed = f"{gc.collect()} unreachable objects were freed"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return freed
    before_bytes = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return f"{freed}, and {before_bytes - torch.cuda.memory_reserved()} bytes of device memory"


HANDLERS: dict[str, Callable[[float], str]] = {"collect_garbage": _collect_garbage}
"""By the name that the table gives; each is given the command's value and returns what it did."""


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
    handler = HANDLERS.get(command.name)
    if handler is None:
        send(CarriedOut(command.command_id, False, f"this rank knows no command {command.name!r}"))
        return
    try:
        detail = handler(command.value)
    except Exception as error:  # Whatever a handler raises is its answer; the rank trains on.
        send(CarriedOut(command.command_id, False, fitted(repr(error), MAX_DETAIL_CHARS)))
        return
    send(CarriedOut(command.command_id, True, fitted(detail, MAX_DETAIL_CHARS)))
