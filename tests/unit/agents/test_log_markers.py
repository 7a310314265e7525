"""A marked line is told once at once, then rarely with its number, and never lost at a rank's end."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agents.core import events as ev
from agents.core.marks import REPEAT_S, take
from agents.core.state import Finding
from agents.ranks.logs import LogFiles
from agents.ranks.scan import MAX_PASS_BYTES, LogScanner, LogTail
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import LogMarked, RankExited
from tests.properties.agents.world import World, launch, order

CUDA = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def finding(marker: str = "cuda_error", count: int = 1) -> Finding:
    return Finding(marker=marker, line=marker, count=count)


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
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    while world.pending:
        world.deliver(0)
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


def test_only_whole_lines_are_read_each_once_and_the_unfinished_one_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text(f"step 1\n{CUDA}\n\x1b[31mdisk full on n1\x1b[0m\nCUDA err")
    tail = LogTail(path, {"full": "disk*n1"})
    assert [(one.marker, one.line) for one in tail.read()] == [("cuda_error", CUDA), ("full", "disk full on n1")]
    assert tail.read() == ()
    with open(path, "a") as log:
        log.write("or: x\nCUDA error: last")
    assert [one.line for one in tail.read()] == ["CUDA error: x"]
    assert [one.line for one in tail.read(last=True)] == ["CUDA error: last"]


def test_a_log_that_was_cut_is_followed_on_and_a_flood_is_read_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank.log"
    path.write_text("x" * 5_000 + "\n")
    tail = LogTail(path, {})
    tail.read()
    path.write_text(f"[earlier lines were cut]\n{CUDA}\n")
    assert tail.read() == ()
    with open(path, "a") as log:
        log.write(f"{CUDA}\n")
    assert [one.count for one in tail.read()] == [1]
    with open(path, "a") as log:
        log.write(f"{CUDA}\n" + "y" * (2 * MAX_PASS_BYTES) + f"\n{CUDA}\n")
    assert [one.count for one in tail.read()] == [1]
    assert tail.read() == ()


def test_a_ranks_last_words_come_before_its_end_and_an_adopted_log_is_not_read_again(tmp_path: Path) -> None:
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    while world.pending:
        world.deliver(0)
    logs = LogFiles(tmp_path)
    first, second = (world.state.ranks[ref] for ref in world.forked)
    for rank in (first, second):
        logs.rank(rank.ref).write_text(f"{CUDA}\n")
    scanner = LogScanner(logs, world.feed)
    scanner.follow(first)
    scanner.follow(second, from_end=True)
    for rank in (first, second):
        scanner.finish(rank.ref)
        world.kill_rank(rank.ref)
    while world.pending:
        world.deliver(0)
    kinds = [(type(kept.body), kept.body.ref) for kept in world.state.events
             if isinstance(kept.body, LogMarked | RankExited)]  # fmt: skip
    assert kinds == [(LogMarked, first.ref), (RankExited, first.ref), (RankExited, second.ref)]
