"""Which TLS certificates a proof may be bound to: of a file, after its renewal, and for whom none is needed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.link.keys import unsigned_proof
from controlplane.live.proof import offers_channel
from controlplane.protocol.handshake import CHANNEL_CERTIFICATE, CHANNEL_HEADER, Proof
from controlplane.runtime.channel import GRACE_S, LOOPBACK, MAX_EARLIER, Held, fault, fingerprint, good, renewed
from controlplane.runtime.tls_files import ShownCertificates, parse_paths
from tests.integration.agents.authority import Authority
from tests.integration.agents.authority import fingerprint as expected

OURS, THEIRS = "0a" * 32, "0b" * 32
ALLOWED = frozenset({OURS})


def proof(**changes: object) -> Proof:
    values = {
        "node_id": "node_1", "boot_id": "b", "journal_id": "j", "counter": 1, "protocol_min": 2, "protocol_max": 3,
        "server_host": "holdfast.example",
    }  # fmt: skip
    return unsigned_proof(**(values | changes))


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


def certificates(authority: Authority, count: int) -> list[bytes]:
    """As many files of one size, each with another certificate for the same name."""
    return [authority.issue("holdfast.example")[0].read_bytes().ljust(1_000, b"\n") for _ in range(count)]


def rewrite(path: Path, data: bytes, *, tick: int) -> None:
    """The file as a renewal leaves it, at a time of its own."""
    path.write_bytes(data)
    os.utime(path, ns=(tick, tick))


# --- the certificate of a file -------------------------------------------------------


def test_the_fingerprint_is_that_of_the_first_certificate_in_der(authority: Authority) -> None:
    path, key = authority.issue("holdfast.example")
    alone = path.read_bytes()
    for text in (alone, alone + authority.file.read_bytes(), key.read_bytes() + alone, b"# a comment\n" + alone):
        assert fingerprint(text) == expected(path)
    assert fingerprint(authority.file.read_bytes() + alone) == expected(authority.file)


@pytest.mark.parametrize(
    "data", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_what_holds_no_certificate_has_no_fingerprint(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        fingerprint(data)


# --- renewal -------------------------------------------------------------------------


def test_the_certificate_before_a_renewal_is_good_for_a_day_and_no_longer() -> None:
    held = renewed(renewed(None, OURS, 0.0), THEIRS, 100.0)
    assert good([held], 100.0) == {OURS, THEIRS}
    assert good([held], 100.0 + GRACE_S - 1.0) == {OURS, THEIRS}
    assert good([held], 100.0 + GRACE_S) == {THEIRS}
    assert GRACE_S == 24 * 3600


def test_a_file_that_holds_what_it_held_is_no_renewal() -> None:
    held = renewed(renewed(None, OURS, 0.0), THEIRS, 100.0)
    assert renewed(held, THEIRS, 200.0) is held


def test_a_renewal_that_is_undone_makes_the_older_one_current_for_good() -> None:
    held = renewed(renewed(renewed(None, OURS, 0.0), THEIRS, 100.0), OURS, 200.0)
    assert held == Held(current=OURS, earlier=((THEIRS, 200.0 + GRACE_S),))
    assert good([held], 300.0 + 2 * GRACE_S) == {OURS}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0.0, GRACE_S)), min_size=1, max_size=40))
def test_only_what_the_file_held_within_a_day_is_good_and_few_of_those(steps: list[tuple[str, float]]) -> None:
    now_s, held, left_s = 0.0, None, {}
    for current, passed_s in steps:
        now_s += passed_s
        if held is not None and held.current != current:
            left_s[held.current] = now_s
        held = renewed(held, current, now_s)
        allowed = good([held], now_s)
        assert current in allowed
        assert len(allowed) <= MAX_EARLIER + 1
        assert all(now_s - left_s[one] < GRACE_S for one in allowed - {current})


def test_of_several_files_each_counts() -> None:
    assert good([Held(current=OURS), Held(current=THEIRS)], 0.0) == {OURS, THEIRS}


# --- who is refused, with which words ------------------------------------------------


def test_a_proof_bound_to_our_certificate_has_no_fault() -> None:
    assert fault(proof(tls_certificate=OURS), ALLOWED, offered=True) == ""


@pytest.mark.parametrize("host", sorted(LOOPBACK))
def test_who_dialled_loopback_without_tls_needs_no_certificate(host: str) -> None:
    assert fault(proof(server_host=host), ALLOWED, offered=False) == ""


@pytest.mark.parametrize("host", ["holdfast.example", "127.0.0.2", "localhost.example", "10.0.0.1", ""])
def test_nobody_else_goes_without(host: str) -> None:
    assert fault(proof(server_host=host), ALLOWED, offered=False)
    assert fault(proof(server_host=host), ALLOWED, offered=True)


@pytest.mark.parametrize("host", ["holdfast.example", "localhost"])
def test_another_certificate_is_refused_on_loopback_too(host: str) -> None:
    assert THEIRS in fault(proof(server_host=host, tls_certificate=THEIRS), ALLOWED, offered=True)


@pytest.mark.parametrize(
    ("certificate", "offered", "words"),
    [
        (THEIRS, True, ["HOLDFAST_TLS_CERTIFICATE", "'holdfast.example'", "renewed", "proxy that ends TLS"]),
        ("", True, ["HOLDFAST_TLS_CERTIFICATE", "changes their messages", "directly"]),
        ("", False, ["HOLDFAST_TLS_CERTIFICATE", "Upgrade the agent", "wss://", "X-Holdfast-Channel"]),
    ],
    ids=["another", "asked and not given", "not offered"],
)
def test_the_words_say_what_happened_and_how_it_is_mended(certificate: str, offered: bool, words: list[str]) -> None:
    said = fault(proof(tls_certificate=certificate), ALLOWED, offered=offered)
    assert [word for word in [*words, "refused"] if word not in said] == []


# --- the offer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "offers"),
    [
        ([(b"x-holdfast-channel", b"tls-certificate")], True),
        ([(b"host", b"h"), (b"X-Holdfast-Channel", b" tls-certificate ")], True),
        ([(b"x-holdfast-channel", b"exporter")], False),
        ([(b"x-holdfast-channel", b"")], False),
        ([(b"x-other", b"tls-certificate")], False),
        ([], False),
    ],
)
def test_an_agent_offers_it_by_one_header(headers: list[tuple[bytes, bytes]], offers: bool) -> None:
    assert offers_channel({"headers": headers}) == offers
    assert (CHANNEL_HEADER, CHANNEL_CERTIFICATE) == ("X-Holdfast-Channel", "tls-certificate")


# --- the files -----------------------------------------------------------------------


def test_a_renewed_file_is_read_again_and_its_last_certificate_stays_good_for_a_day(
    tmp_path: Path, authority: Authority
) -> None:
    first, second, third = certificates(authority, 3)
    path, clock = tmp_path / "tls.crt", Clock()
    rewrite(path, first, tick=1)
    shown = ShownCertificates([path], clock=clock)
    assert shown.required
    assert shown.good() == {fingerprint(first)}
    rewrite(path, second, tick=2)
    assert shown.good() == {fingerprint(first), fingerprint(second)}, "another time"
    clock.now_s += GRACE_S
    assert shown.good() == {fingerprint(second)}
    rewrite(tmp_path / "new", third, tick=2)
    os.replace(tmp_path / "new", path)
    assert shown.good() == {fingerprint(second), fingerprint(third)}, "another file of that name"
    rewrite(path, first + b"\n", tick=2)
    assert shown.good() == {fingerprint(second), fingerprint(third), fingerprint(first)}, "another size"


def test_a_file_that_did_not_change_is_not_read(tmp_path: Path, authority: Authority) -> None:
    path = tmp_path / "tls.crt"
    [pem] = certificates(authority, 1)
    rewrite(path, pem, tick=1)
    shown = ShownCertificates([path])
    rewrite(path, b"#" * len(pem), tick=1)
    assert shown.good() == {fingerprint(pem)}
    assert shown._faults == {}


@pytest.mark.parametrize("broken", [b"", b"-----BEGIN CERT".ljust(1_000), None], ids=["empty", "torn", "gone"])
def test_a_file_that_is_being_written_costs_nothing_and_is_read_once_it_is_whole(
    tmp_path: Path, authority: Authority, broken: bytes | None
) -> None:
    first, second = certificates(authority, 2)
    path = tmp_path / "tls.crt"
    rewrite(path, first, tick=1)
    shown = ShownCertificates([path])
    if broken is None:
        path.unlink()
    else:
        rewrite(path, broken, tick=2)
    assert [shown.good() for _ in range(3)] == [{fingerprint(first)}] * 3
    assert list(shown._faults) == [path]
    rewrite(path, second, tick=2)
    assert shown.good() == {fingerprint(first), fingerprint(second)}
    assert shown._faults == {}


def test_none_is_required_where_none_is_named() -> None:
    assert parse_paths("") == ()
    assert not ShownCertificates(parse_paths("")).required


def test_several_files_are_named_by_colons(tmp_path: Path, authority: Authority) -> None:
    paths = []
    for number, pem in enumerate(certificates(authority, 2)):
        paths.append(tmp_path / f"{number}.crt")
        paths[-1].write_bytes(pem)
    named = parse_paths(os.pathsep.join(map(str, paths)))
    assert named == tuple(paths)
    assert ShownCertificates(named).good() == {expected(path) for path in paths}


def test_a_file_that_is_none_is_named_with_what_to_do(tmp_path: Path, authority: Authority) -> None:
    good_one, none = authority.issue("holdfast.example")[0], tmp_path / "text"
    none.write_text("no certificate")
    for text, says in (
        (str(tmp_path / "away"), "away cannot be read (No such file or directory). A certificate is no secret"),
        (str(tmp_path), "cannot be read (Is a directory)"),
        (f"{good_one}{os.pathsep}{none}", "text has no certificate in PEM; name the file that the proxy shows"),
        (os.pathsep, "names no file; leave it empty"),
    ):
        with pytest.raises(ValueError, match=r"HOLDFAST_TLS_CERTIFICATE: ") as raised:
            parse_paths(text)
        assert says in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what is closed to others")
def test_a_file_in_a_closed_directory_is_named(tmp_path: Path, authority: Authority) -> None:
    closed = tmp_path / "live"
    closed.mkdir()
    (closed / "fullchain.pem").write_bytes(certificates(authority, 1)[0])
    closed.chmod(0)
    try:
        with pytest.raises(ValueError, match="Permission denied"):
            parse_paths(str(closed / "fullchain.pem"))
    finally:
        closed.chmod(0o700)
