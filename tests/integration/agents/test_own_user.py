"""A real rank host and a real Megatron rank that are not root, under an agent that is."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agents.ranks.identity import uid_of
from controlplane.demo.ports import free_port
from controlplane.protocol.commands import CollectStacks, DeliverInstall, DeliverView, RequestSave, StopRanks
from controlplane.protocol.frames import RankExited, RankJoined, RankSaid, RankStarted, StacksCollected
from controlplane.protocol.launch import RankPlacement, TrainerConfig
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.rank import CheckpointReport, StepReport
from controlplane.protocol.store_keys import store_token
from tests.attacks.agents.separate import ALICE, NEEDS_ROOT, policy, within_reach, workplace
from tests.integration.agents.conftest import ROOT, AgentProcess, is_running, launch, start_order, until_gone
from tests.integration.agents.server import Server

pytest.importorskip("trainer.host", reason="the trainer is not installed")
pytestmark = [pytest.mark.trainer, NEEDS_ROOT, pytest.mark.timeout(180)]
STORE_KEY = b"the store's key in these tests, 32 bytes or more"
JOB = {"job_id": "job_1", "attempt": 1}


def said(server: Server, kind: type) -> list:
    return [body.report for body in server.bodies(RankSaid) if isinstance(body.report, kind)]


def trainers_config(port: int, saved: Path) -> TrainerConfig:
    plain = launch().config
    return msgspec.structs.replace(
        plain,
        store=f"127.0.0.1:{port}",
        store_token=store_token(STORE_KEY, "job_1"),
        checkpoint_dir=str(saved),
        replicas=1,
        training=msgspec.structs.replace(plain.training, steps=100_000, global_batch=2),
    )


async def test_a_megatron_rank_trains_saves_and_is_looked_at_as_its_jobs_own_user(server: Server) -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        (place / "n1").mkdir(mode=0o711)
        port = free_port("127.0.0.1")
        (place / "store_key").write_bytes(STORE_KEY)
        argv = [sys.executable, "-m", "trainer.store", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--key-file", str(place / "store_key")]
        store = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
        agent = AgentProcess(
            server, place / "n1" / "s", "--host-module", "trainer.host",
            policy=policy(place), prefix=within_reach(place),
        ).start()  # fmt: skip
        try:
            await server.until(lambda: server.hellos)
            saved = place / "checkpoints" / "job_1"
            config = trainers_config(port, saved)
            order = start_order(config=config, world_size=1, ranks=(RankPlacement(0, 0),), user="alice")
            answer = await server.done(await server.send(order, epoch=1, **JOB), 90.0)
            assert answer.state == "succeeded", answer.detail
            await server.until(lambda: server.bodies(RankJoined), 90.0)
            pid = server.bodies(RankStarted)[0].pid
            assert uid_of(pid) == ALICE

            view = View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))
            await server.send(DeliverView(view), epoch=2, **JOB)
            await server.until(lambda: said(server, Flush), 30.0)
            await server.send(DeliverInstall(Install("job_1", 1, 2, 0, (0,))), epoch=2, **JOB)
            await server.until(lambda: said(server, StepReport), 60.0)
            await server.send(RequestSave("job_1", 1, "manual", "test"), epoch=2, **JOB)
            done = await server.until(
                lambda: [r for r in said(server, CheckpointReport) if r.state in ("complete", "failed")], 60.0
            )
            assert done[0].state == "complete", done[0].error
            files = [path for path in saved.rglob("*") if path.is_file()]
            assert files
            assert {path.stat().st_uid for path in (saved, *files)} == {ALICE}
            assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (saved, *files)} == {0}

            agent.kill(signal.SIGKILL)
            agent.start()
            await server.until(lambda: len(server.hellos) == 2)
            for number, what in enumerate(("ping", "flight_recorder", "profile", "stacks"), 1):
                look = CollectStacks("job_1", 0, 1, 0, what, 0.2)
                assert (await server.done(await server.send(look, epoch=2, **JOB), 20.0)).state == "succeeded"
                looks = await server.until(lambda n=number: b if len(b := server.bodies(StacksCollected)) == n else [])
                assert looks[-1].method != "none", looks[-1].text
            assert is_running(pid)
            stop = await server.send(StopRanks("job_1", 1, -1, 0, 0.0, "test"), epoch=2, **JOB)
            assert (await server.done(stop, 30.0)).state == "succeeded"
            assert server.bodies(RankExited)[0].signal == signal.SIGKILL
            await until_gone(pid)
        finally:
            agent.kill()
            log = Path(agent.jobs_dir / "logs" / "job_1" / "host.log")
            print(log.read_text() if log.exists() else "no host log", agent.log()[-3000:])
            os.kill(store.pid, signal.SIGKILL)
            store.wait()
