"""`holdfast bench fleet` where it starts nothing: what is refused, and in which words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.context import STATE, State
from controlplane.cli.exits import Exit
from controlplane.cli.main import main


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """holdfast("--agents", "2") -> (code, out, err)."""

    def run(*argv: str) -> tuple[int, str, str]:
        return main(["bench", "fleet", *argv]), *capsys.readouterr()

    yield run
    for name in State.__dataclass_fields__:
        setattr(STATE, name, getattr(State(), name))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--agents", "30000"), "agents: 30000 is out of range, 1 to 20000"),
        (("--interval", "0.01"), "interval: 0.01 is out of range"),
        (("--agents", "5", "--hostile", "5"), "hostile: 5 is out of range, 0 to 4"),
        (("--server", "http://10.0.0.1:8000"), "plain http:// to 10.0.0.1 shows the join token to others"),
        (("--server", "ftp://example.org"), "--server must be http://HOST:PORT or https://HOST[:PORT]"),
        (("--server", "https://u:p@example.org"), "--server must be http://HOST:PORT or https://HOST[:PORT]"),
        (("--server", "https://example.org"), "--server needs --join-token-file"),
        (
            ("--server", "https://example.org", "--sentinels", "2"),
            "--kill-web, --webs and --sentinels are of a stack that is started here",
        ),
        (
            ("--server", "https://example.org", "--kill-web"),
            "--kill-web, --webs and --sentinels are of a stack that is started here",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(holdfast: Any, argv: tuple[str, ...], said: str) -> None:
    code, out, err = holdfast(*argv)
    assert (code, out) == (Exit.USAGE, "") and said in err


def test_a_token_file_that_is_not_there_is_named(holdfast: Any, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    code, _, err = holdfast("--server", "http://127.0.0.1:1", "--join-token-file", str(missing))
    assert code == Exit.USAGE and f"{missing} cannot be read: No such file" in err


def test_a_server_that_is_not_there_is_said(holdfast: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("holdfast_join_x\n")
    code, out, err = holdfast("--agents", "2", "--server", "http://127.0.0.1:1", "--join-token-file", str(token))
    assert (code, out) == (Exit.UNAVAILABLE, "") and "cannot reach 127.0.0.1" in err
