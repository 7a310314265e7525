"""What a control group counts of the kernel's OOM killer, over directories laid out as version 2 and version 1."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.core.state import Identity
from agents.ranks import unseen
from agents.ranks.limits import group_of
from agents.ranks.memory_events import OomCounts

PID = 4711
TICKS = os.sysconf("SC_CLK_TCK")
RANK = Identity(PID, 1000 * TICKS)
NOTED = f"3,1,2000000000,-;Memory cgroup out of memory: Killed process {PID} (python) total-vm:91234kB"


class Tree:
    """A process in `agent/holdfast/job_1/a1-r0-i1-k0` below a mounted tree of control groups."""

    def __init__(self, folder: Path, version: int, *, own_count: bool = True) -> None:
        self.proc, mount = folder / "proc", folder / "cgroup"
        self.job = mount / "agent" / "holdfast" / "job_1"
        self.rank = self.job / "a1-r0-i1-k0"
        self.rank.mkdir(parents=True)
        self.version = version
        self.counting = self.rank if own_count else self.job
        self.count(0)
        for pid in (PID, PID + 1):
            (self.proc / str(pid)).mkdir(parents=True)
            controllers, kind, options = ("", "cgroup2", "rw") if version == 2 else ("memory", "cgroup", "rw,memory")
            line = f"{0 if version == 2 else 7}:{controllers}:/agent/holdfast/job_1/a1-r0-i1-k0\n"
            (self.proc / str(pid) / "cgroup").write_text("3:cpu:/elsewhere\n" + line)
            (self.proc / str(pid) / "mountinfo").write_text(f"30 20 0:26 / {mount} rw - {kind} {kind} {options}\n")

    def count(self, oom_kill: int) -> None:
        if self.version == 2:
            text = f"low 0\nhigh 0\nmax 812\noom {oom_kill}\noom_kill {oom_kill}\noom_group_kill 0\n"
            (self.counting / "memory.events").write_text(text)
        else:
            text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kill}\n"
            (self.counting / "memory.oom_control").write_text(text)

    def limit(self, text: str) -> None:
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        (self.job / name).write_text(text + "\n")


def words(version: int, before: int, after: int, limit: str) -> str:
    name = "memory.events" if version == 2 else "memory.oom_control"
    counted = f"{name} oom_kill {before} -> {after}, {limit}"
    return f"the kernel's OOM killer ended a process of its control group ({counted})"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("limit", "told"), [("2147483648", "limit 2 GiB"), ("max", "no limit"), (str(2**63 - 4096), "no limit")]
)
def test_an_end_that_the_group_has_counted_is_told_with_the_limit(
    tmp_path: Path, version: int, limit: str, told: str
) -> None:
    tree = Tree(tmp_path, version)
    tree.limit(limit)
    counted = OomCounts(tree.proc).begin(PID)
    tree.count(1)
    found = unseen.of_end(RANK, signal.SIGKILL, counted, records=[])
    assert found == unseen.Hint("out_of_memory", words(version, 0, 1, told))


def test_the_nearest_group_that_counts_is_read(tmp_path: Path) -> None:
    """A controller that is on for jobs is not on below them."""
    tree = Tree(tmp_path, 2, own_count=False)
    counted = OomCounts(tree.proc).begin(PID)
    tree.count(1)
    assert counted() == words(2, 0, 1, "no limit")


@pytest.mark.parametrize("version", [1, 2])
def test_each_count_explains_one_end(tmp_path: Path, version: int) -> None:
    """Of two ranks in one group one was ended by the kernel; the other by its agent, after it."""
    tree = Tree(tmp_path, version)
    counts = OomCounts(tree.proc)
    first, second = counts.begin(PID), counts.begin(PID + 1)
    tree.count(1)
    assert first() and not second()
    tree.count(2)
    assert second() == words(version, 1, 2, "no limit")


def test_what_was_counted_before_a_process_began_explains_nothing_of_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    tree.count(3)
    assert OomCounts(tree.proc).begin(PID)() == ""


def test_where_no_group_counts_or_it_is_gone_nothing_is_claimed(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    counted = OomCounts(tree.proc).begin(PID)
    (tree.rank / "memory.events").unlink()
    assert counted() == OomCounts(tree.proc).begin(PID)() == OomCounts(tree.proc).begin(99)() == ""


@pytest.mark.parametrize(("number", "asked"), [(signal.SIGKILL, True), (None, True), (signal.SIGSEGV, False)])
def test_only_an_end_by_sigkill_or_one_that_nobody_saw_is_asked_about(number: int | None, asked: bool) -> None:
    calls: list[bool] = []

    def counted() -> str:
        calls.append(True)
        return "counted"

    found = unseen.of_end(RANK, number, counted, records=[])
    assert (bool(calls), found.cause) == (asked, "out_of_memory" if asked else "")


def test_both_words_of_the_kernel_stand_together_and_its_log_comes_first() -> None:
    found = unseen.of_end(RANK, signal.SIGKILL, lambda: "counted", records=[NOTED])
    assert found == unseen.Hint("out_of_memory", f"{unseen.OOM_IN_GROUP}; counted")
    fault = f"3,1,2000000000,-;python[{PID}]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so"
    assert unseen.of_end(RANK, None, lambda: "counted", records=[fault]).cause == "segfault"


def _group_of_ours() -> Path | None:
    """A new group with 48 MiB in the tree of version 1, or of 2 where memory may be limited in it; None: not here."""
    for controller in ("memory", ""):
        try:
            own = group_of(Path("/proc/self"), controller)
            if own is None:
                continue
            group = own / f"holdfast-oom-{os.getpid()}"
            group.mkdir()
            try:
                (group / ("memory.limit_in_bytes" if controller else "memory.max")).write_text(str(48 << 20))
            except OSError:
                group.rmdir()
                continue
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
            with contextlib.suppress(OSError):
                (group / "memory.memsw.limit_in_bytes").write_text(str(48 << 20))
            return group
        except OSError:
            continue
    return None


def test_the_kernel_itself_ends_a_process_that_takes_more_than_its_group_may_have() -> None:
    group = _group_of_ours()
    if group is None:
        pytest.skip("no control group with a memory limit can be made here")
    try:
        greedy = "import sys; sys.stdin.readline(); held = [bytearray(1 << 20) for _ in range(400)]"
        with subprocess.Popen([sys.executable, "-c", greedy], stdin=subprocess.PIPE) as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            counted = OomCounts().begin(child.pid)
            assert child.stdin is not None and counted() == ""
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.wait(30.0) == -signal.SIGKILL
            told = counted()
    finally:
        group.rmdir()
    assert told.endswith(" oom_kill 0 -> 1, limit 48 MiB)") and told.startswith(
        "the kernel's OOM killer ended a process"
    )
