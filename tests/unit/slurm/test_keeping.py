"""What is kept of a run while its server answers no more: the job as it was seen last, and the rows."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from django.db import connection

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job
from controlplane.protocol import rest
from controlplane.runtime.clock import now
from controlplane.slurm import continuing, keeping
from controlplane.slurm.continuing import Left
from tests.unit.slurm.conftest import JOB, Server


@pytest.fixture
def run(tmp_path: Path, transactional_db: None) -> keeping.Run:
    """Of a job that has saved steps 20 and 40, in tables of the release's own migrations."""
    job = Job.objects.create(id="job_1", name="first", spec={}, committed_step=42)
    for step in (20, 40):
        Checkpoint.objects.create(
            id=f"ckpt_{step}", job=job, attempt=1, step=step, epoch=2, path=f"/c/{step}", kind="scheduled",
            state="complete", started_at=now(),
        )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(tmp_path / "db.sqlite3")])
    folder = tmp_path / "7"
    folder.mkdir()
    return keeping.Run(id="7", directory=folder, checkpoints=tmp_path / "c", database=tmp_path / "db.sqlite3")


def kept(run: keeping.Run, server: Server, state: str = "running") -> tuple[list[str], str]:
    """(names of the files, what was said) of a job that was seen in `state` last."""
    said: list[str] = []
    last = msgspec.convert(JOB | {"state": state}, rest.JobDetail)
    keeping.keep_job(last, run, said.append)
    keeping.keep(server.client, last, run, said.append)
    return sorted(path.name for path in run.directory.iterdir()), "\n".join(said)


def test_a_server_that_answers_no_more_takes_neither_the_job_nor_its_rows_along(
    run: keeping.Run, server: Server
) -> None:
    files, said = kept(run, server)
    assert files == ["continue.json", "job.json", "rows.sqlite3"]
    assert json.loads((run.directory / "job.json").read_text())["committed_step"] == 42
    left = msgspec.json.decode((run.directory / "continue.json").read_bytes(), type=Left)
    assert (left.job, left.step, left.path, left.checkpoints) == ("job_1", 40, "/c/40", str(run.checkpoints))
    with sqlite3.connect(run.directory / "rows.sqlite3") as rows:
        assert rows.execute("SELECT id FROM jobs_job").fetchall() == [("job_1",)]
    for words in ("--continue 7", "how it was seen last: HTTP 500", "incidents.json could not be kept: HTTP 500"):
        assert words in said
    assert said.index("--continue 7") < said.index("it was seen last"), "rows wait for no answer"


def test_incidents_that_cannot_be_read_keep_no_newer_state_of_the_job_out(run: keeping.Run, server: Server) -> None:
    server.answers["GET /jobs/job_1"] = JOB | {"state": "preempted", "committed_step": 44}
    assert kept(run, server)[0] == ["continue.json", "job.json", "rows.sqlite3"]
    assert json.loads((run.directory / "job.json").read_text())["state"] == "preempted"


def test_of_a_job_that_has_ended_or_a_server_that_stands_no_rows_are_left(run: keeping.Run, server: Server) -> None:
    server.answers["GET /jobs/job_1/incidents"] = {"items": []}
    assert kept(replace(run, database=None), server)[0] == ["incidents.json", "job.json"]
    server.answers["GET /jobs/job_1"] = JOB | {"state": "succeeded"}
    files, said = kept(run, server, "succeeded")
    assert files == ["incidents.json", "job.json"] and said == ""


def test_rows_that_cannot_be_read_are_said_and_the_job_is_kept(run: keeping.Run, server: Server) -> None:
    assert run.database is not None
    run.database.write_bytes(b"no database, but as long as the head of one is" * 100)
    files, said = kept(run, server)
    assert files == ["job.json"] and "so that no other allocation can continue it: file is not a database" in said
    assert not (run.directory / continuing.NOTE).exists()


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_of_a_job_that_has_ended_nothing_to_continue_is_left_though_that_cannot_be_kept(
    run: keeping.Run, server: Server, state: str
) -> None:
    """A run that continued another has a note and rows from its first moment."""
    for name in (continuing.NOTE, continuing.ROWS):
        (run.directory / name).write_text("as it began")
    (run.directory / ".job.json").mkdir()
    files, said = kept(run, server, state)
    assert files == [".job.json"] and "job.json could not be kept" in said


def test_of_a_job_that_ended_while_its_rows_were_kept_these_go_again(run: keeping.Run, server: Server) -> None:
    server.answers |= {"GET /jobs/job_1": JOB | {"state": "succeeded"}, "GET /jobs/job_1/incidents": {"items": []}}
    assert kept(run, server)[0] == ["incidents.json", "job.json"]
