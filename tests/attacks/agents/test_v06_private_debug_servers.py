"""V6: what one job can do to another, or to an agent that is root, by way of sockets and files.

A job's user owns some of the places where the agent looks: it may put a link, a pipe or a
stranger's process number there.
"""

import asyncio
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from agents.core.events import Event, RankConnected, RankForkedHere
from agents.core.policy import Limits
from agents.errors import LaunchError
from agents.log import note
from agents.ranks import debug_client
from agents.ranks.cgroups import ControlGroups
from agents.ranks.files import acting_as, make_below, open_regular
from agents.ranks.hosts import HostKeeper
from agents.ranks.identity import find_by_environment, identity_of
from agents.ranks.logs import LogFiles, tail
from agents.ranks.places import Place, Places
from agents.ranks.socket import RankServer
from agents.ranks.users import RunAs
from agents.ranks.watcher import ProcessWatcher
from controlplane.protocol.codec import encode_line
from controlplane.protocol.frames import RankExited, RankStarted
from controlplane.protocol.launch import RankPlacement, RankRef
from controlplane.protocol.rank import RankForked, RankHello
from tests.attacks.agents.separate import ALICE, BOB, NEEDS_ROOT, workplace
from tests.integration.agents.conftest import AgentProcess, start_order, until_gone
from tests.integration.agents.server import Server

USER = RunAs(uid=ALICE, gid=ALICE, groups=(ALICE,), name=str(ALICE))
OWN = RankRef("job_a", 1, 0, 1, 0)
OTHERS = RankRef("job_b", 1, 0, 1, 0)


async def said_by(server: RankServer, place: Place, ref: RankRef, heard: list[Event]) -> bytes:
    """Say hello as `ref` on that job's socket; what came back until it was closed, or b"open"."""
    reader, writer = await asyncio.open_unix_connection(str(place.agent_socket))
    before = server.refused_lines
    writer.write(encode_line(RankHello(ref, os.getpid())))
    async with asyncio.timeout(10):
        while not heard and server.refused_lines == before:
            await asyncio.sleep(0.005)
    writer.close()
    return b"open" if heard else await reader.read()


async def test_a_rank_of_one_job_cannot_speak_as_a_rank_of_another(tmp_path: Path) -> None:
    heard: list[Event] = []
    server, places = RankServer(heard.append), Places(tmp_path / "j")
    places.open()
    place = places.prepare("job_a", None)
    server.open("job_a", place)
    try:
        assert await said_by(server, place, OTHERS, heard) == b""
        assert (heard, server.refused_lines) == ([], 1)
        assert await said_by(server, place, OWN, heard) == b"open"
        assert isinstance(heard[0], RankConnected)
    finally:
        server.close()


@NEEDS_ROOT
async def test_another_users_process_is_not_heard_even_where_it_can_connect(tmp_path: Path) -> None:
    with workplace() as folder:
        heard: list[Event] = []
        server, places = RankServer(heard.append), Places(folder / "j")
        places.open()
        place = places.prepare("job_a", USER)
        server.open("job_a", place)
        place.folder.chmod(0o711)
        place.agent_socket.chmod(0o666)
        line = encode_line(RankHello(OWN, 1)).decode()
        say = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(place.agent_socket)!r}); "
        say += f"s.sendall({line!r}.encode()); s.recv(1)"
        try:
            for uid, refused in ((BOB, 1), (ALICE, 1)):
                done = await asyncio.create_subprocess_exec(
                    "/usr/bin/env", "python3", "-c", say, user=uid, group=uid, extra_groups=(),
                    env={"PATH": "/usr/bin:/usr/local/bin"},
                )  # fmt: skip
                async with asyncio.timeout(20):
                    while server.refused_lines == 0 or (uid == ALICE and not heard):
                        await asyncio.sleep(0.01)
                if uid == ALICE:
                    done.kill()
                await done.wait()
                assert server.refused_lines == refused
            assert [event.conn_id for event in heard if isinstance(event, RankConnected)] == [2]
        finally:
            server.close()


@NEEDS_ROOT
async def test_a_host_cannot_have_another_users_process_watched_and_killed() -> None:
    heard: list[Event] = []
    loop = asyncio.get_running_loop()
    with workplace() as folder:
        keeper = HostKeeper("none", LogFiles(folder), ProcessWatcher(loop), heard.append)
        keeper._places["job_a"] = Place(folder, ALICE, ALICE)
        own = subprocess.Popen(["/bin/sleep", "60"], user=ALICE, group=ALICE, extra_groups=())
        try:
            host = identity_of(os.getpid())
            keeper._take("job_a", host, RankForked(OWN, os.getpid(), 1))
            assert heard == []
            keeper._take("job_a", host, RankForked(OWN, own.pid, 1))
            assert [type(event) for event in heard] == [RankForkedHere]
        finally:
            own.kill()
            own.wait()


