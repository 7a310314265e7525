"""A marked line is told once at once, then rarely with its number, and never lost at a rank's end."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.core import events as ev
from agents.core.marks import REPEAT_S, take
from agents.core.state import Finding
from agents.ranks import scan
from agents.ranks.logs import LogFiles
from agents.ranks.scan import MAX_PASS_BYTES, LogScanner, LogTail
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import LogMarked, RankExited
from tests.properties.agents.world import World, launch, order

OOM = "std::bad_alloc"
CUDA = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def finding(marker: str = "cuda_error", count: int = 1) -> Finding:
    return Finding(marker=marker, line=marker, count=count)


def with_ranks() -> World:
    """Two ranks run; the agent knows their processes."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    while world.pending:
        world.deliver(0)
    return world


def test_a_repeated_marker_is_counted_and_told_once_a_minute() -> None:
    marks, told = take({}, (finding(),), 0.0, last=False)
    assert [one.count for one in told] == [1]
    for second in range(1, 60):
        marks, told = take(marks, (finding(count=2),), float(second), last=False)
        assert told == ()
    marks, told = take(marks, (), REPEAT_S, last=False)
    assert [one.count for one in told] == [118]
    assert take(marks, (), 500.0, last=False)[1] == ()


ROUNDS = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=4), max_size=40)


@given(ROUNDS, st.floats(0.5, 30.0))
def test_every_line_is_told_of_by_the_end_and_no_marker_twice_within_a_minute(
    rounds: list[list[tuple[str, int]]], every_s: float
) -> None:
    marks, now_s, heard = {}, 0.0, 0
    last_told: dict[str, float] = {}
    for found in rounds:
        now_s += every_s
        marks, told = take(marks, tuple(finding(name, count) for name, count in found), now_s, last=False)
        for one in told:
            assert now_s - last_told.get(one.marker, -REPEAT_S) >= REPEAT_S
            last_told[one.marker] = now_s
            heard += one.count
    _, told = take(marks, (), now_s, last=True)
    assert heard + sum(one.count for one in told) == sum(count for found in rounds for _, count in found)


def test_the_core_tells_the_line_and_tells_it_of_a_rank_it_has_forgotten_too() -> None:
    world = with_ranks()
    ref = world.forked[0]
    for now_s in (100.0, 101.0):
        world.feed(ev.LogRead(now_s=now_s, ref=ref, found=(finding(),)))
    world.kill_rank(ref)
    while world.pending:
        world.deliver(0)
    assert ref not in world.state.ranks
    world.feed(ev.LogRead(now_s=102.0, ref=ref, found=(finding("out_of_memory"),), last=True))
    bodies = [kept.body for kept in world.state.events if isinstance(kept.body, LogMarked)]
    assert [(body.ref, body.marker, body.count) for body in bodies] == [
        (ref, "cuda_error", 1), (ref, "out_of_memory", 1),
    ]  # fmt: skip


def new(tail: LogTail, *, last: bool = False) -> tuple[Finding, ...]:
    tail.read(last=last)
    return tail.take()[0]


def test_only_whole_lines_are_read_each_once_and_the_unfinished_one_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text(f"step 1\n{CUDA}\n\x1b[31mdisk full on n1\x1b[0m\nCUDA err")
    tail = LogTail(path, {"full": "disk*n1"})
    assert [(one.marker, one.line) for one in new(tail)] == [("cuda_error", CUDA), ("full", "disk full on n1")]
    assert new(tail) == ()
    with open(path, "a") as log:
        log.write("or: x\nCUDA error: last")
    assert [one.line for one in new(tail)] == ["CUDA error: x"]
    assert [one.line for one in new(tail, last=True)] == ["CUDA error: last"]
    with open(path, "a") as log:
        log.write(f"\n{CUDA}\n")
    assert new(tail) == (), "a process of its group that outlived it is not the rank"


def test_a_log_that_was_cut_is_followed_on_and_a_flood_is_read_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text("x" * 5_000 + "\n")
    tail = LogTail(path, {})
    assert new(tail) == ()
    path.write_text(f"[earlier lines were cut]\n{CUDA}\n")
    assert new(tail) == ()
    with open(path, "a") as log:
        log.write(f"{CUDA}\n")
    assert [one.count for one in new(tail)] == [1]
    with open(path, "a") as log:
        log.write(f"{CUDA}\n" + "y" * (2 * MAX_PASS_BYTES) + f"\n{CUDA}\n")
    assert [one.count for one in new(tail)] == [1]
    assert new(tail) == ()


