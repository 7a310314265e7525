"""Redis as a hint: bells, volatile pictures, the telemetry stream. Never a truth.

Every call tolerates Redis being away: it returns False or None, at once while the
breaker is open, and nobody waits. What must not be lost is a row before it comes here.

Names: stream `hf:telemetry`; channels `hf:seq` (an event was committed), `hf:volatile`
(pictures for browsers), `hf:web:<process>` (look at your nodes' outbox); hashes
`hf:hot:*` (the newest picture, with an expiry).
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.runtime.logs import get

STREAM = "hf:telemetry"
STREAM_MAX = 20_000
SEQ_CHANNEL = "hf:seq"
VOLATILE_CHANNEL = "hf:volatile"
HOT_EXPIRE_S = 30
TIMEOUT_S = 0.25
OPEN_S = 1.0

T = TypeVar("T")
_log = get(__name__)
_encode = msgspec.json.Encoder().encode
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


def ring_seq(seq: int) -> bool:
    """Wake the browsers' pumps: events up to `seq` are committed."""
    return attempt(lambda c: c.publish(SEQ_CHANNEL, str(seq))) is not None


def ring_outbox(process: str, node_ids: list[str]) -> bool:
    """Wake the web process that holds these nodes' sockets."""
    return attempt(lambda c: c.publish(f"hf:web:{process}", _encode(node_ids))) is not None


def publish_volatile(topic: str, message: dict[str, Any]) -> bool:
    """A picture for the browsers that watch `topic`; lost without harm."""
    body = _encode({"topic": topic, "message": message})
    return attempt(lambda c: c.publish(VOLATILE_CHANNEL, body)) is not None


def write_hot(pictures: dict[str, dict[str, Any]]) -> bool:
    """Replace the hashes `hf:hot:<name>`, each field -> JSON, in one round trip."""

    def call(c: redis.Redis) -> bool:
        with c.pipeline(transaction=True) as pipe:
            for name, fields in pictures.items():
                key = f"hf:hot:{name}"
                pipe.delete(key)
                if fields:
                    pipe.hset(key, mapping={k: _encode(v) for k, v in fields.items()})
                    pipe.expire(key, HOT_EXPIRE_S)
            pipe.execute()
        return True

    return bool(attempt(call))


def read_hot(name: str) -> dict[str, Any] | None:
    """The hash as field -> value; {} when it holds nothing; None when Redis is away."""
    raw = attempt(lambda c: c.hgetall(f"hf:hot:{name}"))
    if raw is None:
        return None
    return {_text(k): msgspec.json.decode(v) for k, v in raw.items()}  # type: ignore[union-attr]


def write_blob(name: str, blob: bytes) -> bool:
    """Keep bytes under `hf:blob:<name>` for a while."""
    return bool(attempt(lambda c: c.set(f"hf:blob:{name}", blob, ex=HOT_EXPIRE_S)))


def read_blob(name: str) -> bytes | None:
    """None: nothing there, or Redis is away."""
    raw = attempt(lambda c: c.get(f"hf:blob:{name}"))
    return raw if isinstance(raw, bytes) else None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
