"""What many sockets ask at once is asked at once, and each has its own answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controlplane.live.together import MOST, Together


class Asked:
    """A database that answers with the double, or with an error for what is negative; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.away = False

    def __call__(self, questions: Sequence[int]) -> list[int | Exception]:
        self.batches.append(len(questions))
        if self.away:
            raise ConnectionError("away")
        return [2 * question if question >= 0 else ValueError(str(question)) for question in questions]


async def beside(work: Callable[..., Any], *given: Any) -> Any:
    return await asyncio.to_thread(work, *given)


async def test_what_comes_while_one_is_under_way_is_one_batch_and_each_gets_its_own() -> None:
    asked = Asked()
    ask: Together[int, int] = Together(beside, asked)
    answers = await asyncio.gather(*(ask(number) for number in range(3 * MOST)))
    assert answers == [2 * number for number in range(3 * MOST)]
    assert len(asked.batches) <= 4
    assert max(asked.batches) <= MOST
    assert await ask(7) == 14


async def test_an_error_of_one_is_its_own_and_that_of_the_batch_is_everybodys() -> None:
    asked = Asked()
    ask: Together[int, int] = Together(beside, asked)
    found = await asyncio.gather(ask(1), ask(-1), ask(3), return_exceptions=True)
    assert (found[0], found[2]) == (2, 6)
    assert isinstance(found[1], ValueError)
    asked.away = True
    found = await asyncio.gather(ask(1), ask(2), return_exceptions=True)
    assert [type(each) for each in found] == [ConnectionError] * 2
    asked.away = False
    assert await ask(4) == 8, "and the next are asked"


async def test_who_has_left_is_not_asked_for() -> None:
    asked = Asked()
    ask: Together[int, int] = Together(beside, asked)
    leaves = asyncio.create_task(ask(1))
    await asyncio.sleep(0)
    leaves.cancel()
    assert await ask(2) == 4
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert sum(asked.batches) == 1
