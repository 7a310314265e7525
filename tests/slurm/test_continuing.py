"""A job goes on from one allocation to the next: Slurm's own time limit ends the first, the second resumes at the step
that was saved, and no step is left out."""

import json
import sys

import pytest

from controlplane.slurm.continuing import NOTE, ROWS
from tests.scenes.helpers import scene_job
from tests.slurm.cluster import Cluster
from tests.slurm.run import PYTHON, Run, assert_nothing_is_left

pytestmark = pytest.mark.timeout(480)
SECRET = "hunter2-of-the-test"


def limit_is_near(cluster: Cluster, run: Run) -> None:
    """Slurm warns a minute before the limit, and up to a minute earlier."""
    spent = run.said()["RunTime"].split(":")
    cluster.run("scontrol", "update", f"jobid={run.id}", f"TimeLimit={int(spent[-2]) + 2}")


def test_the_next_allocation_resumes_at_the_step_that_was_saved_before_the_time_limit(cluster: Cluster) -> None:
    # Saves that are near make the certificate's undisturbed run short.
    spec = scene_job(name="long", steps=20000, interval_steps=20)
    spec["spec"]["env"] = {"KEY_OF_A_USER": SECRET}
    run = Run(cluster, spec, "--chain", "2")
    run.trains(12)
    limit_is_near(cluster, run)
    assert (run.ended(), run.said()["JobState"]) == (6, "FAILED"), run.evidence()
    assert json.loads((run.directory / "incidents.json").read_text()) == [], "no fault, no incident"
    first = json.loads((run.directory / "job.json").read_text())
    saved = first["last_checkpoint_step"]
    trained = first["committed_step"]
    assert 0 <= trained - saved <= 3, "what was committed while the save was written may be trained again"
    assert f"--continue {run.id}." in run.output

    second = run.next()
    second.wait("the job trains again", lambda: second.job().get("committed_step", 0) > saved + 2)
    job = second.job()
    assert job["id"] == first["id"] and [each["resume_step"] for each in job["attempts"]] == [0, saved]
    assert f"Continues run {run.id}: long ({job['id']}) resumes at step {saved}, where it was saved." in second.output
    second.trains(saved + 30)
    asked = f"/jobs/{job['id']}/steps?limit=1000&attempt="
    reported = {number: second.ask(f"{asked}{number}")["items"] for number in (1, 2)}
    by_attempt = {number: [each["step"] for each in rows] for number, rows in reported.items()}
    assert by_attempt[1] in (list(range(trained)), list(range(saved))), "each once, in order"
    assert by_attempt[2][:30] == list(range(saved, saved + 30)), "none is left out, none trained twice"
    assert all(each["samples_exact"] for rows in reported.values() for each in rows)
    assert {node["name"].partition(".")[2] for node in second.ask("/nodes")["items"]} == {second.id}

    done = cluster.as_user(
        sys.executable, "-m", "controlplane.cli", "slurm", "submit", str(cluster.folder / "long.yaml"), "--nodes", "3",
        "--directory", str(cluster.folder / "runs"), "--continue", run.id, environment=PYTHON,
    )  # fmt: skip
    assert done.returncode == 2 and f"--continue {second.id}" in done.stderr, done.stderr
    done = cluster.as_user(
        sys.executable, "-m", "controlplane.cli", "job", "cancel", "long", "--reason", "seen enough",
        environment=PYTHON | {
            "HOLDFAST_CLI_CONFIG": str(second.directory / "holdfast.toml"),
            "SSL_CERT_FILE": str(second.directory / "server.crt"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert second.ended() == 1, second.evidence()
    kept = json.loads((second.directory / "job.json").read_text())
    assert kept["attempts"][1]["certificate"]["state"] == "green", kept["attempts"]
    rows = (run.directory / ROWS).read_bytes()
    token = (run.directory / "holdfast.toml").read_text().split('token = "')[1].split('"')[0]
    assert SECRET.encode() not in rows and token.encode() not in rows
    assert (run.directory / ROWS).stat().st_mode & 0o077 == 0
    left = {path.name for path in second.directory.iterdir()}
    assert not left & {ROWS, NOTE}, "its job has ended: what it began with is nothing to continue from"
    assert_nothing_is_left(cluster)
