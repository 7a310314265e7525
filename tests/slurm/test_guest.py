"""`holdfast slurm submit` on a real Slurm, by a user without rights: a job outlives a killed rank, is done, and leaves
nothing behind; a job whose allocation is taken back saves within the grace."""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver
from controlplane.demo.installation import Installation
from controlplane.engines.slurm import answers
from tests.scenes.helpers import scene_job
from tests.slurm.cluster import KILL_WAIT_S, NODES, USER, Cluster, kill
from tests.slurm.run import PYTHON, Run, assert_nothing_is_left

pytestmark = pytest.mark.timeout(280)


def test_a_researchers_job_outlives_a_killed_rank_is_certified_and_leaves_nothing_behind(cluster: Cluster) -> None:
    run = Run(cluster, scene_job(name="tonight", steps=140))
    job = run.trains(12)
    agent = run.agent("n3")
    kill(agent)
    run.wait("its agent is started again", lambda: run.agent("n3") not in (0, agent))
    first = run.ask(f"/jobs/{job['id']}/replicas")["items"]
    kill(next(rank["pid"] for replica in first if replica["current"] for rank in replica["ranks"]))

    def recovered() -> Any:
        found = run.ask(f"/jobs/{job['id']}/incidents")["items"]
        return found if found and found[0]["state"] in ("resolved", "mitigated") else None

    run.wait("the incident is over", recovered)
    assert run.ended() == 0, run.evidence()
    kept = json.loads((run.directory / "job.json").read_text())
    incidents = json.loads((run.directory / "incidents.json").read_text())
    assert (kept["state"], kept["committed_step"], kept["attempt"]) == ("succeeded", 140, 1), "no restart"
    assert [incident["certificate"]["state"] for incident in incidents] == ["green"], incidents
    assert "The job is done: 140 steps." in run.output
    assert not (run.directory / "join-token").exists()
    kept_for_others = [path for path in run.directory.parent.rglob("*") if path.stat().st_mode & 0o077]
    assert not kept_for_others, "the output, which Slurm makes, too"
    assert_nothing_is_left(cluster)


def test_answers_of_the_real_programs_are_read(cluster: Cluster) -> None:
    assert answers.kill_wait_s(cluster.run("scontrol", "show", "config") + "\n") == KILL_WAIT_S
    for node in NODES:
        assert answers.address(cluster.run("scontrol", "--oneliner", "show", "node", node) + "\n") == "127.0.0.1"
    listed = cluster.run("sinfo", "--noheader", "--format", answers.PARTITIONS_FORMAT) + "\n"
    (main,) = answers.partitions(listed)
    assert (main.name, main.up, main.nodes) == ("main", True, len(NODES))


def test_what_slurm_refuses_is_said_in_its_words_with_what_there_is(cluster: Cluster) -> None:
    path = cluster.folder / "refused.yaml"
    path.write_text(yaml.safe_dump(scene_job(name="refused")))
    done = cluster.as_user(
        sys.executable, "-m", "controlplane.cli", "slurm", "submit", str(path), "--nodes", "3", "--partition", "gpux",
        environment=PYTHON,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    assert "error: sbatch refused: sbatch: error: invalid partition specified: gpux" in done.stderr
    assert "fix: there is no partition gpux here; there is: main" in done.stderr


def test_a_job_whose_allocation_is_cancelled_saves_within_the_grace_and_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    """`scancel` signals the batch script too, and kills after KillWait. The time limit: `test_continuing`."""
    run = Run(cluster, scene_job(name="taken", steps=20000, interval_steps=100000))
    at = run.trains(12)["committed_step"]
    began_s = time.monotonic()
    cluster.run("scancel", run.id)
    code = run.ended(timeout_s=KILL_WAIT_S + 30)
    assert (run.said()["JobState"], code) == ("CANCELLED", 6), run.evidence()
    taken_s = time.monotonic() - began_s
    kept = json.loads((run.directory / "job.json").read_text())
    assert kept["state"] in ("preempted", "pending"), run.evidence()
    assert kept["last_checkpoint_step"] is not None and kept["last_checkpoint_step"] >= at, run.evidence()
    # Steps that are committed while the save is written may be of the next attempt.
    assert kept["committed_step"] - kept["last_checkpoint_step"] <= 3, run.evidence()
    assert taken_s < KILL_WAIT_S, run.output
    assert json.loads((run.directory / "incidents.json").read_text()) == [], "no fault, no incident"
    assert_nothing_is_left(cluster)


def test_with_a_server_that_stands_already_agents_join_it_and_the_job_is_its_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    checkpoints = cluster.folder / "checkpoints"
    checkpoints.mkdir()
    shutil.chown(checkpoints, USER)
    with Installation(DemoConfig(directory=tmp_path / "c", port=0, nodes=0, spare_nodes=0, demo=False,
                                 server_env={"HOLDFAST_CHECKPOINT_ROOT": str(checkpoints)})) as server:  # fmt: skip
        server.one_time_password()
        token = cluster.folder / "join-token"
        token.write_text(server.manage("create_join_token", "--cidr", "127.0.0.0/8", "--uses", "4").split()[-1])
        shutil.chown(token, USER)
        admin = server.api_token("admin")
        run = Run(
            cluster, scene_job(name="guest-of-a-server", steps=25), "--server", server.addresses.web,
            "--join-token-file", str(token), settings={"HOLDFAST_TOKEN": admin},
        )  # fmt: skip
        assert run.ended() == 0, run.evidence()
        driver = Driver(server.addresses.web, admin)
        assert driver.job("guest-of-a-server")["state"] == "succeeded"
        assert sorted(node["name"] for node in driver.items("/nodes")) == [f"n{n}.{run.id}" for n in range(1, 5)]
    assert "The job is done: 25 steps." in run.output and "Starting the control plane" not in run.output
    assert token.exists(), "it is the user's own"
    assert_nothing_is_left(cluster)
