"""New ids: ULIDs that never go backwards inside a process, so that rows made in one
millisecond still sort in the order in which they were made."""

import os
import threading
import time

from controlplane.protocol.ids import make_id

_lock = threading.Lock()
_last: tuple[int, int] = (0, 0)
_ENTROPY_LIMIT = 1 << 80


def new_id(prefix: str) -> str:
    """`prefix` of 2 to 4 letters; see protocol.ids."""
    global _last
    with _lock:
        time_ms = time.time_ns() // 1_000_000
        if time_ms <= _last[0]:
            time_ms, entropy = _last[0], (_last[1] + 1) % _ENTROPY_LIMIT
        else:
            # The top bit stays free, so that counting up within a millisecond cannot overflow.
            entropy = int.from_bytes(os.urandom(10)) >> 1
        _last = (time_ms, entropy)
    return make_id(prefix, time_ms, entropy.to_bytes(10))
