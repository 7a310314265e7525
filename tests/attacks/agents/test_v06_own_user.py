"""V6: a job reads its node's credential and journal, other jobs' files, and the server's.

Two agents as root, two owners with a real user each. Everything that a job might want is
there and is read by root first, so that a refusal is a refusal and no missing file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.core.policy import Policy
from agents.errors import LaunchError
from agents.ranks.users import resolve
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import CommandAnswer, RankExited, RankStarted
from controlplane.protocol.launch import ReplicaLaunch, TrainerConfig
from tests.attacks.agents.separate import ALICE, BOB, NEEDS_ROOT, job, policy, workplace
from tests.integration.agents.conftest import ROOT, AgentProcess, start_order
from tests.integration.agents.server import Server

pytestmark = [NEEDS_ROOT, pytest.mark.timeout(120)]
REFUSED = {"EACCES", "EPERM"}


async def started(server: Server, order: ReplicaLaunch) -> int:
    """The rank's pid, once it has done its work."""
    command = await server.send(StartRanks(order), epoch=1, job_id=order.job_id, attempt=1)
    answer = await server.done(command)
    assert answer.state == "succeeded", answer.detail
    return next(body.pid for body in server.bodies(RankStarted) if body.ref.job_id == order.job_id)


async def answered(place: Path, order: StartRanks) -> CommandAnswer:
    """What an agent of its own answers to this order; no rank of it was started."""
    async with Server() as server:
        agent = AgentProcess(server, place / "n1" / "s", policy=policy(place))
        agent.state_dir.parent.mkdir(mode=0o711)
        agent.start()
        try:
            answer = await server.done(await server.send(order, epoch=1, job_id="job_1", attempt=1))
        finally:
            agent.kill()
        assert not server.bodies(RankStarted)
        return answer


async def results(server: Server, order: ReplicaLaunch, jobs_dir: Path) -> dict[str, Any]:
    """What the program found out; it writes that as its last act."""
    work = Path(order.config.checkpoint_dir) / "weights"
    await server.until(lambda: work.exists() or server.bodies(RankExited), 30.0)
    log = (jobs_dir / "logs" / order.job_id / "a1-r0-i1-k0.log").read_text()
    assert work.exists(), f"its own work was not possible: {log}"
    return json.loads(work.read_text())


def server_files(place: Path) -> list[Path]:
    """The secret key as an embedded server makes it, and a database beside it."""
    state = place / "server"
    state.mkdir(mode=0o700)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DJANGO_"))}
    env |= {"HOLDFAST_STATE_DIR": str(state), "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.embedded"}
    subprocess.run([sys.executable, "manage.py", "check"], cwd=ROOT, env=env, check=True, capture_output=True)
    (state / "holdfast.sqlite3").touch()
    return [state / "secret_key", state / "holdfast.sqlite3"]


def test_a_node_without_a_policy_starts_nothing_as_root() -> None:
    """The rest of this file gives one; this is what happens without."""
    with pytest.raises(LaunchError, match=r"users\.map"):
        resolve(Policy(), "alice", state_dir=Path("/nonexistent"))


async def test_a_job_reads_neither_its_agents_secrets_nor_other_jobs_nor_the_servers() -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        async with Server() as first, Server() as second:
            near = AgentProcess(first, place / "n1" / "s", policy=policy(place))
            far = AgentProcess(second, place / "n2" / "s", policy=policy(place))
            for agent in (near, far):
                agent.state_dir.parent.mkdir(mode=0o711)
                agent.start()
            try:
                victim, distant = job(place, "job_bob", "bob", stay=True), job(place, "job_far", "bob", stay=True)
                pids = [await started(first, victim), await started(second, distant)]
                for server, agent, order in ((first, near, victim), (second, far, distant)):
                    await results(server, order, agent.jobs_dir)

                secrets = [agent.state_dir / name for agent in (near, far) for name in ("credential", "journal")]
                secrets += [agent.state_dir.parent / "token" for agent in (near, far)]
                secrets += server_files(place)
                saved = [Path(order.config.checkpoint_dir) / "weights" for order in (victim, distant)]
                logs = [*near.jobs_dir.glob("logs/job_*/*.log"), *far.jobs_dir.glob("logs/job_*/*.log")]
                sockets = [*near.jobs_dir.glob("*/agent.sock"), *far.jobs_dir.glob("*/agent.sock")]
                doors = [*near.jobs_dir.glob("*/debug"), *far.jobs_dir.glob("*/debug")]
                agents = [agent.process.pid for agent in (near, far)]
                environments = [f"/proc/{pid}/environ" for pid in (*pids, *agents)]
                folders = [agent.state_dir for agent in (near, far)] + [path.parent for path in saved]
                for path in (*secrets, *saved, *logs):
                    assert path.exists(), path
                assert len(logs) == len(sockets) == len(doors) == 2
                wishes = {
                    "read": [str(path) for path in (*secrets, *saved, *logs, *environments)],
                    "write": [
                        str(path) for path in (*secrets, *saved, *logs, *(f / "new" for f in (*folders, *doors)))
                    ],
                    "list": [str(path) for path in (*folders, *doors, near.jobs_dir, *(s.parent for s in sockets))],
                    "connect": [str(path) for path in sockets],
                    "signal": [str(pid) for pid in (*pids, *agents)],
                }
                attack = job(place, "job_alice", "alice", stay=True, **wishes)
                await started(first, attack)
                found = await results(first, attack, near.jobs_dir)
            finally:
                near.kill()
                far.kill()
        for kind in ("read", "written", "listed", "connected", "signalled"):
            assert len(found[kind]) >= 2
            assert {target: said for target, said in found[kind].items() if said not in REFUSED} == {}
        assert (found["uid"], found["groups"], found["umask"]) == (ALICE, [ALICE], 0o077)
        assert (found["status"]["NoNewPrivs"], int(found["status"]["CapEff"], 16)) == ("1", 0)
        assert found["own_socket"].startswith("got"), "its own agent's socket is open to it"
        assert Path(attack.config.checkpoint_dir).stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_uid for path in saved} == {BOB}


@pytest.mark.parametrize("directory", ["/", "/proc/self", "/root/.ssh", "/etc", "{place}/checkpoints/../n1"])
async def test_a_start_that_would_save_outside_the_nodes_roots_is_refused(directory: str) -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        config = job(place, "job_1", "alice").config
        order = start_order(user="alice", config=_with(config, directory.format(place=place)))
        answer = await answered(place, order)
        assert answer.state == "failed"
        assert "this node's policy refuses the checkpoint directory" in answer.detail


async def test_a_link_in_a_root_for_checkpoints_leads_nowhere() -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        (place / "private").mkdir(mode=0o700)
        (place / "checkpoints" / "job_1").symlink_to(place / "private")
        answer = await answered(place, StartRanks(job(place, "job_1", "alice")))
        assert answer.state == "failed"
        assert "storage" in answer.detail
        assert (place / "private").stat().st_uid == 0
        assert list((place / "private").iterdir()) == []


async def test_an_owner_without_a_user_is_refused_with_what_to_do() -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        answer = await answered(place, StartRanks(job(place, "job_1", "mallory")))
        assert answer.state == "failed"
        assert "mallory" in answer.detail and "users.map" in answer.detail


def _with(config: TrainerConfig, directory: str) -> TrainerConfig:
    return msgspec.structs.replace(config, checkpoint_dir=directory)
