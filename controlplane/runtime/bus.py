"""Redis as a hint: wake-ups, live state, the telemetry stream. Never a truth.

Every call tolerates Redis being away: it returns False or None, at once while the
breaker is open, and nobody waits. What must not be lost is a row before it comes here.

Names: stream `hf:telemetry`; channels `hf:seq` (an event was committed), `hf:volatile`
(live state for browsers), `hf:web:<process>` (look at your nodes' outbox); `hf:live:*` (the
newest live state, with an expiry) and `hf:parts:*` (history that is not stored yet). Wake-ups say nothing,
so anybody may send them. Everything else is sealed (`runtime.seal`): what others wrote there is as if it were
not there, and is counted.
"""

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec
import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.runtime.logs import get
from controlplane.runtime.seal import HEAD_BYTES, LATE, Broken, seal, tally, unseal

STREAM = "hf:telemetry"
SEQ_CHANNEL = "hf:seq"
VOLATILE_CHANNEL = "hf:volatile"
LIVE_EXPIRE_S = 30
PARTS_EXPIRE_S = 120
PARTS_AGE_S = 7200.0 + PARTS_EXPIRE_S
"""Parts are as old as what they are shown with: a node's longest chunk (`sentinel.history`)."""
# More is never read at once, whoever wrote it.
MAX_VALUE_BYTES = 8 << 20
TIMEOUT_S = 0.25
OPEN_S = 1.0
AT_ONCE = 250
"""Values or messages in one round trip: it ends within TIMEOUT_S."""

T = TypeVar("T")
_log = get(__name__)
_encode = msgspec.json.Encoder().encode
_decode_dict = msgspec.json.Decoder(dict[str, Any]).decode
_errors = (redis.RedisError, OSError)


class Health:
    """Whether the last call worked. While open (`OPEN_S` after a failure) calls return
    at once; the next one after that tries again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ok = True
        self.detail = ""
        self.changed_s = time.time()
        self._retry_at = 0.0

    def may_try(self) -> bool:
        """False while the breaker is open."""
        return self.ok or time.monotonic() >= self._retry_at

    def note(self, error: Exception | None) -> None:
        """Remember an outcome; log a change once."""
        with self._lock:
            before, self.ok = self.ok, error is None
            self.detail = "" if error is None else f"{type(error).__name__}: {error}"
            self._retry_at = time.monotonic() + OPEN_S
            if before != self.ok:
                self.changed_s = time.time()
        if before and error is not None:
            _log.warning("redis is away", error=self.detail)
        if not before and error is None:
            _log.info("redis is back")


health = Health()
_clients: dict[str, redis.Redis] = {}
_clients_lock = threading.Lock()


def client() -> redis.Redis:
    """The process's synchronous client: short timeouts, no hidden retries (redis-py 8
    repeats a pipeline whose answer was lost, so it can apply twice)."""
    url = settings.REDIS_URL
    with _clients_lock:
        if url not in _clients:
            _clients[url] = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
            )
        return _clients[url]


def blocking_client() -> redis.Redis:
    """A client of its own for XREAD BLOCK: the read timeout is longer than any block."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=5.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
    )


def async_client(*, blocking: bool = False) -> "redis.asyncio.Redis":
    """For the web process's loop. `blocking`: subscriptions, which may idle for ever."""
    from redis.asyncio.retry import Retry as AsyncRetry

    return redis.asyncio.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=None if blocking else TIMEOUT_S,
        socket_connect_timeout=1.0,
        retry=AsyncRetry(NoBackoff(), 0),
    )


def attempt(call: Callable[[redis.Redis], T]) -> T | None:
    """Run one call; None when Redis is away (or was, a moment ago)."""
    if not health.may_try():
        return None
    try:
        answer = call(client())
    except _errors as error:
        health.note(error)
        return None
    health.note(None)
    return answer


def ping() -> bool:
    """True when Redis answers now."""
    return bool(attempt(lambda c: c.ping()))


