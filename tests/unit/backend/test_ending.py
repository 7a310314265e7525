"""What a test has begun is over when it has ended it."""

import asyncio

import pytest

from tests.integration.backend import ending


async def test_a_task_that_loses_a_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AGAIN_S", 0.01)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await ending.end(task)
    assert (task.done(), lost) == (True, 3)


async def test_one_that_has_ended_by_an_error_disturbs_nobody() -> None:
    async def fails() -> None:
        raise OSError("gone")

    await ending.end(asyncio.create_task(fails()))
    await ending.end()
