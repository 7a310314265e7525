"""What an agent does for as long as it lives goes on after an error that nobody expected."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents import for_ever as module
from agents.commits import Committer
from agents.core.effects import Commit
from agents.core.events import Journaled, LinkDown
from agents.for_ever import for_ever
from agents.link.client import Link
from agents.link.journal import Journal
from agents.link.server import Server


async def wait_for(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not reached():
            await asyncio.sleep(0.01)


async def test_work_goes_on_after_an_error_and_ends_by_cancellation_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            if rounds == 2:
                raise OSError(24, "Too many open files")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(for_ever(work))
    await wait_for(lambda: rounds > 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert capsys.readouterr().err.count('"event":"internal error"') == 1


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", refused)


async def test_what_cannot_be_brought_to_disk_for_want_of_a_thread_is_answered_so_and_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Journaled] = []
    journal = Journal(tmp_path / "journal")
    committer = Committer(journal, answers.append)  # type: ignore[arg-type]
    running = asyncio.create_task(committer.run())
    with monkeypatch.context() as none:
        without_threads(none)
        committer.put(Commit(command_ids=("c1",), durable=True))
        await wait_for(lambda: len(answers) == 1)
    committer.put(Commit(command_ids=("c2",), durable=True))
    await wait_for(lambda: len(answers) == 2)
    running.cancel()
    journal.close()
    assert [(each.command_ids, each.error) for each in answers] == [(("c1",), "can't start new thread"), (("c2",), "")]


async def test_a_session_that_cannot_begin_is_tried_again_whatever_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    downs, notes = list[LinkDown](), list[str]()
    link = Link(
        Server(url="ws://127.0.0.1:9"), identity=None, hello=None, compose=lambda: None,  # type: ignore[arg-type]
        dispatch=downs.append, note=lambda text, **_: notes.append(text), jitter=lambda: 0.0,  # type: ignore[arg-type]
    )  # fmt: skip
    running = asyncio.create_task(link.run())
    await wait_for(lambda: len(downs) >= 2)
    running.cancel()
    assert not running.done() and set(notes) == {"internal error"}
