"""The shipped example of a program of one's own, started by a real agent exactly as it is written."""

import json
import sys
from pathlib import Path

import msgspec
import yaml

from controlplane.protocol.frames import RankExited, RankSaid
from controlplane.protocol.launch import RankPlacement
from controlplane.protocol.rank import StepReport, TrainingDone
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_lint import lint
from tests.integration.agents.conftest import ROOT, AgentProcess, launch, start_order
from tests.integration.agents.server import Server

JOB = {"job_id": "job_1", "attempt": 1}
EXAMPLE = ROOT / "examples" / "entrypoint.yaml"
DOCUMENTED = "/srv/train"
"""Where the example says that the program is; a test has it elsewhere."""
PROGRAM = """
import json, os, sys
from trainer import hooks

run = hooks.start()
for step in range(3):
    with run.step(step) as said:
        said.report(loss=1.0, tokens=8)
    run.wanted()
found = {"cwd": os.getcwd(), "python": sys.executable, "argv": sys.argv, "config": open("config.yaml").read()}
open("found.json", "w").write(json.dumps(found))
sys.exit(run.finish())
"""


def example() -> JobSpec:
    linted = lint(yaml.safe_load(EXAMPLE.read_text()))
    assert linted.spec is not None, linted.faults
    return linted.spec


def order_of(spec: JobSpec, folder: Path, incarnation: int = 1) -> msgspec.Struct:
    """One rank of it, as the server orders it, with the program in `folder`."""
    return start_order(
        entrypoint=tuple(word.replace(DOCUMENTED, str(folder)) for word in spec.spec.entrypoint or ()),
        env=spec.spec.env,
        world_size=1,
        ranks=(RankPlacement(0, 0),),
        config=msgspec.structs.replace(launch().config, checkpoint_dir=str(folder / "checkpoints"), replicas=1),
        incarnation=incarnation,
        epoch=incarnation,
    )


async def test_the_shipped_example_trains_in_the_directory_and_with_the_python_that_it_names(
    server: Server, agent: AgentProcess, tmp_path: Path
) -> None:
    spec = example()
    assert all(DOCUMENTED in word for word in (spec.spec.entrypoint or ())[1:3]), "directory and interpreter are named"
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "config.yaml").write_text("steps: 3")

    refused = await server.done(await server.send(order_of(spec, tmp_path), epoch=1, **JOB))
    assert (refused.state, refused.data) == ("failed", "unfit_node")
    assert refused.detail.startswith("the node is not fit: program: ")
    assert "/train.py is not there: give the script's absolute path, or begin with env --chdir=DIR" in refused.detail

    (tmp_path / "train.py").write_text(PROGRAM)
    answer = await server.done(await server.send(order_of(spec, tmp_path, 2), epoch=2, **JOB))
    assert answer.state == "succeeded", answer.detail
    await server.until(lambda: server.bodies(RankExited), 30.0)
    assert [body.exit_code for body in server.bodies(RankExited)] == [0]
    reports = [body.report for body in server.bodies(RankSaid)]
    assert [report.step for report in reports if isinstance(report, StepReport)] == [0, 1, 2]
    assert any(isinstance(report, TrainingDone) for report in reports)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {
        "cwd": str(tmp_path),
        "python": str(tmp_path / ".venv" / "bin" / "python"),
        "argv": ["train.py", "--config", "config.yaml"],
        "config": "steps: 3",
    }


async def test_a_program_begins_where_its_agent_was_started(
    server: Server, agent: AgentProcess, tmp_path: Path
) -> None:
    order = start_order(entrypoint=("sh", "-c", f"pwd > {tmp_path}/where"), world_size=1, ranks=(RankPlacement(0, 0),))
    assert (await server.done(await server.send(order, epoch=1, **JOB))).state == "succeeded"
    await server.until(lambda: server.bodies(RankExited), 30.0)
    assert (tmp_path / "where").read_text().strip() == str(ROOT)
