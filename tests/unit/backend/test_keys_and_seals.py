"""The server's keys, and what is sealed with them: one claim each."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from agents.link.pins import Pins
from controlplane.protocol.signing import SIGNATURE_BYTES, from_text, signed_keys, to_text
from controlplane.runtime import batches, broker, keys, seal


@pytest.fixture(scope="module", autouse=True)
def _counted_nowhere() -> Iterator[None]:
    """There is no database here to count in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal.Tally, "note", lambda self, reason, detail="", *, number=1: None)
        yield


@pytest.fixture
def key_file(tmp_path: Path, settings) -> Path:  # type: ignore[no-untyped-def]
    path = tmp_path / "keys" / "signing_key"
    settings.SIGNING_KEY_FILE = path
    return path


def test_the_embedded_profile_makes_its_keys_once_and_for_itself_alone(key_file: Path) -> None:
    first = keys.server_public_keys()
    assert keys.server_public_keys() == first
    assert len(set(first)) == 2
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(key_file.parent) == ["signing_key"]


def test_processes_that_start_together_agree_on_one_key(key_file: Path) -> None:
    found: list[tuple[str, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(keys.server_public_keys())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_production_starts_with_no_key_of_its_own_making(key_file: Path, settings) -> None:  # type: ignore[no-untyped-def]
    settings.SIGNING_KEY_MADE = False
    with pytest.raises(ImproperlyConfigured, match="create_signing_key"):
        keys.current()
    call_command("create_signing_key")
    assert keys.server_public_keys()
    with pytest.raises(CommandError):
        call_command("create_signing_key")


def test_a_process_goes_on_with_its_keys_when_the_file_is_gone(key_file: Path) -> None:
    before = keys.server_public_keys()
    key_file.unlink()
    assert keys.server_public_keys() == before
    assert not key_file.exists(), "no other key is made in its place"


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o644, 0o666])
def test_a_key_that_others_could_read_or_change_is_not_used(key_file: Path, mode: int) -> None:
    keys.write_new(key_file)
    key_file.chmod(mode)
    with pytest.raises(ImproperlyConfigured, match="chmod"):
        keys.current()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"current": "x", "next": "y"}', b"\xff" * 50])
def test_a_damaged_key_file_says_what_to_do(key_file: Path, content: bytes) -> None:
    key_file.parent.mkdir()
    key_file.write_bytes(content)
    key_file.chmod(0o600)
    with pytest.raises(ImproperlyConfigured, match="restore it"):
        keys.current()


def test_a_rotation_is_followed_by_who_pinned_the_pair_before(key_file: Path) -> None:
    before = keys.server_public_keys()
    kept: list[tuple[str, ...]] = []
    pins = Pins(before, node_id="node_01", keep=kept.append)
    call_command("rotate_signing_key")
    after = keys.server_public_keys()
    assert after[0] == before[1]
    assert before[0] not in after
    assert pins.renew(after, keys.server_keys_signature())
    assert kept == [after]
    assert not Pins(("A" * 43,), node_id="n").renew(after, keys.server_keys_signature())
    key = Ed25519PublicKey.from_public_bytes(from_text(after[0], 32))
    key.verify(from_text(keys.server_keys_signature(), SIGNATURE_BYTES), signed_keys(after))


def test_a_command_of_the_key_before_is_still_known_as_ours(key_file: Path) -> None:
    name, signature = keys.sign_command(b"statement")
    keys.rotate(key_file)
    assert keys.is_ours(b"statement", signature, name)
    assert not keys.is_ours(b"statemenT", signature, name)
    keys.rotate(key_file)
    assert not keys.is_ours(b"statement", signature, name)


@given(st.binary(max_size=64), st.text(max_size=100))
def test_no_text_or_bytes_from_the_wire_break_the_pins(data: bytes, text: str) -> None:
    pins = Pins((to_text(b"\1" * 32),), node_id="node_01")
    assert not pins.renew((text,), text)
    assert not pins.renew((to_text(data),) * 9, to_text(data))


@given(st.binary(max_size=200))
def test_a_seal_opens_for_its_name_and_purpose_alone(payload: bytes) -> None:
    made = seal.seal("live", "node:1", payload)
    assert seal.unseal("live", "node:1", made, max_age_s=10.0)[0] == payload
    for purpose, name in (("parts", "node:1"), ("live", "node:2"), ("live", "node:1\0")):
        with pytest.raises(seal.Broken):
            seal.unseal(purpose, name, made, max_age_s=10.0)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_no_bit_of_a_sealed_message_can_be_changed(payload: bytes, data: st.DataObject) -> None:
    made = bytearray(seal.seal("live", "n", payload))
    made[data.draw(st.integers(0, len(made) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(seal.Broken):
        seal.unseal("live", "n", bytes(made), max_age_s=1e12)


@given(st.binary(max_size=300))
def test_bytes_that_nobody_sealed_open_nothing(data: bytes) -> None:
    with pytest.raises(seal.Broken):
        seal.unseal("live", "n", data, max_age_s=1e12)
    with pytest.raises(seal.Broken):
        batches.BatchReader().open(data)


def test_an_old_seal_is_not_opened() -> None:
    made = seal.seal("live", "n", b"x")
    with pytest.raises(seal.Broken, match="late"):
        seal.unseal("live", "n", made, max_age_s=-1.0)


def test_batches_are_taken_once_in_order_and_holes_are_counted() -> None:
    sealer, reader = batches.BatchSealer("w1"), batches.BatchReader()
    entries = [next(sealer.seal([])) for _ in range(5)]
    assert reader.open(entries[0]).number == 1
    assert reader.open(entries[3]).number == 4
    assert reader.missing == 2
    for entry in (entries[0], entries[1], entries[3]):
        with pytest.raises(seal.Broken, match="repeated"):
            reader.open(entry)
    assert reader.open(entries[4]).number == 5
    assert reader.missing == 2
    assert reader.unheard_s("w1") is not None
    assert reader.unheard_s("w2") is None


def test_a_great_batch_is_split_into_entries_that_the_reader_takes() -> None:
    sealer, reader = batches.BatchSealer("w1"), batches.BatchReader()
    items = [("node", "ses", 1.0, bytes([number]) * (256 << 10)) for number in range(40)]
    opened = [item for entry in sealer.seal(items) for item in reader.open(entry).items]
    assert [tuple(item) for item in opened] == items


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_no_message_without_a_seal_is_taken_from_the_broker(message: object) -> None:
    assert not broker.is_sealed(message, "queue:holdfast", max_age_s=60.0)


def test_a_message_of_the_broker_is_bound_to_its_queue_and_survives_its_return() -> None:
    message = {"body": "b", "headers": {"task": "t"}, "properties": {"delivery_info": {"exchange": "e"}}}
    made = broker.sealed(message, "queue:a")
    assert broker.is_sealed(made, "queue:a", max_age_s=60.0)
    assert not broker.is_sealed(made, "queue:b", max_age_s=60.0)
    assert not broker.is_sealed(made, "queue:a", max_age_s=-1.0)
    made["headers"]["redelivered"] = True
    made["properties"]["delivery_info"]["redelivered"] = True
    assert broker.is_sealed(made, "queue:a", max_age_s=60.0)
    made["headers"]["task"] = "u"
    assert not broker.is_sealed(made, "queue:a", max_age_s=60.0)
