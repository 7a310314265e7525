"""Every decoder answers every input with a message or a ProtocolError; a message can be stored."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.protocol import codec
from controlplane.protocol.bounds import unstorable
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.flight import decode_dump, repair
from tests.properties.agents.garbage import (
    HOST_LINES,
    LINES,
    any_json,
    mutated_frames,
    mutated_lines,
    nested,
)

SETTINGS = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example]
)
LINE_DOORS = ("from_rank", "to_rank", "from_host", "to_host")
garbage = st.one_of(st.binary(max_size=200), any_json, nested)


def storable(message: Any) -> None:
    """What a decoder lets in fits 64-bit columns, PostgreSQL's texts and JSON."""
    assert unstorable(msgspec.to_builtins(message, str_keys=True)) is None


def line_or_refusal(door: str, line: bytes) -> None:
    try:
        message = codec.decode_line(door, line)
    except ProtocolError as refused:
        assert unstorable(str(refused)) is None, "a refusal is kept and shown as well"
    else:
        storable(message)
        assert codec.decode_line(door, codec.encode_line(message).rstrip(b"\n")) == message


@SETTINGS
@given(door=st.sampled_from(LINE_DOORS), line=st.one_of(garbage, mutated_lines(LINES), mutated_lines(HOST_LINES)))
def test_a_line_is_a_message_or_refused(door: str, line: bytes) -> None:
    line_or_refusal(door, line)


@SETTINGS
@given(data=st.one_of(garbage, mutated_frames()))
def test_a_frame_is_a_message_or_refused(data: bytes) -> None:
    for decode in (codec.decode_from_agent, codec.decode_to_agent):
        try:
            message = decode(data)
        except ProtocolError as refused:
            assert unstorable(str(refused)) is None
        else:
            storable(message)
            assert decode(codec.encode_frame(message)) == message


@SETTINGS
@given(data=garbage, groups=garbage)
def test_a_flight_recorder_is_a_dump_or_refused(data: bytes, groups: bytes) -> None:
    for read in (lambda: repair(data, 0, groups), lambda: decode_dump(data.decode("utf-8", "replace"))):
        try:
            storable(read())
        except ProtocolError as refused:
            assert unstorable(str(refused)) is None


@pytest.mark.parametrize("door", LINE_DOORS)
def test_a_line_that_is_too_long_is_refused_unread(door: str) -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        codec.decode_line(door, b" " * (1 << 20) + b"{}")
