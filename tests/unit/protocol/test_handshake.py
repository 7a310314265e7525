"""What is signed: unambiguous, complete, and bounded where it enters."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.link.keys import NodeKey, SessionCounter, unsigned_proof
from controlplane.fleet.keys import verifies
from controlplane.protocol.codec import decode_from_agent, encode_frame
from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.handshake import (
    KEY_BYTES,
    Proof,
    decode_bytes,
    encode_bytes,
    session_statement,
)

KEY = NodeKey.fresh()
NONCE = bytes(range(32))


def proof(**changes: object) -> Proof:
    values = {
        "node_id": "node_1", "boot_id": "b", "journal_id": "j", "machine_id": "m", "counter": 1, "protocol_min": 2,
        "protocol_max": 2, "server_host": "holdfast.example",
    }  # fmt: skip
    return unsigned_proof(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": "node_2"}, {"boot_id": "c"}, {"journal_id": "k"}, {"machine_id": ""}, {"counter": 2},
        {"protocol_min": 1}, {"protocol_max": 3}, {"server_host": "other.example"},
    ],
)  # fmt: skip
def test_a_signature_covers_every_field(changes: dict[str, object]) -> None:
    signed = KEY.proof(NONCE, proof())
    assert verifies(KEY.public_key, signed.signature, session_statement(NONCE, signed))
    assert not verifies(KEY.public_key, signed.signature, session_statement(NONCE, proof(**changes)))
    assert not verifies(KEY.public_key, signed.signature, session_statement(bytes(32), signed))


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_bytes_have_one_spelling(data: bytes) -> None:
    text = encode_bytes(data)
    assert decode_bytes(text, KEY_BYTES) == data
    for other in (text + "=", text[:-1], text + "A", " " + text):
        with pytest.raises(ValueError, match=r".*"):
            decode_bytes(other, KEY_BYTES)


@given(st.text(max_size=80))
def test_no_text_breaks_the_reading_of_a_key(text: str) -> None:
    assert not verifies(text, bytes(64), b"anything")


@pytest.mark.parametrize(
    "changes", [{"counter": 0}, {"counter": 2**60}, {"boot_id": ""}, {"boot_id": "a b"}, {"server_host": "x" * 300}]
)
def test_a_proof_out_of_range_is_malformed(changes: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame):
        decode_from_agent(encode_frame(proof(**changes)))
    assert decode_from_agent(encode_frame(proof())) == proof()


@given(st.binary(max_size=300))
def test_garbage_is_malformed(data: bytes) -> None:
    try:
        decode_from_agent(data)
    except MalformedFrame:
        return
    assert msgspec.msgpack.decode(data)


def test_the_session_counter_only_grows_and_outlives_the_process(tmp_path) -> None:
    path = tmp_path / "session_counter"
    assert [SessionCounter(path).advance() for _ in range(3)] == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600
    size = path.stat().st_size
    assert SessionCounter(path).advance() == 4
    assert path.stat().st_size == size
    path.write_text("torn")
    assert SessionCounter(path).value == 0
