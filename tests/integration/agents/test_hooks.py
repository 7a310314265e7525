"""A Megatron-core program of somebody's own under a real agent: it is watched, saved on
command, sent away with its state saved, and goes on from there in its next life."""

import importlib.util
import os
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.commands import DeliverInstall, DeliverView, RequestSave, StopRanks
from controlplane.protocol.frames import RankExited, RankJoined, RankSaid
from controlplane.protocol.launch import RankPlacement, Resume
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.rank import CheckpointReport, StepReport, TrainingDone, ViewInstalled
from controlplane.protocol.spec import Parallelism
from tests.integration.agents.conftest import ROOT, AgentProcess, launch, start_order
from tests.integration.agents.server import Server
from trainer.checkpoint.manifest import verify

pytestmark = pytest.mark.trainer
JOB = {"job_id": "job_1", "attempt": 1}
START_S = 90.0
FRAMEWORK_START_S = 240.0
BRIDGE_PYTHON = os.environ.get("MEGATRON_BRIDGE_PYTHON", "")
"""An interpreter that can import megatron.bridge, where this one cannot."""
LM_DIR, LM_PYTHON = os.environ.get("MEGATRON_LM_DIR", ""), os.environ.get("MEGATRON_LM_PYTHON", sys.executable)
"""Megatron-LM's source tree, and an interpreter with what that needs."""
LM_MODEL = """
    --num-layers 4 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 2 --seq-length 32
    --max-position-embeddings 32 --mock-data --tokenizer-type NullTokenizer --vocab-size 4100 --num-workers 1
    --micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --lr-decay-style constant --override-opt_param-scheduler
    --hidden-dropout 0 --attention-dropout 0 --eval-interval 1000 --eval-iters 1 --log-interval 1
    --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion
    --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --inference-rng-tracker
    --distributed-backend gloo
"""


def said(server: Server, kind: type) -> list[tuple[int, object]]:
    """(rank, report), in order of arrival."""
    return [(body.ref.rank, body.report) for body in server.bodies(RankSaid) if isinstance(body.report, kind)]


def steps(server: Server, rank: int) -> list[StepReport]:
    return [report for teller, report in said(server, StepReport) if teller == rank]


def saves(server: Server, state: str) -> list[CheckpointReport]:
    return [report for _, report in said(server, CheckpointReport) if report.state == state]


def has_bridge() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


async def start(
    server: Server,
    folder: Path,
    *argv: str,
    incarnation: int,
    resume: Resume | None = None,
    ranks: int = 2,
    limit_s: float = START_S,
) -> None:
    config = msgspec.structs.replace(
        launch().config, checkpoint_dir=str(folder), parallelism=Parallelism(pp=ranks), replicas=1, resume=resume
    )
    order = start_order(
        entrypoint=argv,
        world_size=ranks,
        ranks=tuple(RankPlacement(rank, rank) for rank in range(ranks)),
        config=config,
        incarnation=incarnation,
        epoch=incarnation,
        # What a launcher of the node's user may have left behind; it must not be believed.
        env={"PYTHONPATH": str(ROOT), "MASTER_PORT": "1", "RANK": "7"},
    )
    assert (await server.done(await server.send(order, epoch=incarnation, **JOB))).state == "succeeded"
    joined = len(server.bodies(RankJoined))
    await server.until(lambda: len(server.bodies(RankJoined)) >= joined + ranks or server.bodies(RankExited), limit_s)


def own_loop(steps: int) -> tuple[str, ...]:
    return (sys.executable, "examples/megatron_loop.py", "--steps", str(steps), "--pause-s", "0.02")


@dataclass(frozen=True)
class Framework:
    """A program around a framework's own loop; `more` is added to its command line."""

    program: tuple[str, ...]
    steps: str
    ranks: int
    more: str = ""

    def argv(self, folder: Path, *, steps: int, save_interval: int) -> tuple[str, ...]:
        told = f"--save {folder} --save-interval {save_interval} {self.steps} {steps} {self.more}"
        return (*self.program, *shlex.split(told))


BRIDGE = (BRIDGE_PYTHON or sys.executable, "examples/megatron_bridge.py", "--eval-interval", "2")
LM = (LM_PYTHON, "examples/megatron_lm.py", f"{LM_DIR}/pretrain_gpt.py", *shlex.split(LM_MODEL))
HAS_BRIDGE = pytest.mark.skipif(
    not BRIDGE_PYTHON and not has_bridge(),
    reason="Megatron-Bridge is not installed here; MEGATRON_BRIDGE_PYTHON may name an interpreter that has it",
)
HAS_LM = pytest.mark.skipif(not LM_DIR, reason="MEGATRON_LM_DIR names no source tree of Megatron-LM")
FRAMEWORKS = [
    pytest.param(Framework(BRIDGE, "--steps", 2, "--stages 2"), id="bridge", marks=HAS_BRIDGE),
    pytest.param(
        Framework(LM, "--train-iters", 2, "--pipeline-model-parallel-size 2"), id="lm-two-stages", marks=HAS_LM
    ),
    pytest.param(Framework(LM, "--train-iters", 1, "--async-save"), id="lm-asynchronous-saves", marks=HAS_LM),
]


@pytest.fixture
async def told(server: Server, agent: AgentProcess) -> AsyncIterator[Server]:
    """The server; when the test fails, the ranks' logs are shown."""
    yield server
    for log in sorted((agent.jobs_dir / "logs").rglob("*")):
        if log.is_file():
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")


