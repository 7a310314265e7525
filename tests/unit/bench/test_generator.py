"""The generator's clock, and how one of its processes ends: with its stdin, and never silently."""

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.access.join_tokens import MAX_USES
from controlplane.bench import generator as module
from controlplane.bench import script
from controlplane.bench.generator import Generator, Line, Task
from controlplane.bench.players import Player, Players
from controlplane.bench.run import Wanted, parts_of
from controlplane.bench.script import Fleet
from controlplane.bench.stack import _leave_logs
from controlplane.bench.tally import Tally

INTERVAL_S = 0.2


def task(**changes: Any) -> Task:
    given: dict[str, Any] = {
        "fleet": Fleet(agents=20, devices=1, interval_s=INTERVAL_S, duration_s=5.0),
        "part": 0,
        "parts": 1,
        "servers": ["http://127.0.0.1:1"],
        "tokens": ["holdfast_join_x"],
        "uses": 20,
        "run_id": "r",
        "behind_tls": True,
    }
    return Task(**given | changes)


class Beats:
    """In the place of an agent: when its heartbeats were due."""

    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self.due_s: list[float] = []

    def beat(self, due_s: float) -> None:
        self.due_s.append(due_s)


async def test_a_clock_that_was_late_leaves_beats_out_and_lets_each_agent_keep_its_place() -> None:
    made = Generator(task())
    agents = {number: Beats() for number in range(20)}
    made._agents = agents  # type: ignore[assignment]
    pacer = asyncio.create_task(made._pace())
    await asyncio.sleep(2 * INTERVAL_S)
    time.sleep(4.4 * INTERVAL_S)
    await asyncio.sleep(2 * INTERVAL_S)
    pacer.cancel()
    assert made._tally.skipped >= 20 * 3
    for beats in agents.values():
        steps = [(due_s - beats.due_s[0]) / INTERVAL_S for due_s in beats.due_s]
        assert steps == pytest.approx([round(step) for step in steps], abs=1e-6), "its moment within the interval"


async def test_a_clock_that_stands_is_an_error_and_no_quiet_fleet() -> None:
    made = Generator(task())

    class Broken(Beats):
        def beat(self, due_s: float) -> None:
            raise ValueError("no frame can be made")

    made._agents = {0: Broken()}  # type: ignore[dict-item]
    made._pacer = asyncio.create_task(made._pace())
    made.check()
    await asyncio.sleep(2 * INTERVAL_S)
    with pytest.raises(ValueError, match="no frame can be made"):
        made.check()


async def test_the_end_of_its_stdin_ends_it_while_it_enrols(monkeypatch: pytest.MonkeyPatch) -> None:
    enrolled: list[int] = []

    def patiently(registrar: Any, said: Any, token: str) -> Any:
        time.sleep(0.1)
        enrolled.append(1)
        return SimpleNamespace()

    monkeypatch.setattr(module, "_patiently", patiently)
    said: list[Line] = []
    monkeypatch.setattr(module, "say", said.append)
    words = asyncio.StreamReader()
    made = Generator(task(fleet=Fleet(agents=2_000, devices=1, duration_s=5.0), uses=2_000))
    serving = asyncio.create_task(module.serve(made, words))
    await asyncio.sleep(0.3)
    words.feed_eof()
    await asyncio.wait_for(serving, 10.0)
    assert len(enrolled) < 200 and not any(line.done for line in said)


def test_where_one_process_cannot_be_started_those_before_it_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Player] = []
    begin = Player.begin

    def second_fails(player: Player, task: Task) -> None:
        started.append(player)
        if len(started) == 2:
            raise OSError("no more processes")
        begin(player, task)

    monkeypatch.setattr(Player, "begin", second_fails)
    with pytest.raises(OSError, match="no more processes"), Players([task(), task(), task()]):
        pass
    assert len(started) == 2 and all(player._process.returncode is not None for player in started)


def test_of_a_stack_that_failed_its_logs_are_left_and_no_key(tmp_path: Any) -> None:
    for name in ("logs", "state"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "store_key").write_text("secret")
    _leave_logs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"] and (tmp_path / "logs" / "file").exists()


@pytest.mark.parametrize(("agents", "generators", "parts"), [(10, 16, 10), (10, 2, 2), (10, 0, 1), (13_001, 0, 3)])
def test_no_process_plays_nobody(agents: int, generators: int, parts: int) -> None:
    assert parts_of(Wanted(fleet=Fleet(agents=agents), generators=generators)) == parts


def test_a_join_token_is_good_for_as_many_agents_as_the_server_lets_it() -> None:
    assert script.AGENTS_A_TOKEN == MAX_USES


def test_a_tally_begins_its_window_with_nothing_late() -> None:
    tally = Tally(random.Random(1), skipped=5)
    tally.begin()
    assert tally.skipped == 0 and tally.lateness.total == 0
