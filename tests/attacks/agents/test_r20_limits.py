"""A job that the node's policy limits never runs without its limits: on the machine's own controllers
where it gives us some, and on directories that look like version 2, version 1 and both (R20.8)."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.core import events as ev
from agents.core.policy import Limits
from agents.errors import LaunchError
from agents.ranks import limits
from agents.ranks.cgroups import ControlGroups
from agents.ranks.launch import Standing, start
from agents.ranks.limits import FOLDER
from agents.ranks.starting import Starter
from controlplane.protocol.launch import RankRef

MIB = 2**20
TREES = Path("/sys/fs/cgroup")
JOB = f"job_limits_{os.getpid()}"
REF = RankRef(job_id=JOB, attempt=1, replica=0, incarnation=1, rank=0)
ASKED = Limits(memory_bytes=64 * MIB, processes=12, cpus=1.5)
FILES = {2: ("memory.max", "pids.max", "cpu.max"), 1: ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us")}
TEXTS = {2: (str(64 * MIB), "12", "150000 100000"), 1: (str(64 * MIB), "12", "150000")}
CONTROLLERS = ("memory", "pids", "cpu")


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    """On the real controllers; every group is removed again."""
    before = set(TREES.glob(f"**/{FOLDER}"))
    found = ControlGroups(lambda: ASKED)
    if os.geteuid() != 0 or found.unlimited:
        pytest.skip(found.unlimited or "not root")
    yield found
    for _ in range(100):
        # What its processes have begun may take a moment to end.
        found.kill(REF)
        found.forget(JOB)
        if not list(TREES.glob(f"**/{FOLDER}/{JOB}")):
            break
        time.sleep(0.1)
    for folder in set(TREES.glob(f"**/{FOLDER}")) - before:
        with contextlib.suppress(OSError):  # Another agent of this machine is at it.
            folder.rmdir()
    assert list(TREES.glob(f"**/{FOLDER}/{JOB}")) == []


def run(groups: ControlGroups, *argv: str) -> tuple[int, str]:
    """As a rank of the job, in its groups."""
    ours, theirs = os.pipe()
    standing = Standing(cgroups=groups.rank(REF))
    process = start(argv, dict(os.environ), standing, stdout=theirs, stderr=theirs)
    os.close(theirs)
    with os.fdopen(ours) as said:
        text = said.read()
    return process.wait(timeout=30), text


def test_the_kernel_keeps_a_jobs_number_of_processes(groups: ControlGroups) -> None:
    many = "import os, time\nfor n in range(40):\n if os.fork() == 0: time.sleep(0.5); os._exit(0)\n"
    code, said = run(groups, sys.executable, "-c", many)
    assert (code, "Resource temporarily unavailable" in said) == (1, True), said


def test_the_kernel_keeps_a_jobs_memory(groups: ControlGroups) -> None:
    code, _ = run(groups, sys.executable, "-c", f"print(len(bytearray(b'x') * {256 * MIB}))")
    assert code == -9
    assert run(groups, sys.executable, "-c", f"print(len(bytearray(b'x') * {8 * MIB}))")[0] == 0


def test_all_processes_of_a_job_share_its_groups(groups: ControlGroups) -> None:
    host = groups.host(JOB)
    code, said = run(groups, "/bin/cat", "/proc/self/cgroup")
    assert code == 0
    assert sum(line.endswith(f"/{FOLDER}/{JOB}") or f"/{FOLDER}/{JOB}/" in line for line in said.splitlines()) >= 3
    assert host[1:] == groups.rank(REF)[1:]


@dataclass
class Machine:
    """Directories that look like a machine's control groups."""

    proc: Path
    tree: Path

    def two(self, *controllers: str) -> Path:
        """The agent's own group in version 2, with the files that the kernel would make."""
        own = self.tree / "unified" / "agent.slice"
        base = own / FOLDER
        (base / JOB).mkdir(parents=True)
        (own / "agent").mkdir()
        for file in (base / "cgroup.kill", own / "cgroup.subtree_control", own / "agent" / "cgroup.procs"):
            file.write_text("")
        (base / "cgroup.subtree_control").write_text("")
        (own / "cgroup.controllers").write_text(" ".join(controllers))
        for controller, file in zip(CONTROLLERS, FILES[2], strict=True):
            if controller in controllers:
                (base / JOB / file).write_text("max")
        self._add("0::/agent.slice", f"{self.tree}/unified", "cgroup2", "rw")
        return base / JOB

    def one(self, controller: str) -> Path:
        """The same of one controller of version 1."""
        name = "cpu,cpuacct" if controller == "cpu" else controller
        group = self.tree / name / "agent.slice" / FOLDER / JOB
        group.mkdir(parents=True)
        (group / dict(zip(CONTROLLERS, FILES[1], strict=True))[controller]).write_text("-1")
        self._add(f"4:{name}:/agent.slice", f"{self.tree}/{name}", "cgroup", f"rw,{name}")
        return group

    def groups(self, limits: Limits = ASKED) -> ControlGroups:
        """As an agent of this machine."""
        return ControlGroups(lambda: limits, proc=self.proc)

    def _add(self, own: str, mounted: str, kind: str, options: str) -> None:
        with (self.proc / "cgroup").open("a") as file:
            file.write(f"{own}\n")
        with (self.proc / "mountinfo").open("a") as file:
            file.write(f"41 31 0:38 / {mounted} rw,relatime shared:9 - {kind} {kind} {options}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("agents.ranks.cgroups.os.geteuid", lambda: 0)
    found = Machine(tmp_path / "proc", tmp_path / "cgroup")
    found.proc.mkdir()
    for name in ("cgroup", "mountinfo"):
        (found.proc / name).write_text("")
    return found


def written(group: Path, version: int) -> list[str]:
    return [(group / file).read_text()[: len(text)] for file, text in zip(FILES[version], TEXTS[version], strict=True)]


def test_version_two_gets_every_limit(machine: Machine) -> None:
    job = machine.two(*CONTROLLERS)
    groups = machine.groups()
    assert groups.unlimited == ""
    assert groups.rank(REF) == (job / "a1-r0-i1-k0",)
    assert written(job, 2) == list(TEXTS[2])
    assert groups.host(JOB) == (job / "host",)


def test_what_the_agent_has_started_leaves_its_group_with_it_and_nobody_else_does(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of version 2 gives no controllers while a process is in it: the child that reads NVML is one."""
    own = machine.two(*CONTROLLERS).parent.parent
    moved: list[str] = []
    plain = limits.write
    monkeypatch.setattr(
        limits, "write", lambda file, text: moved.append(text) if file.parent.name == "agent" else plain(file, text)
    )
    with subprocess.Popen(["/bin/sleep", "30"]) as child:
        (own / "cgroup.procs").write_text(f"1\n{os.getppid()}\n{os.getpid()}\n{child.pid}\n")
        assert machine.groups().unlimited == ""
        child.kill()
    assert {"0", str(child.pid)} <= {*moved} and not {"1", str(os.getppid())} & {*moved}


def test_a_rank_whose_group_cannot_be_made_is_refused_where_it_is_to_be_limited(machine: Machine) -> None:
    (machine.two(*CONTROLLERS) / "a1-r0-i1-k0").write_text("in the way")
    with pytest.raises(LaunchError, match="without it it has no limits"):
        machine.groups().rank(REF)
    assert machine.groups(Limits()).rank(REF) == ()


def test_version_one_gets_every_limit(machine: Machine) -> None:
    folders = [machine.one(controller) for controller in CONTROLLERS]
    groups = machine.groups()
    assert (groups.unlimited, groups.rank(REF)) == ("", tuple(folders))
    found = [(folder / file).read_text() for folder, file in zip(folders, FILES[1], strict=True)]
    assert found == list(TEXTS[1])


def test_a_rank_forked_by_a_host_from_before_the_limit_is_born_in_its_groups(machine: Machine) -> None:
    two = machine.two("memory", "cpu")
    one = machine.one("pids")
    (one / "cgroup.procs").write_text("")
    asked_for = [Limits()]
    groups = ControlGroups(lambda: asked_for[0], proc=machine.proc)
    assert groups.host(JOB) == (two / "host",)
    groups.before_fork(JOB, 4711)
    assert (one / "cgroup.procs").read_text() == "", "there is no limit"
    asked_for[0] = ASKED
    groups.before_fork(JOB, 4711)
    assert ((one / "cgroup.procs").read_text(), (one / "pids.max").read_text()) == ("4711", "12")
    (one / "cgroup.procs").unlink()
    with pytest.raises(LaunchError, match="the rank host cannot enter"):
        groups.before_fork(JOB, 4711)


def test_of_a_tree_that_is_mounted_twice_the_one_that_can_be_written_is_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine._add("4:pids:/agent.slice", f"{machine.tree}/shown", "cgroup", "ro,pids")
    (machine.tree / "shown" / "agent.slice").mkdir(parents=True)
    monkeypatch.setattr(limits, "_is_read_only", lambda group: "shown" in group.parts)
    one = machine.one("pids")
    assert machine.groups(Limits(processes=12)).rank(REF) == (one,)


def test_a_hybrid_machine_gets_each_limit_where_its_controller_is(machine: Machine) -> None:
    two = machine.two("memory", "cpu")
    one = machine.one("pids")
    assert machine.groups().host(JOB) == (two / "host", one)
    assert ((two / "memory.max").read_text(), (one / "pids.max").read_text()) == (str(64 * MIB), "12")


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_limit_that_has_no_controller_refuses_the_job_and_says_which(machine: Machine, controller: str) -> None:
    machine.two(*(name for name in CONTROLLERS if name != controller))
    groups = machine.groups()
    key = {"memory": "memory_bytes", "pids": "processes", "cpu": "cpus"}[controller]
    assert f"limits.{key}" in groups.unlimited
    for begin in (lambda: groups.host(JOB), lambda: groups.rank(REF)):
        with pytest.raises(LaunchError, match=rf"limits\.{key} = .* cannot be kept here: .*{controller}.*Delegate=yes"):
            begin()


@pytest.mark.parametrize("file", ["memory.max", "pids.max", "cpu.max"])
def test_a_limit_that_cannot_be_written_refuses_also_the_second_start(machine: Machine, file: str) -> None:
    job = machine.two(*CONTROLLERS)
    (job / file).unlink()
    groups = machine.groups()
    for _ in range(2):
        with pytest.raises(LaunchError, match=rf"cannot be kept here: .*{file}"):
            groups.rank(REF)
    (job / file).write_text("max")
    assert groups.rank(REF)


def test_no_groups_at_all_refuse_what_is_limited_and_nothing_else(machine: Machine) -> None:
    with pytest.raises(LaunchError, match="no cgroup2 is mounted here"):
        machine.groups().host(JOB)
    assert machine.groups(Limits()).host(JOB) == ()


def test_the_policy_of_now_counts_for_the_next_start(machine: Machine) -> None:
    job = machine.two(*CONTROLLERS)
    limits = [Limits()]
    groups = ControlGroups(lambda: limits[0], proc=machine.proc)
    groups.host(JOB)
    assert (job / "pids.max").read_text() == "max"
    limits[0] = Limits(processes=7)
    groups.host(JOB)
    assert (job / "pids.max").read_text()[:1] == "7"


def test_the_refusal_reaches_the_server_for_a_rank_and_for_a_host(machine: Machine) -> None:
    told: list[LaunchError] = []
    starter = Starter.__new__(Starter)
    starter.groups = machine.groups()
    place = SimpleNamespace(home=None)
    starter._open = lambda job_id, owner: place  # type: ignore[method-assign,assignment,return-value]
    wish = SimpleNamespace(ref=REF, launch=SimpleNamespace(user="ada"))
    spawned = starter.spawn(wish)  # type: ignore[arg-type]
    assert isinstance(spawned, ev.RankSpawnFailed) and "limits.memory_bytes" in spawned.error
    hosts = SimpleNamespace(start=None, failed=lambda job_id, error: told.append(error))
    starter.start_host(hosts, JOB, "ada")  # type: ignore[arg-type]
    assert "limits.memory_bytes" in str(told[0])
