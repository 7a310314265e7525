"""Celery's way through Redis, sealed: the worker takes messages of our own processes alone.

kombu's Redis transport reads whatever lies in a queue, and one entry that is no message
ends the worker; a forged one starts tasks with chosen arguments, or shuts it down (remote
control travels the same way). Here every message carries a seal over all of it and over
where it goes. What has none is dropped at the door, before Celery sees it, and counted. A
genuine one can be repeated for a while: tasks only look at the truth again.

Installed by config.celery as the transport of `redis://`; nothing else imports it.
"""

import hmac
from collections.abc import Callable
from queue import Empty
from typing import Any

import redis
from kombu.transport import redis as stock
from kombu.utils.json import dumps

from controlplane.runtime.bus import wrong_type
from controlplane.runtime.clock import now_s
from controlplane.runtime.seal import MAX_AHEAD_S, mac, tally

PURPOSE = "broker"
SEAL = "holdfast_seal"
MOMENT = "holdfast_at"
# A task waits in its queue until a worker is back; a control command is of the moment.
QUEUE_AGE_S = 86_400.0
FANOUT_AGE_S = 60.0
# Written by kombu itself when it gives a message back.
_MARKS = frozenset({"redelivered"})
_BINDING_PARTS = 3

Json = dict[str, Any]


class QoS(stock.QoS):  # type: ignore[misc]
    """Messages under way are kept in Redis, too: what lies there instead harms nobody."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message until it is acknowledged."""
        self._mended(lambda: super(QoS, self).append(message, delivery_tag))

    def ack(self, delivery_tag: str) -> None:
        """It is done."""
        self._mended(lambda: super(QoS, self).ack(delivery_tag))

    def _mended(self, call: Callable[[], None]) -> None:
        """Once more, where somebody made the keys into something else."""
        try:
            call()
        except redis.ResponseError as error:
            if not wrong_type(error):
                raise
            _remove(self.channel, "unacked", self.unacked_key, self.unacked_index_key)
            call()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Give one message back; an entry that is none is forgotten."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._remove_from_indices(tag).execute()
            tally.note("broker_unacked", type(error).__name__)


class Channel(stock.Channel):  # type: ignore[misc]
    """Seals on the way in, looks on the way out."""

    QoS = QoS

    def _put(self, queue: str, message: Json, **options: Any) -> None:
        super()._put(queue, sealed(message, f"queue:{queue}"), **options)

    def _put_fanout(self, exchange: str, message: Json, routing_key: str, **options: Any) -> None:
        super()._put_fanout(exchange, sealed(message, f"fanout:{exchange}"), routing_key, **options)

    def _get(self, queue: str) -> Json:
        message: Json = self._guarded(lambda: super(Channel, self)._get(queue))
        if not is_sealed(message, f"queue:{queue}", max_age_s=QUEUE_AGE_S):
            raise Empty
        return message

    def _brpop_read(self, **options: Any) -> Any:
        return self._guarded(lambda: super(Channel, self)._brpop_read(**options))

    def _receive_one(self, c: Any) -> Any:
        return self._guarded(lambda: super(Channel, self)._receive_one(c))

    def _deliver_fanout_message(self, message: Any, exchange: str) -> bool:
        if is_sealed(message, f"fanout:{exchange}", max_age_s=FANOUT_AGE_S):
            self.connection.hand_over(message, self._fanout_to_queue[exchange])
        return True

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        """Bindings, without those that are none."""
        return [row for row in super().get_table(exchange) if len(row) == _BINDING_PARTS]

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """Read one message. What cannot even be decoded is as if nothing had come; what went
        wrong after it was handed over is not ours to hide."""
        self.connection.handed_over = False
        try:
            return read()
        except redis.ResponseError as error:
            if not wrong_type(error):
                raise
            keys = [self._q_for_pri(queue, step) for queue in self.active_queues for step in self.priority_steps]
            _remove(self, "list", *keys)
            raise Empty from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if self.connection.handed_over:
                raise
            tally.note("broker_garbage", type(error).__name__)
            raise Empty from None


class Transport(stock.Transport):  # type: ignore[misc]
    """`handed_over`: the message just read has reached Celery."""

    Channel = Channel
    handed_over = False

    def _deliver(self, message: Any, queue: str) -> None:
        if is_sealed(message, f"queue:{queue}", max_age_s=QUEUE_AGE_S):
            self.hand_over(message, queue)

    def hand_over(self, message: Json, queue: str) -> None:
        """To whoever consumes the queue."""
        self.handed_over = True
        super()._deliver(message, queue)


def sealed(message: Json, name: str) -> Json:
    """The same message with its seal, for the queue or exchange `name`."""
    properties = {key: value for key, value in message["properties"].items() if key != SEAL} | {MOMENT: now_s()}
    made = {**message, "properties": properties}
    return {**made, "properties": {**properties, SEAL: mac(PURPOSE, name, _signed(made)).hex()}}


def is_sealed(message: Any, name: str, *, max_age_s: float) -> bool:
    """One of our processes sent it there, not too long ago. Counts what is not so."""
    try:
        properties = message["properties"]
        found, age_s = properties[SEAL], now_s() - float(properties[MOMENT])
        good = hmac.compare_digest(mac(PURPOSE, name, _signed(message)).hex().encode(), str(found).encode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        good, age_s = False, 0.0
    if not good:
        tally.note("broker_unsealed", name)
        return False
    if not -MAX_AHEAD_S <= age_s <= max_age_s:
        tally.note("broker_late", name)
        return False
    return True


def _signed(message: Json) -> bytes:
    """All of a message but its seal and kombu's own marks, in one order."""
    properties = {key: value for key, value in message["properties"].items() if key != SEAL}
    properties["delivery_info"] = _unmarked(properties.get("delivery_info") or {})
    parts = [message.get("body"), message.get("content-type"), message.get("content-encoding")]
    text: str = dumps([*parts, _unmarked(message.get("headers") or {}), properties], sort_keys=True)
    return text.encode()


def _unmarked(values: Json) -> Json:
    return {key: value for key, value in values.items() if key not in _MARKS}


def _remove(channel: Channel, kind: str, *names: str) -> None:
    """Keys of ours that somebody made into something else, or all of a broken set."""
    with channel.conn_or_acquire() as client:
        wrong = [name for name in names if kind == "unacked" or client.type(name) not in (kind.encode(), b"none")]
        if wrong:
            client.delete(*wrong)
    tally.note("broker_wrong_type", ", ".join(names)[:200])
