"""What a rank does when a person commands it: beside its training, once, with an answer either way."""

import gc
import queue
import threading
import weakref

import pytest

from controlplane.protocol.rank import FromRank
from controlplane.protocol.rank_commands import CarriedOut, CarryOut
from trainer.control import rank_commands
from trainer.control.rank_commands import RankCommands

WAIT_S = 10.0


class Node:
    """Unreachable, and its own neighbour: only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def carried_out(name: str, value: float = 0.0) -> CarriedOut:
    """What the rank answers."""
    said: queue.Queue[FromRank] = queue.Queue()
    RankCommands().put(CarryOut("cmd_1", name, value), said.put)
    answer = said.get(timeout=WAIT_S)
    assert isinstance(answer, CarriedOut) and answer.command_id == "cmd_1"
    return answer


def test_garbage_is_collected() -> None:
    gc.disable()
    try:
        gone = weakref.ref(Node())
        assert gone() is not None
        answer = carried_out("collect_garbage")
    finally:
        gc.enable()
    assert answer.ok and "unreachable objects were freed" in answer.detail
    assert gone() is None


def test_what_is_unknown_or_fails_is_answered_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = carried_out("tea")
    assert (unknown.ok, unknown.detail) == (False, "this rank knows no command 'tea'")

    def burns(_value: float) -> str:
        raise RuntimeError("kettle")

    monkeypatch.setitem(rank_commands.HANDLERS, "tea", burns)
    assert carried_out("tea") == CarriedOut("cmd_1", False, "RuntimeError('kettle')")


def test_a_repeated_one_is_done_once_and_the_caller_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    done, go_on = list[float](), threading.Event()

    def brew(value: float) -> str:
        go_on.wait(WAIT_S)
        done.append(value)
        return "brewed"

    monkeypatch.setitem(rank_commands.HANDLERS, "tea", brew)
    said: queue.Queue[FromRank] = queue.Queue()
    commands = RankCommands()
    for _ in range(2):
        commands.put(CarryOut("cmd_1", "tea", 3.0), said.put)
    commands.put(CarryOut("cmd_2", "tea", 4.0), said.put)
    assert said.empty()
    go_on.set()
    assert {said.get(timeout=WAIT_S) for _ in range(2)} == {
        CarriedOut("cmd_1", True, "brewed"),
        CarriedOut("cmd_2", True, "brewed"),
    }
    assert sorted(done) == [3.0, 4.0]
