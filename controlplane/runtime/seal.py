"""What our processes tell each other through Redis, sealed: who can only write to Redis
forges nothing, moves nothing to another name, and repeats nothing that is old.

A seal is a keyed BLAKE2b over the name, the moment and the bytes, with a key for each use
(`keys.seal_key`). Called by the bus, the telemetry stream and the broker. Whatever has no
seal is dropped before it is decoded, counted here and told with the health of Redis; a
seal says who wrote, not that it is the newest: where order matters the bytes say it.
"""

import hmac
import struct
import threading
import time
from collections import Counter
from hashlib import blake2b

from django.db import DatabaseError, close_old_connections

from controlplane.runtime import counters, keys
from controlplane.runtime.clock import now_s
from controlplane.runtime.logs import get

MAC_BYTES = 32
HEAD_BYTES = MAC_BYTES + 8
# How far the clocks of the server's machines may be apart.
MAX_AHEAD_S = 60.0
LATE = "late"
"""Of a seal that is ours and of another time."""
PEER = "(redis)"
TELL_S = 1.0
# Of somebody else's hand. Late and missing messages can be our own, after an outage.
FOREIGN = (
    "telemetry_unsealed",
    "telemetry_repeated",
    "telemetry_garbage",
    "live",
    "parts",
    "volatile",
    "stream",
    "wrong_type",
    "broker_unsealed",
    "broker_garbage",
    "broker_unacked",
    "broker_wrong_type",
)
FOREIGN_S = 600.0
_log = get(__name__)


class Broken(Exception):
    """None of our processes wrote this, under this name, so lately. `code` is counted."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def seal(purpose: str, name: str, payload: bytes) -> bytes:
    """`payload` with a seal of this moment, for `name` alone."""
    moment = struct.pack(">d", now_s())
    return mac(purpose, name, moment, payload) + moment + payload


def unseal(purpose: str, name: str, data: bytes, *, max_age_s: float) -> tuple[bytes, float]:
    """(payload, Unix time of the seal). Raises Broken."""
    if len(data) < HEAD_BYTES:
        raise Broken("unsealed")
    moment, payload = data[MAC_BYTES:HEAD_BYTES], data[HEAD_BYTES:]
    if not hmac.compare_digest(mac(purpose, name, moment, payload), data[:MAC_BYTES]):
        raise Broken("unsealed")
    at_s: float = struct.unpack(">d", moment)[0]
    if not -MAX_AHEAD_S <= now_s() - at_s <= max_age_s:
        raise Broken(LATE)
    return payload, at_s


def mac(purpose: str, name: str, *parts: bytes) -> bytes:
    """Over the name and all parts; the lengths of all but the last are fixed or told."""
    hashed = blake2b(key=keys.seal_key(purpose), digest_size=MAC_BYTES)
    named = name.encode()
    hashed.update(struct.pack(">I", len(named)) + named)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def foreign() -> str:
    """What somebody else wrote to Redis in the last minutes, in a sentence; empty when nothing."""
    number, age_s = counters.recent(PEER, FOREIGN, FOREIGN_S)
    if age_s is None:
        return ""
    return (
        f"{number} messages that none of our processes wrote were dropped, the last {age_s:.0f} s ago; nothing was"
        " done by them. Find out who else writes to Redis, and change its password"
    )


class Tally:
    """Counts what was dropped and writes it to the database, once in TELL_S, from a thread of
    its own: nobody waits for it, and a flood costs one row."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._details: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def note(self, reason: str, detail: str = "", *, number: int = 1) -> None:
        """Never blocks, never fails. `reason` is one of few words."""
        with self._lock:
            first = reason not in self._waiting
            self._waiting[reason] += number
            self._details[reason] = detail
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._tell, name="tally", daemon=True)
                self._thread.start()
        if first:
            _log.warning("dropped what none of our processes wrote to redis", reason=reason, detail=detail[:200])

    def _tell(self) -> None:
        while True:
            time.sleep(TELL_S)
            with self._lock:
                waiting, details = self._waiting, self._details
                if not waiting:
                    self._thread = None
                    return
                self._waiting, self._details = Counter(), {}
            for reason, number in waiting.items():
                try:
                    counters.count(PEER, reason, number=number, detail=details.get(reason, ""))
                except (DatabaseError, RuntimeError) as error:
                    _log.warning("not counted, the database is away", reason=reason, number=number, error=str(error))
            close_old_connections()


tally = Tally()
