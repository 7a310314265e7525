"""Bytes to messages and back, with the limits of each door.

Agents' WebSocket: MessagePack. Rank and host sockets: JSON lines. Decoders are strict:
unknown fields, wrong types, values outside of their bounds (`protocol.bounds`) and oversized
input raise a `ProtocolError` that says so, and nothing else is ever raised, however the bytes
are made: nested a hundred thousand deep, with numbers of a thousand digits, torn in a
character. What a decoder returns can be encoded again and stored.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from controlplane.protocol.bounds import quoted, unstorable
from controlplane.protocol.errors import FrameTooLarge, MalformedFrame
from controlplane.protocol.frames import (
    MAX_EVENT_BYTES,
    MAX_FRAME_BYTES,
    MAX_SERVER_MESSAGE_BYTES,
    PROTOCOL_MAX,
    EventBody,
    FromAgent,
    ToAgent,
)
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.rank import (
    MAX_LINE_BYTES,
    MAX_REPORT_BYTES,
    ForkRank,
    FromHost,
    FromRank,
    ToHost,
    ToRank,
)
from controlplane.protocol.revisions import decode_known, encode_for

_REFUSALS = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)

_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
_event: msgspec.msgpack.Decoder[EventBody] = msgspec.msgpack.Decoder(EventBody)
_line_decoders: dict[str, tuple[msgspec.json.Decoder[Any], int]] = {
    "from_rank": (msgspec.json.Decoder(FromRank), MAX_REPORT_BYTES),
    "to_rank": (msgspec.json.Decoder(ToRank), MAX_LINE_BYTES),
    "from_host": (msgspec.json.Decoder(FromHost), MAX_LINE_BYTES),
    "to_host": (msgspec.json.Decoder(ToHost), MAX_LINE_BYTES),
}


def encode_frame(message: FromAgent | ToAgent, revision: int = PROTOCOL_MAX) -> bytes:
    """One WebSocket frame, as a peer that speaks `revision` understands it. Raises MalformedFrame
    for what could not be decoded either."""
    return _encoded(_pack, message if revision >= PROTOCOL_MAX else encode_for(message, revision))


def decode_from_agent(data: bytes) -> FromAgent:
    """Raises FrameTooLarge or MalformedFrame."""
    message: FromAgent = decoded(_from_agent.decode, data, MAX_FRAME_BYTES, "agent frame")
    return message


def decode_to_agent(data: bytes) -> ToAgent:
    """Raises FrameTooLarge or MalformedFrame. Orders may be larger than frames."""
    message: ToAgent = decoded(_to_agent.decode, data, MAX_SERVER_MESSAGE_BYTES, "server message")
    return message


def decode_from_newer_agent(data: bytes) -> tuple[FromAgent, Counter[str]]:
    """A frame of an agent that speaks a newer revision than this server, and how often each
    field unknown here came. Raises as `decode_from_agent`."""
    return _tolerant(decode_from_agent, FromAgent, data, MAX_FRAME_BYTES, "agent frame")


def decode_to_older_agent(data: bytes) -> tuple[ToAgent, Counter[str]]:
    """A message of a server that may be newer than this agent, and its unknown fields. What is
    signed inside of it is read strictly, later. Raises as `decode_to_agent`."""
    return _tolerant(decode_to_agent, ToAgent, data, MAX_SERVER_MESSAGE_BYTES, "server message")


def encode_line(message: FromRank | ToRank | FromHost | ToHost) -> bytes:
    """One JSON line, newline included. Raises MalformedFrame."""
    return _encoded(_json, message) + b"\n"


def decode_line(door: str, line: bytes) -> Any:
    """`door`: from_rank, to_rank, from_host or to_host. Raises like the frame decoders."""
    decoder, limit = _line_decoders[door]
    message = decoded(decoder.decode, line, limit, f"{door} line")
    if isinstance(message, ForkRank):
        check_config(message.config, f"{door} line")
    return message


def event_bytes(body: EventBody) -> int:
    """Size of an event of an agent's own. Raises FrameTooLarge or MalformedFrame where its server
    could not decode it: an agent asks before it keeps one, for what is kept is sent until it is
    applied."""
    data = _encoded(_pack, body)
    decoded(_event.decode, data, MAX_EVENT_BYTES, "event")
    return len(data)


def _tolerant(
    strict: Callable[[bytes], Any], root: Any, data: bytes, limit: int, what: str
) -> tuple[Any, Counter[str]]:
    try:
        return strict(data), Counter()
    except MalformedFrame:
        message, dropped = decoded(lambda raw: decode_known(raw, root), data, limit, what)
        return message, dropped


def _encoded(encode: Callable[[Any], bytes], message: Any) -> bytes:
    try:
        return encode(message)
    except (ValueError, OverflowError, RecursionError) as error:
        raise MalformedFrame(f"{type(message).__name__}: {quoted(error)}") from error


def decoded(decode: Callable[[bytes], Any], data: bytes, limit: int, what: str) -> Any:
    if len(data) > limit:
        raise FrameTooLarge(f"{what} is {len(data)} bytes, the limit is {limit}; split it or send less at once")
    try:
        return decode(data)
    except _REFUSALS as error:
        raise MalformedFrame(f"{what}: {quoted(error)}") from error


def check_config(config: TrainerConfig, what: str) -> None:
    """The ranges of a job's spec are checked where it is submitted (`spec_limits`); what must
    hold of it wherever it goes is checked here."""
    try:
        fault = _fault_of(msgspec.msgpack.encode(config))
    except (UnicodeEncodeError, OverflowError):
        fault = unstorable(msgspec.to_builtins(config))
    if fault is not None:
        raise MalformedFrame(f"{what}: the trainer's configuration: {fault}")


@lru_cache(maxsize=16)
def _fault_of(config: bytes) -> str | None:
    """A thousand starts of a replica carry one configuration."""
    return unstorable(msgspec.msgpack.decode(config))
