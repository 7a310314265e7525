"""`holdfast rank debug` and `command` against a live server: what an agent answers, and when none does."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def an_agent(**columns: str) -> Iterator[None]:
    """It answers the next command to a rank so."""
    given = threading.Event()

    def answers() -> None:
        try:
            while not given.wait(0.05):
                if Command.objects.filter(kind="command_rank", state="queued").update(**columns):
                    return
        finally:
            connection.close()

    agent = threading.Thread(target=answers)
    agent.start()
    try:
        yield
    finally:
        given.set()
        agent.join()


def test_a_command_prints_what_its_rank_answers_or_why_it_failed(world: World, holdfast: Run) -> None:
    command = ("rank", "collect-garbage", "tiny", "1", "0")
    with an_agent(state="succeeded", detail="12 objects"):
        done = holdfast(*command)
    with an_agent(state="failed", detail="the rank ended"):
        failed = holdfast(*command)
    assert (done.code, done.out) == (Exit.OK, "12 objects\n")
    assert failed.code == Exit.CONFLICT and "the rank ended" in failed.err
    assert holdfast(*command, "--wait", "0.3").code == Exit.TIMEOUT


def test_the_fields_of_a_command_are_options_and_its_answer_can_be_read_whole(world: World, holdfast: Run) -> None:
    command = ("rank", "trace-allocations", "tiny", "1", "0")
    found = {"name": "trace_allocations", "held_bytes": 7, "places": [{"where": "a.py", "held_bytes": 7, "blocks": 1}]}
    with an_agent(state="succeeded", data=json.dumps(found)):
        result = holdfast(*command, "--duration-s", "2", "--group-by", "file", "-o", "json")
    assert json.loads(result.out)["result"] == found
    row = Command.objects.get(kind="command_rank")
    assert (row.body["name"], row.body["fields"]) == ("trace_allocations", {"duration_s": 2.0, "group_by": "file"})
    for wrong, words in ((("--duration-s", "99"), "20"), (("--group-by", "colour"), "'line', 'file'")):
        refused = holdfast(*command, *wrong)
        assert refused.code == Exit.USAGE and words in refused.err and f"Invalid value for '{wrong[0]}'" in refused.err
