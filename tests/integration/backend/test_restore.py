"""The drill: a backup is taken, work goes on, the backup is restored with agents running (O3, O4, F29).

Real web, sentinel, Redis and database, real agents, real processes of users' own programs. A copy
of the drill with ranks that train is tests/scenes/test_restore.py.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from controlplane.demo.private_postgres import find_binaries
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import cancel_job, submit_job
from controlplane.protocol import spec as specs
from controlplane.runtime.models import Event
from tests.integration.agents.conftest import SAME_USER, end_everything_of, is_running
from tests.integration.backend.conftest import eventually, job_spec
from tests.integration.backend.fake_agent import join_token
from tests.integration.backend.servers import Process, Stack, database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

PROGRAM = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"


class Backup:
    """As docs/backup.md says it: `sqlite3 .backup`, or `pg_dump --format=custom`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "yesterday"

    def take(self) -> "Backup":
        """While everything runs."""
        if connection.vendor == "sqlite":
            _copy(str(connection.settings_dict["NAME"]), str(self.path))
        else:
            _postgres("pg_dump", "--format=custom", f"--file={self.path}", database_url())
        return self

    def restore(self) -> None:
        """The server's processes have ended; what was written since is lost."""
        connections.close_all()
        if connection.vendor == "sqlite":
            _copy(str(self.path), str(connection.settings_dict["NAME"]))
        else:
            options = ("--clean", "--if-exists", "--single-transaction")
            _postgres("pg_restore", *options, f"--dbname={database_url()}", str(self.path))


def _copy(source: str, target: str) -> None:
    with closing(sqlite3.connect(source, uri=True)) as old, closing(sqlite3.connect(target, uri=True)) as new:
        old.backup(new)


def _postgres(program: str, *arguments: str) -> None:
    subprocess.run([str(find_binaries() / program), *arguments], check=True, capture_output=True)


class Agents:
    """Real agents, each with a state directory of its own."""

    def __init__(self, directory: Path, stack: Stack) -> None:
        self.directory, self.stack = directory, stack
        self.processes: dict[str, Process] = {}

    def start(self, name: str, token: str) -> None:
        place = self.directory / name
        place.mkdir()
        for file, text in (("token", token), ("policy.toml", SAME_USER)):
            (place / file).touch(0o600)
            (place / file).write_text(text)
        argv = [
            sys.executable, "-m", "agents", "--server", self.stack.url.replace("http://", "ws://"), "--name", name,
            "--state-dir", str(place / "s"), "--probe", "simulated", "--devices", "2",
            "--policy-file", str(place / "policy.toml"), "--jobs-dir", str(place / "jobs"),
            "--join-token-file", str(place / "token"),
        ]  # fmt: skip
        self.processes[name] = Process(f"agent-{name}", argv, {}, place)
        self.processes[name].start()

    def again(self, name: str, token: str) -> None:
        """Ended and started with another token, as documented."""
        self.processes[name].kill()
        (self.directory / name / "token").write_text(token)
        self.processes[name].start()

    def stop(self) -> None:
        for name, process in self.processes.items():
            process.kill()
            end_everything_of(self.directory / name / "s")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{process.tail(25)}" for name, process in self.processes.items())


@pytest.fixture
def agents(stack: Stack, tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path, stack)
    yield made
    made.stop()