@pytest.mark.timeout(240)
async def test_a_program_with_five_lines_is_watched_saved_preempted_and_resumed(told: Server, tmp_path: Path) -> None:
    server, folder = told, tmp_path / "checkpoints"
    await start(server, folder, *own_loop(100_000), incarnation=1)
    await server.until(lambda: min(len(steps(server, 0)), len(steps(server, 1))) >= 5, START_S)
    assert [report.step for report in steps(server, 1)[:5]] == [0, 1, 2, 3, 4]
    assert all(report.loss is not None and report.tokens == 256 for report in steps(server, 1))
    assert all(report.loss is None for report in steps(server, 0)), "the last stage has the loss"

    view = View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))
    await server.send(DeliverView(view), epoch=2, **JOB)
    await server.until(lambda: len(said(server, Flush)) == 2)
    await server.send(DeliverInstall(Install("job_1", 1, 2, 0, (0,))), epoch=2, **JOB)
    await server.until(lambda: len(said(server, ViewInstalled)) == 2)
    await server.until(lambda: steps(server, 0)[-1].epoch == 2)

    command = await server.send(RequestSave("job_1", 1, "emergency", "ECC"), epoch=2, **JOB)
    (complete,) = await server.until(lambda: saves(server, "complete"), 30.0)
    assert (complete.command_id, complete.kind, complete.epoch) == (command, "emergency", 2)
    assert complete.bytes > 0
    manifest = verify(complete.path).manifest
    assert manifest is not None and verify(complete.path).ok
    assert [entry.name for entry in manifest.files] == ["rank_0.pt", "rank_1.pt"]

    stop = await server.send(StopRanks("job_1", 1, 0, 1, 30.0, "preempted"), epoch=2, **JOB)
    assert (await server.done(stop, 40.0)).state == "succeeded"
    ends = [(body.exit_code, body.signal, body.cause, body.expected) for body in server.bodies(RankExited)]
    assert ends == [(15, None, "", True)] * 2
    last = saves(server, "complete")[-1]
    assert last.kind == "preemption" and last.step == steps(server, 1)[-1].step + 1
    assert len(saves(server, "complete")) == 2

    before = len(steps(server, 1))
    await start(server, folder, *own_loop(last.step + 3), incarnation=3, resume=Resume(last.path, last.step))
    await server.until(lambda: len(said(server, TrainingDone)) == 2, START_S)
    again = steps(server, 1)[before:]
    assert [report.step for report in again] == [last.step, last.step + 1, last.step + 2]
    assert again[0].loss < steps(server, 1)[0].loss, "it went on where it was"
    await server.until(lambda: len(server.bodies(RankExited)) == 4)
    assert [body.exit_code for body in server.bodies(RankExited)[2:]] == [0, 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.timeout(900)
async def test_a_frameworks_own_loop_is_watched_saved_preempted_and_resumed(
    told: Server, tmp_path: Path, framework: Framework
) -> None:
    server, folder, ranks, last_rank = told, tmp_path / "checkpoints", framework.ranks, framework.ranks - 1
    first = framework.argv(folder, steps=100_000, save_interval=50_000)
    await start(server, folder, *first, incarnation=1, ranks=ranks, limit_s=FRAMEWORK_START_S)
    await server.until(lambda: min(len(steps(server, rank)) for rank in range(ranks)) >= 5, FRAMEWORK_START_S)
    seen = steps(server, last_rank)
    assert [report.step for report in seen[:5]] == [0, 1, 2, 3, 4]
    assert all(report.loss is not None and report.grad_norm and report.tokens == 256 for report in seen)
    assert last_rank == 0 or all(report.loss is None for report in steps(server, 0)), "the last stage has the loss"

    command = await server.send(RequestSave("job_1", 1, "emergency", "ECC"), epoch=1, **JOB)
    (complete,) = await server.until(lambda: saves(server, "complete"), FRAMEWORK_START_S)
    assert (complete.command_id, complete.kind) == (command, "emergency")
    assert verify(complete.path).ok and verify(complete.path).manifest.step == complete.step

    stop = await server.send(StopRanks("job_1", 1, 0, 1, 60.0, "preempted"), epoch=1, **JOB)
    assert (await server.done(stop, 90.0)).state == "succeeded"
    assert [(body.exit_code, body.expected) for body in server.bodies(RankExited)] == [(15, True)] * ranks
    assert not said(server, TrainingDone)
    last = saves(server, "complete")[-1]
    assert last.kind == "preemption" and last.step == steps(server, last_rank)[-1].step + 1
    assert verify(last.path).ok

    before = len(steps(server, last_rank))
    again = framework.argv(folder, steps=last.step + 3, save_interval=last.step + 1)
    resume = Resume(last.path, last.step)
    await start(server, folder, *again, incarnation=2, resume=resume, ranks=ranks, limit_s=FRAMEWORK_START_S)
    await server.until(lambda: len(server.bodies(RankExited)) == 2 * ranks, FRAMEWORK_START_S)
    assert [body.exit_code for body in server.bodies(RankExited)[ranks:]] == [0] * ranks
    assert len(said(server, TrainingDone)) == ranks
    assert [report.step for report in steps(server, last_rank)[before:]] == [last.step, last.step + 1, last.step + 2]
    own = [(report.step, report.kind) for report in saves(server, "complete")[2:]]
    assert own[-1] == (last.step + 3, "scheduled"), "the last one"
    # Of two asynchronous saves that become whole within one step the newer is told.
    assert own[0] == (last.step + 1, "scheduled") or "--async-save" in framework.more, "by interval"
