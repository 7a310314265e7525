"""A reading that hangs or breaks costs its own subject alone, and never the agent."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agents.config import load
from agents.core.effects import CheckNode
from agents.core.events import NodeRead
from agents.examine import Examiner
from agents.probes import node_checks
from agents.probes.sampler import InlineSampler
from agents.probes.simulated import SimulatedProbe
from controlplane.protocol.frames import NodeCheck
from tests.properties.agents.world import OURS, launch

LATE = (NodeCheck("storage", "no answer within 0.5 s: a file system hangs; unmount or repair it"),)


def examiner(told: list[NodeRead], *options: str) -> Examiner:
    probe = SimulatedProbe(count=1, node_name="n1")
    sampler = InlineSampler(probe, lambda samples: None, lambda xid: None)
    return Examiner(load(["--min-free-mib", "0", *options], {}), sampler, told.append, deadline_s=0.5, **OURS)


def wish(command_id: str, path: Path) -> CheckNode:
    ours = launch()
    return CheckNode(command_id, msgspec.structs.replace(
        ours, config=msgspec.structs.replace(ours.config, checkpoint_dir=str(path))
    ))  # fmt: skip


class DeadFileSystem:
    """Whoever touches `path` waits until it is `mended`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = str(path)
        self.read: Callable[[str], node_checks.Storage] = node_checks.read_storage
        self.mended = threading.Event()
        self.touched = 0
        monkeypatch.setattr(node_checks, "read_storage", self.touch)

    def touch(self, path: str) -> node_checks.Storage:
        if path == self.path:
            self.touched += 1
            self.mended.wait(10.0)
        return self.read(path)


async def test_a_jobs_dead_path_is_no_fault_of_the_node_nor_of_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = DeadFileSystem(tmp_path / "dead", monkeypatch)
    told: list[NodeRead] = []
    one = examiner(told, "--check-paths", str(tmp_path))
    await one.examine(wish("cmd_1", tmp_path / "dead"))
    await one.check()
    await one.examine(wish("cmd_2", tmp_path / "dead"))
    await one.examine(wish("cmd_3", tmp_path / "sound"))
    assert [(read.command_id, read.failed, read.launch_failed) for read in told] == [
        ("cmd_1", (), LATE), ("", (), ()), ("cmd_2", (), LATE), ("cmd_3", (), ()),
    ]  # fmt: skip
    assert dead.touched == 1, "no second reading while the first one hangs"
    dead.mended.set()
    while told[-1].command_id != "cmd_4" or told[-1].launch_failed:
        await asyncio.sleep(0.01)
        await one.examine(wish("cmd_4", tmp_path / "dead"))
    assert dead.touched > 1


async def test_a_dead_path_of_the_nodes_own_is_its_fault_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = DeadFileSystem(tmp_path, monkeypatch)
    told: list[NodeRead] = []
    one = examiner(told, "--check-paths", str(tmp_path))
    for _ in range(2):
        await one.check()
    assert [read.failed for read in told] == [LATE, LATE] and dead.touched == 1
    dead.mended.set()
    while told[-1].failed:
        await asyncio.sleep(0.01)
        await one.check()


def test_a_reading_that_hangs_does_not_hold_up_the_agents_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = DeadFileSystem(tmp_path, monkeypatch)
    told: list[NodeRead] = []
    asyncio.run(examiner(told, "--check-paths", str(tmp_path)).check())
    assert not dead.mended.is_set() and [read.failed for read in told] == [LATE]
    assert any(thread.name == "node-check" for thread in threading.enumerate()), "it hangs still"
    dead.mended.set()


async def test_a_check_that_breaks_is_noted_and_keeps_no_start_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(node_checks, "read_node", broken)
    monkeypatch.setattr(node_checks, "read_launch", broken)
    told: list[NodeRead] = []
    await examiner(told).examine(wish("cmd_1", tmp_path))
    assert [(read.command_id, read.failed, read.launch_failed) for read in told] == [("cmd_1", (), ())]
    assert capfd.readouterr().err.count('"internal error"') == 2
