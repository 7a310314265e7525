"""What a rank does when a person commands it: beside its training, once, with an answer either way."""

import gc
import queue
import re
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.protocol.rank import FromRank
from controlplane.protocol.rank_commands import (
    AllocationsTraced,
    Answer,
    CarriedOut,
    CarryOut,
    CollectGarbage,
    GarbageCollected,
    Place,
    RankCommand,
    TraceAllocations,
    answer_of,
    apart,
)
from trainer.control import rank_commands
from trainer.control.rank_commands import RankCommands

WAIT_S = 10.0


class Node:
    """Unreachable, and its own neighbour: only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def answered(name: str, fields: dict[str, Any]) -> CarriedOut:
    """What the rank says."""
    said: queue.Queue[FromRank] = queue.Queue()
    RankCommands().put(CarryOut("cmd_1", name, fields), said.put)
    answer = said.get(timeout=WAIT_S)
    assert isinstance(answer, CarriedOut) and answer.command_id == "cmd_1"
    return answer


def carried_out(command: RankCommand) -> Answer:
    """What it has found, as the server reads it; its sentence is what it says of it."""
    answer = answered(*apart(command))
    assert answer.ok, answer.detail
    found = answer_of(apart(command)[0], answer.result)
    assert found is not None and found.sentence == answer.detail
    return found


@pytest.fixture
def tea(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Answer]], None]:
    """Have garbage collected in another way."""
    return lambda handler: monkeypatch.setitem(rank_commands.HANDLERS, CollectGarbage, handler)


def test_garbage_is_collected() -> None:
    gc.disable()
    try:
        gone = weakref.ref(Node())
        assert gone() is not None
        found = carried_out(CollectGarbage())
    finally:
        gc.enable()
    assert isinstance(found, GarbageCollected) and found.objects >= 1
    assert gone() is None


def test_what_python_allocates_meanwhile_and_keeps_is_told_by_line_or_by_file(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    # Its own clock alone: a thread that an earlier test left behind sleeps on `time.sleep` too, and would keep as much.
    clock = SimpleNamespace(sleep=lambda _seconds: kept.extend(bytes(1000) for _ in range(500)))
    monkeypatch.setattr(rank_commands, "time", clock)
    by_line = carried_out(TraceAllocations(duration_s=0.1))
    by_file = carried_out(TraceAllocations(duration_s=0.1, group_by="file"))
    for found, ends in ((by_line, r"test_rank_commands\.py:\d+$"), (by_file, r"test_rank_commands\.py$")):
        assert isinstance(found, AllocationsTraced) and found.held_bytes >= 500_000
        assert re.search(ends, found.places[0].where) and found.places[0].held_bytes >= 500_000
    assert not tracemalloc.is_tracing()


def test_a_program_that_traces_itself_goes_on_to(monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()
    try:
        answer = answered("trace_allocations", {})
        assert (answer.ok, tracemalloc.is_tracing()) == (False, True)
        assert "are being traced already" in answer.detail
    finally:
        tracemalloc.stop()


def test_what_is_unknown_or_fails_is_answered_and_raises_nothing(tea: Callable[..., None]) -> None:
    unknown = answered("tea", {"sugar": 2})
    assert (unknown.ok, unknown.detail) == (False, "this rank knows no command 'tea'")
    other = answered("trace_allocations", {"duration_s": 99.0})
    assert not other.ok and "<= 20.0" in other.detail

    def burns(_asked: CollectGarbage) -> Answer:
        raise RuntimeError("kettle")

    tea(burns)
    assert answered("collect_garbage", {}) == CarriedOut("cmd_1", False, "RuntimeError('kettle')")


def test_an_answer_that_does_not_fit_is_none(tea: Callable[..., None]) -> None:
    place = Place(where="x" * 1000, held_bytes=1, blocks=1)
    tea(lambda _asked: AllocationsTraced(held_bytes=1, places=(place,) * 9))
    answer = answered("collect_garbage", {})
    assert (answer.ok, answer.result) == (False, "")
    assert "more than 4000" in answer.detail


def test_a_repeated_one_is_done_once_and_the_caller_does_not_wait(tea: Callable[..., None]) -> None:
    done, go_on = list[int](), threading.Event()

    def brew(_asked: CollectGarbage) -> Answer:
        go_on.wait(WAIT_S)
        done.append(1)
        return GarbageCollected(objects=3)

    tea(brew)
    said: queue.Queue[FromRank] = queue.Queue()
    commands = RankCommands()
    for command_id in ("cmd_1", "cmd_1", "cmd_2"):
        commands.put(CarryOut(command_id, "collect_garbage"), said.put)
    assert said.empty()
    go_on.set()
    answers = [said.get(timeout=WAIT_S) for _ in range(2)]
    assert {(each.command_id, each.ok) for each in answers if isinstance(each, CarriedOut)} == {
        ("cmd_1", True), ("cmd_2", True),
    }  # fmt: skip
    assert len(done) == 2