def scanner_of(world: World, logs: LogFiles) -> LogScanner:
    """As the agent makes it at its start."""
    scanner = LogScanner(logs, lambda event: world.feed(replace(event, now_s=world.now_s)))
    for rank in world.state.ranks.values():
        scanner.follow(rank)
    return scanner


def append(logs: LogFiles, ref, *lines: str) -> None:
    with open(logs.rank(ref), "a") as log:
        log.writelines(f"{line}\n" for line in lines)


def told(world: World) -> list[tuple[str, str]]:
    return [(type(kept.body).__name__, kept.body.marker if isinstance(kept.body, LogMarked) else "")
            for kept in world.state.events if isinstance(kept.body, LogMarked | RankExited)]  # fmt: skip


async def test_what_came_while_no_agent_ran_is_told_before_the_end_and_nothing_else_again(tmp_path: Path) -> None:
    world, logs = with_ranks(), LogFiles(tmp_path)
    first, second = world.forked
    for ref in (first, second):
        append(logs, ref, "step 1", CUDA)
    await scanner_of(world, logs).scan()
    world.restart_agent()
    append(logs, first, "step 2", OOM)
    append(logs, second, "step 2")
    scanner = scanner_of(world, logs)
    scanner.finish(first)
    world.kill_rank(first)
    await scanner.scan()
    while world.pending:
        world.deliver(0)
    cuda, oom = ("LogMarked", "cuda_error"), ("LogMarked", "out_of_memory")
    assert told(world)[:4] == [cuda, cuda, oom, ("RankExited", "")]
    assert oom not in told(world)[4:] and cuda not in told(world)[4:]


async def test_what_a_pass_has_read_is_told_before_the_end_of_a_rank_that_ends_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, logs = with_ranks(), LogFiles(tmp_path)
    ref, _ = world.forked
    scanner = scanner_of(world, logs)
    append(logs, ref, CUDA)
    await scanner.scan()
    append(logs, ref, CUDA)
    loop, read_all = asyncio.get_running_loop(), scan._read_all

    def end() -> None:
        scanner.finish(ref)
        world.kill_rank(ref)
        while world.pending:
            world.deliver(0)

    def read_and_end(tails: tuple) -> object:
        found = read_all(tails)
        loop.call_soon_threadsafe(end)
        return found

    monkeypatch.setattr(scan, "_read_all", read_and_end)
    await scanner.scan()
    marked, ended = ("LogMarked", "cuda_error"), ("RankExited", "")
    assert told(world) == [marked, marked, ended, ended], "the second line was only counted until then"


def test_a_log_that_was_cut_since_the_last_agent_is_read_from_its_begin(tmp_path: Path) -> None:
    world, logs = with_ranks(), LogFiles(tmp_path)
    ref, _ = world.forked
    append(logs, ref, "x" * 1_000, CUDA)
    asyncio.run(scanner_of(world, logs).scan())
    world.restart_agent()
    logs.rank(ref).write_text(f"{OOM}\n")
    scanner_of(world, logs).finish(ref)
    assert told(world) == [("LogMarked", "cuda_error"), ("LogMarked", "out_of_memory")]


ACTIONS = st.lists(
    st.one_of(st.sampled_from((CUDA, OOM, "step", "scan", "restart")), st.floats(1.0, 70.0)), max_size=20
)


@settings(max_examples=40, deadline=None)
@given(ACTIONS)
@example([CUDA, "scan", CUDA, OOM, "scan", "restart"])
def test_no_line_is_lost_by_a_restart_and_none_told_twice_without_one(actions: list[str | float]) -> None:
    world, written = with_ranks(), 0
    ref = world.forked[0]

    async def live(logs: LogFiles) -> None:
        nonlocal written
        scanner = scanner_of(world, logs)
        for action in actions:
            if isinstance(action, float):
                world.now_s += action
            elif action == "scan":
                await scanner.scan()
            elif action == "restart":
                world.restart_agent()
                scanner = scanner_of(world, logs)
            else:
                append(logs, ref, action)
                written += action != "step"
        scanner.finish(ref)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(live(LogFiles(Path(directory))))
    heard = sum(kept.body.count for kept in world.state.events if isinstance(kept.body, LogMarked))
    assert heard >= written
    assert heard == written or "restart" in actions
