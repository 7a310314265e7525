"""A digest says by which algorithm it was made, and is compared by that one."""

import hashlib

import pytest

from controlplane.protocol import digests

CHUNKS = [b"one", b"", b"two" * 1000]
BLAKE2B = hashlib.blake2b(b"".join(CHUNKS), digest_size=16).hexdigest()


@pytest.mark.parametrize("algorithm", [digests.XXH3, digests.BLAKE2B])
def test_it_matches_its_own_content_alone_however_it_is_cut(algorithm: str) -> None:
    made = digests.digest_of(CHUNKS, algorithm)
    assert made.startswith(f"{algorithm}:")
    assert digests.matches(made, [b"".join(CHUNKS)])
    assert not digests.matches(made, [*CHUNKS, b"\0"])


def test_xxh3_is_what_is_written_where_xxhash_is_installed() -> None:
    assert digests.digest_of(CHUNKS).startswith("xxh3_128:")


def test_a_bare_blake2b_of_an_old_marker_still_compares() -> None:
    assert digests.matches(digests.committed("", BLAKE2B), CHUNKS)
    assert not digests.matches(digests.committed("", BLAKE2B[:-1] + "x"), CHUNKS)


@pytest.mark.parametrize("wanted", ["md5:00", "", "xxh64:00"])
def test_an_algorithm_that_is_not_known_is_no_difference(wanted: str) -> None:
    def unread() -> object:
        raise AssertionError("nothing is read")
        yield b""

    with pytest.raises(digests.UnknownDigest, match="known are"):
        digests.matches(wanted, unread())  # type: ignore[arg-type]


def test_without_xxhash_its_digests_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = digests.digest_of(CHUNKS)
    monkeypatch.setattr(digests, "xxh3_128", None)
    with pytest.raises(digests.UnknownDigest, match="install xxhash"):
        digests.matches(made, CHUNKS)