@NEEDS_ROOT
def test_a_door_that_leads_to_somebody_elses_socket_is_asked_nothing() -> None:
    with workplace() as folder:
        places = Places(folder / "j")
        places.open()
        doors = places.prepare("job_a", USER).debug_servers
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "root.sock"))
            listener.listen()
            (doors / "4242.sock").symlink_to(folder / "root.sock")
            with pytest.raises(debug_client.DebugServerError, match="somebody else"):
                debug_client.ask(doors, 4242, "ping", timeout_s=2.0)
            connection, _ = listener.accept()
            assert connection.recv(100) == b""
            connection.close()


@NEEDS_ROOT
def test_a_link_in_a_jobs_place_shows_nobody_the_file_behind_it() -> None:
    with workplace() as folder:
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text("[1] the node's secret")
        places = Places(folder / "j")
        places.open()
        place = places.prepare("job_a", USER)
        (place.debug_servers / "4242.json").symlink_to(secret)
        assert debug_client.groups(place.debug_servers, 4242) == b""
        os.mkfifo(place.debug_servers / "4243.json")
        assert debug_client.groups(place.debug_servers, 4243) == b"", "and a pipe does not hold the agent up"
        logs = LogFiles(places.logs)
        log = logs.rank(OWN)
        log.symlink_to(secret)
        assert tail(log) == ""
        with pytest.raises(LaunchError):
            logs.create(log, place)
        assert logs.cap(1) == []
        assert secret.read_text() == "[1] the node's secret"
        assert secret.stat().st_uid == 0


@NEEDS_ROOT
def test_directories_are_made_for_a_job_without_following_links_or_entering_others_directories() -> None:
    with workplace() as folder:
        root, private = folder / "checkpoints", folder / "private"
        root.mkdir(mode=0o755)
        private.mkdir(mode=0o700)
        make_below(str(root), f"{root}/team/job_1", USER)
        assert (root / "team").stat().st_uid == 0
        assert ((root / "team" / "job_1").stat().st_uid, (root / "team" / "job_1").stat().st_mode & 0o777) == (
            ALICE,
            0o700,
        )
        make_below(str(root), f"{root}/team/job_1", USER)
        (root / "link").symlink_to(private)
        for path in (f"{root}/link", f"{root}/link/job_1"):
            with pytest.raises(OSError):
                make_below(str(root), path, USER)
        (root / "bobs").mkdir()
        os.chown(root / "bobs", BOB, BOB)
        for path in (f"{root}/bobs", f"{root}/bobs/job_1"):
            with pytest.raises(LaunchError, match="user"):
                make_below(str(root), path, USER)
        assert list(private.iterdir()) == list((root / "bobs").iterdir()) == []


@NEEDS_ROOT
def test_a_check_made_for_a_job_uses_files_with_its_users_rights_in_that_thread_alone() -> None:
    with workplace() as folder:
        secret = folder / "secret"
        secret.touch(0o600)
        with acting_as(USER), pytest.raises(PermissionError):
            os.close(open_regular(secret))
        os.close(open_regular(secret))
        assert os.getgroups() != [ALICE]


@NEEDS_ROOT
def test_a_process_of_another_user_is_not_adopted_for_its_environment() -> None:
    mark = json.dumps({"mark": os.getpid()})
    stranger = subprocess.Popen(
        ["/bin/sleep", "60"], env={"HOLDFAST_REF": mark}, user=BOB, group=BOB, extra_groups=(), start_new_session=True
    )
    try:
        assert find_by_environment("HOLDFAST_REF", mark, uid=ALICE) is None
        found = find_by_environment("HOLDFAST_REF", mark, uid=BOB)
        assert found is not None and found.pid == stranger.pid
    finally:
        stranger.kill()
        stranger.wait()


async def test_what_a_rank_hides_in_another_session_ends_with_it(server: Server, agent: AgentProcess) -> None:
    groups = ControlGroups(Limits)
    if groups.reason:
        pytest.skip(groups.reason)
    hides = "setsid sh -c 'echo hidden $$; exec sleep 600' & sleep 600"
    order = start_order(entrypoint=("/bin/sh", "-c", hides), world_size=1, ranks=(RankPlacement(0, 0),))
    await server.done(await server.send(order, epoch=1, job_id="job_1", attempt=1))
    pid = server.bodies(RankStarted)[0].pid
    (log,) = agent.jobs_dir.glob("logs/job_1/*.log")
    async with asyncio.timeout(10):
        while "hidden" not in log.read_text():
            await asyncio.sleep(0.01)
    hidden = int(log.read_text().split()[1])
    note("hidden", pid=hidden)
    os.kill(pid, 9)
    await server.until(lambda: server.bodies(RankExited))
    await until_gone(pid, hidden)
