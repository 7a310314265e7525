"""Questions to the database that many sockets have at once are asked at once.

One batch is under way at a time, and what comes meanwhile is the next: nobody waits for company, and the more come the
fewer statements each costs. Of the loop alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
MOST = 200
"""Questions of one batch."""
Run = Callable[..., Awaitable[Any]]


class Together(Generic[Question, Answer]):
    """`ask` gives the answers in the order of the questions, an exception for whose own it is; `run` calls it beside
    the loop."""

    def __init__(self, run: Run, ask: Callable[[Sequence[Question]], Sequence[Answer | Exception]]) -> None:
        self._run, self._ask = run, ask
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None

    async def __call__(self, question: Question) -> Answer:
        """Raises what the batch, or this question of it, has raised."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            # Who was cancelled meanwhile wants no answer.
            some = [(question, answer) for question, answer in some if not answer.done()]
            if some:
                await self._answer(some)

    async def _answer(self, some: Sequence[tuple[Question, "asyncio.Future[Answer]"]]) -> None:
        found: Sequence[Answer | Exception]
        try:
            found = await self._run(self._ask, [question for question, _ in some])
        except Exception as error:
            found = [error] * len(some)
        for (_, answer), given in zip(some, found, strict=True):
            if answer.done():
                continue
            if isinstance(given, Exception):
                answer.set_exception(given)
            else:
                answer.set_result(given)