async def restored(stack: Stack, backup: Backup, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The server ends, its database is set back, it starts again; agents and ranks live on."""
    for process in (stack.web, stack.sentinel):
        process.kill()
    await sync_to_async(backup.restore)()
    meanwhile()
    stack.web.start()
    stack.sentinel.start()
    await asyncio.to_thread(stack.wait_for_web)


async def submit(name: str) -> str:
    """A job of one rank of an own program that leaves when it is asked to; its id."""
    spec = job_spec(
        entrypoint=(sys.executable, "-c", PROGRAM),
        resources=specs.Resources(nodes=1, gpus_per_node=1, min_replicas=1),
        parallelism=specs.Parallelism(),
    )
    spec = msgspec.structs.replace(spec, metadata=specs.Metadata(name=name))
    job = await sync_to_async(submit_job)(spec, owner="ada", actor="ada")
    return str(job.id)


async def process_of(job_id: str, agents: Agents) -> int:
    """The pid of its rank, once the server knows it."""
    rows = Rank.objects.filter(replica__attempt__job_id=job_id, released_at=None, pid__isnull=False)
    try:
        pid = await eventually("the rank runs", lambda: rows.values_list("pid", flat=True).first(), stack=agents.stack)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agents.logs()}") from error
    return int(pid)


async def gone(pid: int, what: str, agents: Agents) -> None:
    try:
        await eventually(what, lambda: not is_running(pid), stack=agents.stack)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agents.logs()}") from error


def state_of(job_id: str) -> str:
    return str(Job.objects.get(pk=job_id).state)


def told(kind: str) -> bool:
    return Event.objects.filter(kind=kind).exists()


async def welcomed(name: str, agents: Agents) -> None:
    row = Node.objects.filter(name=name, connected=True, session_id__gt="")
    try:
        await eventually(f"{name} is welcomed", row.exists, stack=agents.stack)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agents.logs()}") from error


async def cancel(job_id: str) -> None:
    await sync_to_async(cancel_job)(job_id, reason="drill", actor="ada")


async def test_after_a_restore_with_agents_running_the_server_learns_what_is_true(
    stack: Stack, agents: Agents, tmp_path: Path
) -> None:
    agents.start("n1", await sync_to_async(join_token)())
    agents.start("n2", await sync_to_async(join_token)())
    await welcomed("n1", agents)
    await welcomed("n2", agents)
    goes_on, ends = await submit("goes-on"), await submit("ends")
    lives, ended = await process_of(goes_on, agents), await process_of(ends, agents)
    dies = await submit("dies")
    victim = await process_of(dies, agents)
    backup = await sync_to_async(Backup(tmp_path).take)()

    await cancel(ends)
    await gone(ended, "the cancelled job's rank is gone", agents)
    late = await process_of(await submit("late"), agents)
    agents.start("n4", await sync_to_async(join_token)())
    await welcomed("n4", agents)

    # A second fault: a rank dies while the server is being restored.
    await restored(stack, backup, meanwhile=lambda: os.kill(victim, signal.SIGKILL))

    await eventually("the ended job has ended", lambda: state_of(ends) == "cancelled", stack=stack)
    await gone(late, "the rank that no row knows is stopped", agents)
    await eventually("it is told of", lambda: told("node.unknown_ranks"), stack=stack)
    again = Rank.objects.filter(replica__attempt__job_id=dies, released_at=None, pid__isnull=False).exclude(pid=victim)
    await eventually("the dead rank's job runs again", again.exists, stack=stack)
    assert is_running(lives), "what the backup knows and the agent has goes on"
    assert await process_of(goes_on, agents) == lives

    # New agents are welcomed and start what they are told (O4).
    agents.start("n3", await sync_to_async(join_token)())
    await welcomed("n3", agents)
    fresh = [await process_of(await submit(f"fresh-{number}"), agents) for number in range(3)]
    expired = Command.objects.filter(kind="start_ranks", state="expired")
    assert await sync_to_async(lambda: list(expired.values_list("detail", flat=True)))() == []

    # A node that was enrolled after the backup says what it needs, and gets in with that.
    await eventually("n4 is refused", lambda: "no fresh join token" in agents.processes["n4"].log.read_text())
    agents.again("n4", await sync_to_async(join_token)())
    await welcomed("n4", agents)

    # The documented cancel works.
    for job_id in (goes_on, dies):
        await cancel(job_id)
    await gone(lives, "a cancel ends what was restored", agents)
    assert all(map(is_running, fresh))
