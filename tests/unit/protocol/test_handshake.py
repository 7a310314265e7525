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
    Challenge,
    Proof,
    decode_bytes,
    encode_bytes,
    session_statement,
)

KEY = NodeKey.fresh()
NONCE = bytes(range(32))
CERTIFICATE = "5a" * 32
SIGNED_BEFORE = bytes.fromhex(
    "9ab1686f6c64666173742d6167656e742d7631c420000102030405060708090a0b0c0d0e0f101112131415161718191a"
    "1b1c1d1e1fa66e6f64655f31a162a16aa16d010202b0686f6c64666173742e6578616d706c65"
)
"""What the release before `tls_certificate` signed for `proof()` and `NONCE`."""


class ChallengeBefore(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="challenge"):
    """As the release before `bind_tls` read it."""

    nonce: bytes


class ProofBefore(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="proof"):
    """As the release before `tls_certificate` read it."""

    node_id: str
    boot_id: str
    journal_id: str
    machine_id: str = ""
    counter: int
    protocol_min: int
    protocol_max: int
    server_host: str
    signature: bytes


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
        {"protocol_min": 1}, {"protocol_max": 3}, {"server_host": "other.example"}, {"tls_certificate": CERTIFICATE},
    ],
)  # fmt: skip
def test_a_signature_covers_every_field(changes: dict[str, object]) -> None:
    signed = KEY.proof(NONCE, proof())
    assert verifies(KEY.public_key, signed.signature, session_statement(NONCE, signed))
    assert not verifies(KEY.public_key, signed.signature, session_statement(NONCE, proof(**changes)))
    assert not verifies(KEY.public_key, signed.signature, session_statement(bytes(32), signed))


def test_a_certificate_is_signed_and_can_neither_be_taken_away_nor_changed() -> None:
    bound = KEY.proof(NONCE, proof(tls_certificate=CERTIFICATE))
    assert verifies(KEY.public_key, bound.signature, session_statement(NONCE, bound))
    for other in ("", "5b" * 32):
        assert not verifies(KEY.public_key, bound.signature, session_statement(NONCE, proof(tls_certificate=other)))


def test_what_is_signed_without_a_certificate_is_what_was_signed_before_there_was_one() -> None:
    assert session_statement(NONCE, proof()) == SIGNED_BEFORE
    assert session_statement(NONCE, proof(tls_certificate=CERTIFICATE)) != SIGNED_BEFORE


@pytest.mark.parametrize("machine_id", ["m", ""])
def test_a_release_without_certificates_reads_what_this_one_sends_it(machine_id: str) -> None:
    said = KEY.proof(NONCE, proof(machine_id=machine_id))
    read = msgspec.msgpack.decode(encode_frame(said), type=ProofBefore)
    assert {name: getattr(read, name) for name in read.__struct_fields__} == {
        name: getattr(said, name) for name in said.__struct_fields__ if name != "tls_certificate"
    }
    assert msgspec.msgpack.decode(encode_frame(Challenge(NONCE)), type=ChallengeBefore) == ChallengeBefore(NONCE)
    with pytest.raises(msgspec.ValidationError, match="bind_tls"):
        msgspec.msgpack.decode(encode_frame(Challenge(NONCE, bind_tls=True)), type=ChallengeBefore)


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
    "changes",
    [
        {"counter": 0}, {"counter": 2**60}, {"boot_id": ""}, {"boot_id": "a b"}, {"server_host": "x" * 300},
        {"tls_certificate": "5a" * 31}, {"tls_certificate": "5A" * 32}, {"tls_certificate": "5a" * 33},
        {"tls_certificate": "zz" * 32},
    ],
)  # fmt: skip
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