def wake_readers(seq: int) -> bool:
    """Wake the browsers' pumps: events up to `seq` are committed."""
    return attempt(lambda c: c.publish(SEQ_CHANNEL, str(seq))) is not None


def wake_outbox(process: str) -> bool:
    """Wake a web process: there are orders for nodes whose sockets it holds."""
    return attempt(lambda c: c.publish(f"hf:web:{process}", b"")) is not None


class Volatile(msgspec.Struct, frozen=True):
    """Live state on its way to browsers."""

    topic: str
    message: dict[str, Any]


def publish_volatiles(messages: Iterable[tuple[str, dict[str, Any]]]) -> bool:
    """Many of them, a few round trips; lost without harm."""
    bodies = (
        seal("volatile", VOLATILE_CHANNEL, _encode(Volatile(topic=topic, message=message)))
        for topic, message in messages
    )
    while part := list(islice(bodies, AT_ONCE)):
        if attempt(partial(_publish, bodies=part)) is None:
            return False
    return True


def _publish(c: redis.Redis, bodies: list[bytes]) -> bool:
    with c.pipeline(transaction=False) as pipe:
        for body in bodies:
            pipe.publish(VOLATILE_CHANNEL, body)
        pipe.execute()
    return True


_decode_volatile = msgspec.json.Decoder(Volatile).decode


def publish_volatile(topic: str, message: dict[str, Any]) -> bool:
    """Live state for the browsers that watch `topic`; lost without harm."""
    body = seal("volatile", VOLATILE_CHANNEL, _encode(Volatile(topic=topic, message=message)))
    return attempt(lambda c: c.publish(VOLATILE_CHANNEL, body)) is not None


def hear_volatile(data: bytes) -> Volatile | None:
    """What came over the channel; None, and counted, when none of us sent it."""
    try:
        return _decode_volatile(unseal("volatile", VOLATILE_CHANNEL, data, max_age_s=LIVE_EXPIRE_S)[0])
    except (Broken, msgspec.DecodeError) as error:
        tally.note("volatile", str(error))
        return None


def write_live(states: Mapping[str, Any]) -> bool:
    """Replace the live states `hf:live:<name>`, each field -> value as JSON, in a few round trips."""
    names = iter(states)
    while part := list(islice(names, AT_ONCE)):
        sealed = {f"hf:live:{name}": seal("live", name, _encode(states[name])) for name in part}
        if attempt(partial(_set, sealed=sealed)) is None:
            return False
    return True


def _set(c: redis.Redis, sealed: dict[str, bytes]) -> bool:
    with c.pipeline(transaction=True) as pipe:
        for key, value in sealed.items():
            pipe.set(key, value, ex=LIVE_EXPIRE_S)
        pipe.execute()
    return True


def watch_key(process: str) -> str:
    """Where a web process keeps what its browsers watch: `topics`."""
    return f"watched:{process}"


def read_live(name: str) -> dict[str, Any] | None:
    """The live state as field -> value; {} when there is none of ours; None when Redis is away."""
    raw = _read("live", name)
    if raw is None:
        return None
    try:
        return _decode_dict(raw) if raw else {}
    except msgspec.DecodeError as error:
        tally.note("live", f"{name}: {error}")
        return {}


