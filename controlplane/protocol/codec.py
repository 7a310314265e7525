"""Bytes to messages and back, with the limits of each door.

Agents' WebSocket: MessagePack. Rank and host sockets: JSON lines. Decoders are strict:
unknown fields, wrong types and oversized input raise a `ProtocolError` that says so.
"""

from typing import Any

import msgspec

from controlplane.protocol.errors import FrameTooLarge, MalformedFrame
from controlplane.protocol.frames import MAX_FRAME_BYTES, MAX_SERVER_MESSAGE_BYTES, FromAgent, ToAgent
from controlplane.protocol.rank import MAX_LINE_BYTES, FromHost, FromRank, ToHost, ToRank

_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
_line_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    "from_rank": msgspec.json.Decoder(FromRank),
    "to_rank": msgspec.json.Decoder(ToRank),
    "from_host": msgspec.json.Decoder(FromHost),
    "to_host": msgspec.json.Decoder(ToHost),
}


def encode_frame(message: FromAgent | ToAgent) -> bytes:
    """One WebSocket frame."""
    return _pack(message)


def decode_from_agent(data: bytes) -> FromAgent:
    """Raises FrameTooLarge or MalformedFrame."""
    _check_size(data, MAX_FRAME_BYTES, "agent frame")
    try:
        return _from_agent.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise MalformedFrame(f"agent frame: {error}") from error


def decode_to_agent(data: bytes) -> ToAgent:
    """Raises FrameTooLarge or MalformedFrame. Orders may be larger than frames."""
    _check_size(data, MAX_SERVER_MESSAGE_BYTES, "server message")
    try:
        return _to_agent.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise MalformedFrame(f"server message: {error}") from error


def encode_line(message: FromRank | ToRank | FromHost | ToHost) -> bytes:
    """One JSON line, newline included."""
    return _json(message) + b"\n"


def decode_line(door: str, line: bytes) -> Any:
    """`door`: from_rank, to_rank, from_host or to_host. Raises like the frame decoders."""
    _check_size(line, MAX_LINE_BYTES, door)
    try:
        return _line_decoders[door].decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedFrame(f"{door} line: {error}") from error


def _check_size(data: bytes, limit: int, what: str) -> None:
    if len(data) > limit:
        raise FrameTooLarge(f"{what} is {len(data)} bytes, the limit is {limit}; split it or send less at once")
