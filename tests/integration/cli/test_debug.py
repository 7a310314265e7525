"""`holdfast rank debug` and `command` against a live server: what an agent answers, and when none does."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

from controlplane.cli.exits import Exit
from controlplane.dispatch.models import Command
from controlplane.recovery.models import RankLook
from controlplane.runtime.clock import now
from tests.integration.cli.conftest import World

Run = Callable[..., Any]


def test_a_rank_is_looked_at_and_its_answer_printed(world: World, holdfast: Run) -> None:
    answer = "one\n\x1b[31mtwo"

    asked = threading.Event()

    def agent_answers() -> None:
        try:
            while not asked.wait(0.05):
                for order in Command.objects.filter(kind="collect_stacks"):
                    RankLook.objects.create(
                        id="look_1", job_id=order.job_id, command_id=order.id, replica=1, incarnation=1, rank=0,
                        look="stacks", method="kernel", text=answer, at=now(),
                    )  # fmt: skip
                    return
        finally:
            connection.close()

    agent = threading.Thread(target=agent_answers)
    agent.start()
    try:
        result = holdfast("rank", "debug", "tiny", "1", "0")
    finally:
        asked.set()
        agent.join()
    assert (result.code, result.out) == (Exit.OK, "one\n\\x1b[31mtwo\n")
    assert "1.1/0: kernel" in result.err


def test_a_look_that_the_agent_refuses_or_never_answers_says_so(world: World, holdfast: Run) -> None:
    result = holdfast("rank", "debug", "tiny", "1", "0", "ping", "--wait", "0.3")
    assert result.code == Exit.TIMEOUT
    Command.objects.filter(kind="collect_stacks").update(state="failed", detail="no such rank is running here")
    busy = holdfast("rank", "debug", "tiny", "1", "7")
    assert (busy.code, "has no rank 7" in busy.err) == (Exit.NOT_FOUND, True)


def test_a_command_prints_what_its_rank_answers_or_why_it_failed(world: World, holdfast: Run) -> None:
    for state, detail, code in (("succeeded", "12 objects", Exit.OK), ("failed", "the rank ended", Exit.CONFLICT)):
        asked = threading.Event()

        def agent_answers(state: str = state, detail: str = detail, asked: threading.Event = asked) -> None:
            try:
                while not asked.wait(0.05):
                    found = Command.objects.filter(kind="command_rank", state="queued")
                    if found.update(state=state, detail=detail):
                        return
            finally:
                connection.close()

        agent = threading.Thread(target=agent_answers)
        agent.start()
        try:
            result = holdfast("rank", "command", "tiny", "1", "0", "collect-garbage")
        finally:
            asked.set()
            agent.join()
        assert result.code == code and detail in (result.out if code == Exit.OK else result.err)
    late = holdfast("rank", "command", "tiny", "1", "0", "collect-garbage", "--wait", "0.3")
    assert late.code == Exit.TIMEOUT