def read_live_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The live states of these names in one round trip, without those that are not there or not
    ours; {} when Redis is away."""
    keys = [f"hf:live:{name}" for name in names]
    raws = attempt(lambda c: _values(c, keys)) if keys else None
    found: dict[str, dict[str, Any]] = {}
    for name, raw in zip(names, raws or [], strict=False):
        state = _opened("live", name, raw) if isinstance(raw, bytes) else b""
        try:
            found |= {name: _decode_dict(state)} if state else {}
        except msgspec.DecodeError as error:
            tally.note("live", f"{name}: {error}")
    return found


def write_parts(changes: Sequence[tuple[str, list[bytes], bool]]) -> dict[str, int]:
    """Under each name `hf:parts:<name>`: these parts behind those that are there, or (True) instead of them. Returns
    how many bytes are there now, of those that were written."""
    lengths: dict[str, int] = {}
    rest = iter(changes)
    while group := list(islice(rest, AT_ONCE)):
        ready = [(name, b"".join(_framed(name, part) for part in parts), anew) for name, parts, anew in group]
        answers = attempt(partial(_write_parts, changes=ready))
        if answers is None:
            break
        for (name, body, anew), answer in zip(ready, answers, strict=True):
            lengths |= {name: len(body)} if anew and answer is True else {}
            lengths |= {name: answer} if not anew and isinstance(answer, int) else {}
    return lengths


def _write_parts(c: redis.Redis, changes: list[tuple[str, bytes, bool]]) -> list[Any]:
    with c.pipeline(transaction=False) as pipe:
        for name, body, anew in changes:
            key = f"hf:parts:{name}"
            pipe.set(key, body, ex=PARTS_EXPIRE_S) if anew else pipe.append(key, body)
            pipe.expire(key, PARTS_EXPIRE_S)
        return list(pipe.execute(raise_on_error=False))[::2]


def _framed(name: str, part: bytes) -> bytes:
    sealed = seal("parts", name, part)
    return struct.pack(">I", len(sealed)) + sealed


def parts_bytes(parts: Sequence[bytes]) -> int:
    """How many bytes they take where they are kept."""
    return sum(len(part) + HEAD_BYTES + 4 for part in parts)


def read_parts(name: str) -> list[bytes]:
    """What one of our processes wrote there, oldest first, up to what none of them did: where the next one would begin
    then, nobody knows. [] for nothing, or when Redis is away."""
    raw = attempt(lambda c: _value(c, f"hf:parts:{name}")) or b""
    found: list[bytes] = []
    place = 0
    while place + 4 <= len(raw):
        size = int.from_bytes(raw[place : place + 4], "big")
        try:
            found.append(unseal("parts", name, raw[place + 4 : place + 4 + size], max_age_s=PARTS_AGE_S)[0])
        except Broken as error:
            tally.note("parts", f"{name}: {error}")
            if error.code != LATE:
                break
        place += 4 + size
    return found


def drop_parts(names: Sequence[str]) -> bool:
    """They are stored elsewhere."""
    return not names or attempt(lambda c: c.delete(*(f"hf:parts:{name}" for name in names))) is not None


def _read(purpose: str, name: str) -> bytes | None:
    """What one of our processes keeps there; empty when nothing; None when Redis is away."""
    key = f"hf:{purpose}:{name}"
    raw = attempt(lambda c: _value(c, key))
    if not raw:
        return None if raw is None else b""
    return _opened(purpose, name, raw)


def _opened(purpose: str, name: str, raw: bytes) -> bytes:
    """The content of a sealed value; empty, and counted, when none of us wrote it."""
    try:
        return unseal(purpose, name, raw, max_age_s=LIVE_EXPIRE_S)[0] if raw else b""
    except Broken as error:
        tally.note(purpose, f"{name}: {error}")
        return b""


def _values(c: redis.Redis, keys: list[str]) -> list[Any]:
    """At most MAX_VALUE_BYTES of each string; an exception stands for a key that is none."""
    with c.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.getrange(key, 0, MAX_VALUE_BYTES - 1)
        return list(pipe.execute(raise_on_error=False))


def _value(c: redis.Redis, key: str) -> bytes:
    """At most MAX_VALUE_BYTES of a string; another type is not ours, and goes."""
    try:
        value = c.getrange(key, 0, MAX_VALUE_BYTES - 1)
    except redis.ResponseError as error:
        if not wrong_type(error):
            raise
        c.delete(key)
        tally.note("wrong_type", key)
        return b""
    return value if isinstance(value, bytes) else b""


def wrong_type(error: redis.ResponseError) -> bool:
    """The key holds something else than we keep there: Redis itself is well. (A pipeline tells
    which of its commands failed before it says why.)"""
    return "WRONGTYPE" in str(error)
