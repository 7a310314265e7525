"""One table of questions to a rank: each is answered, offered and explained."""

import os
import re
from pathlib import Path

import pytest

from agents.ranks import diagnose
from agents.ranks.identity import identity_of
from controlplane.protocol.diagnostics import AT_A_HANG, HANG, LOOKS, TABLE, Look, looks_of, named
from trainer.control.debug_common import HANDLERS, PROFILE

ROOT = Path(__file__).resolve().parents[3]
TORCH = ("ping", "fr_trace_json", "wait_counter_values")
"""What PyTorch's worker server answers by itself."""


@pytest.mark.parametrize("asked", TABLE, ids=lambda asked: asked.name)
def test_a_question_has_words_and_somebody_who_answers(asked: Look) -> None:
    assert asked.what and asked.timeout_s > 0.0 and asked.ttl_s > asked.timeout_s
    assert asked.handler or asked.name in diagnose._LOOKS
    assert not asked.handler or asked.handler in (*TORCH, *HANDLERS)


def test_every_handler_of_the_door_is_asked_by_a_question_and_nobody_answers_what_is_not_asked() -> None:
    assert set(HANDLERS) <= {asked.handler for asked in TABLE}
    assert set(diagnose._LOOKS) <= set(LOOKS)
    assert PROFILE in HANDLERS


@pytest.mark.parametrize("name", LOOKS)
def test_a_question_is_explained_where_people_look(name: str) -> None:
    text = (ROOT / "docs" / "debugging.md").read_text(encoding="ascii")
    assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE)
    (line,) = [row for row in (ROOT / "docs" / "cli.md").read_text().splitlines() if "`holdfast rank debug" in row]
    assert name in line
    assert name in named()


@pytest.mark.parametrize("name", LOOKS)
def test_a_question_is_put_by_a_test(name: str) -> None:
    folders = (ROOT / "tests" / "integration", ROOT / "tests" / "unit" / "agents")
    files = [path for folder in folders for path in sorted(folder.rglob("test_*.py")) if path != Path(__file__)]
    assert any(re.search(rf'(look|debug|asked?)\([^)]*"{name}"', path.read_text(encoding="utf-8")) for path in files)


def test_names_are_single_looks_or_what_is_asked_at_a_hang() -> None:
    assert [looks_of(name) for name in LOOKS] == [(name,) for name in LOOKS]
    assert looks_of(HANG) == AT_A_HANG and looks_of("tea") == ()


def test_a_question_of_the_table_alone_is_asked_at_its_handler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[tuple[str, float]] = []

    def ask(doors: Path, pid: int, handler: str, *, timeout_s: float) -> bytes:
        found.append((handler, timeout_s))
        return b"seven\x1b[2J"

    identity = identity_of(os.getpid())
    assert identity is not None
    monkeypatch.setattr(diagnose.debug_client, "ask", ask)
    monkeypatch.setitem(
        diagnose.BY_NAME, "memory", Look(name="memory", what="m", handler="holdfast_memory", timeout_s=3.0)
    )
    monkeypatch.setitem(diagnose.BY_NAME, "trace", Look(name="trace", what="t", handler="holdfast_trace", timed=True))
    subject = diagnose.Subject(
        rank=0, identity=identity, log_path=tmp_path / "log", debug_servers=tmp_path, duration_s=4.0
    )
    text, method = diagnose.look("memory", subject)
    assert (text.startswith("seven"), "\x1b" in text, method) == (True, False, "debug server")
    diagnose.look("trace", subject)
    assert found == [("holdfast_memory", 3.0), ("holdfast_trace?duration=4", 6.0)]
