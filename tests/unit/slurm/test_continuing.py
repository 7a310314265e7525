"""What a run leaves for the next allocation: no credential among it, and nothing is continued that cannot be."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.apps import apps
from django.db import connection

from controlplane.fleet.models import Node
from controlplane.slurm import continuing
from controlplane.slurm.continuing import Left, Over, find, leave, newest, take
from controlplane.slurm.plan import PlanError
from tests.house.tree import ROOT

SPEC = b"metadata: {name: first}\nspec:\n  resources: {nodes: 2, gpus_per_node: 4}\n  env: {TOKEN: a}\n"
CREDENTIALS = ("sha256", "password", "session_key", "public_key", "old_public_key", "session_id", "mac", "body_sha256")
PUBLIC = {"dispatch_command"}
"""Its `session_id` is the past socket that it went by, which opens nothing."""


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., Left]:
    """runs("7", step=40) makes run 7 as it is left; what it has left."""

    def made(run: str, *, step: int | None = 40, **changes: Any) -> Left:
        folder = tmp_path / run
        place = folder / "checkpoints" / "job_1" / "step_00000040-e2"
        place.mkdir(parents=True)
        (place / "part").write_bytes(b"12345")
        marker = {"job_id": "job_1", "step": 40, "epoch": 2, "files": [{"name": "part", "bytes": 5}]}
        (place / "COMMITTED.json").write_bytes(msgspec.json.encode(marker))
        (folder / "job.yaml").write_bytes(SPEC)
        (folder / "rows.sqlite3").write_bytes(b"rows")
        left = Left(
            job="job_1", name="first", committed_step=40, step=step, path=str(place) if step is not None else "",
            checkpoints=str(folder / "checkpoints"),
        )  # fmt: skip
        left = msgspec.structs.replace(left, **changes)
        (folder / "continue.json").write_bytes(msgspec.json.encode(left))
        return left

    return made


@pytest.mark.django_db(transaction=True)
def test_the_copy_of_the_rows_has_no_credential_in_any_table(tmp_path: Path) -> None:
    from django.core.management import call_command

    call_command("create_admin", "ada")
    call_command("create_api_token", "ada", "--scope", "admin", "--name", "t")
    call_command("create_join_token", "--cidr", "127.0.0.0/8")
    Node.objects.create(id="node_1", name="n1", public_key="new", old_public_key="old", session_id="web.1")
    source, folder = tmp_path / "db.sqlite3", tmp_path / "7"
    folder.mkdir()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(source)])
    leave(source, folder, Left(job="j", name="n", committed_step=1, step=1, path="/p", checkpoints="/c"))
    before, after = sqlite3.connect(source), sqlite3.connect(folder / "rows.sqlite3")
    held = 0
    for model in apps.get_models():
        table = model._meta.db_table
        for field in model._meta.fields:
            if field.column in CREDENTIALS and table not in PUBLIC:
                empty = f"SELECT count(*) FROM {table} WHERE coalesce({field.column}, '') NOT IN ('', '!')"
                held += before.execute(empty).fetchone()[0]
                assert after.execute(empty).fetchone()[0] == 0, f"{table}.{field.column}"
    assert held >= 7, "there were some"
    assert after.execute("SELECT username FROM auth_user").fetchall() == [("ada",)], "who did what stays"
    assert sorted(path.name for path in folder.iterdir()) == ["continue.json", "rows.sqlite3"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert not (tmp_path / "rows.draft").exists()


def test_what_a_run_has_left_is_found_and_values_of_env_may_have_changed(tmp_path: Path, runs: Any) -> None:
    left = runs("7")
    assert find(tmp_path, "7", SPEC.replace(b"TOKEN: a", b"TOKEN: b") + b"# said otherwise\n") == left


@pytest.mark.parametrize(
    ("run", "words", "fix"),
    [
        ("8", "there is no run '8'.*there is: 7", "--continue"),
        ("../7", "there is no run", "--directory"),
        ("7/", "there is no run", "--directory"),
        ("", "there is no run", "--directory"),
    ],
)
def test_a_run_that_is_none_is_refused_with_those_there_are(
    tmp_path: Path, runs: Any, run: str, words: str, fix: str
) -> None:
    runs("7")
    with pytest.raises(PlanError, match=words) as refused:
        find(tmp_path, run, SPEC)
    assert fix in refused.value.fix


def test_without_a_checkpoint_it_is_refused_but_where_runs_were_chained(tmp_path: Path, runs: Any) -> None:
    left = runs("7", step=None)
    with pytest.raises(PlanError, match="saved nothing"):
        find(tmp_path, "7", SPEC)
    assert find(tmp_path, "7", SPEC, chained=True) == left


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda place: (place / "part").unlink(), "part is missing"),
        (lambda place: (place / "part").write_bytes(b"1234"), "part has 4 bytes"),
        (lambda place: (place / "COMMITTED.json").unlink(), "COMMITTED.json is missing"),
        (lambda place: (place / "COMMITTED.json").write_bytes(b"\xff{"), "cannot be read"),
        (
            lambda place: (place / "COMMITTED.json").write_text('{"job_id":"other","step":40,"epoch":1,"files":[]}'),
            "of job other",
        ),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path, runs: Any, break_it: Any, words: str) -> None:
    break_it(Path(runs("7").path))
    with pytest.raises(PlanError, match=words) as refused:
        find(tmp_path, "7", SPEC)
    assert "restore it" in refused.value.fix


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (SPEC.replace(b"nodes: 2", b"nodes: 3"), "/spec/resources/nodes"),
        (SPEC + b"  training: {steps: 7}\n", "/spec/training/steps"),
        (SPEC.replace(b"TOKEN", b"OTHER"), "/spec/env"),
        (SPEC.replace(b"first", b"second"), "/metadata/name"),
    ],
)
def test_another_spec_is_refused_with_the_places_that_differ(
    tmp_path: Path, runs: Any, spec: bytes, place: str
) -> None:
    runs("7")
    with pytest.raises(PlanError, match=f"in {place}") as refused:
        find(tmp_path, "7", spec)
    assert f"{tmp_path}/7/job.yaml" in refused.value.fix


def test_a_job_that_has_ended_is_not_continued(tmp_path: Path, runs: Any) -> None:
    runs("7")
    kept = {"state": "succeeded", "committed_step": 90, "state_reason": "", "more": [1]}
    (tmp_path / "7" / "job.json").write_bytes(msgspec.json.encode(kept))
    assert find(tmp_path, "7", SPEC) == Over("succeeded", 90)
    (tmp_path / "7" / "job.json").write_bytes(msgspec.json.encode(kept | {"state": "preempted"}))
    assert isinstance(find(tmp_path, "7", SPEC), Left)


@pytest.mark.parametrize(
    "kept", [b"", b"{}", b"\xff", b'{"state": "succeeded"}', b'{"state": 1, "committed_step": 90}']
)
def test_where_nobody_can_read_whether_the_job_has_ended_it_is_not_trained_again(
    tmp_path: Path, runs: Any, kept: bytes
) -> None:
    runs("7")
    (tmp_path / "7" / "job.json").write_bytes(kept)
    with pytest.raises(PlanError, match=r"job\.json cannot be read, so that nobody knows whether the job has ended"):
        find(tmp_path, "7", SPEC, chained=True)
    (tmp_path / "7" / "job.json").unlink()
    (tmp_path / "7" / "job.json").mkdir()
    with pytest.raises(PlanError, match="Is a directory"):
        find(tmp_path, "7", SPEC, chained=True)


@pytest.mark.parametrize("note", [b"", b"{}", b"\xff", b'{"format": 1}', b"[" * 100_000])
def test_a_note_that_is_none_is_refused(tmp_path: Path, runs: Any, note: bytes) -> None:
    runs("7")
    (tmp_path / "7" / "continue.json").write_bytes(note)
    with pytest.raises(PlanError, match=r"continue\.json cannot be read"):
        find(tmp_path, "7", SPEC)
    (tmp_path / "7" / "continue.json").unlink()
    with pytest.raises(PlanError, match="has left nothing to continue from"):
        find(tmp_path, "7", SPEC)


def test_rows_of_another_release_are_refused(tmp_path: Path, runs: Any) -> None:
    runs("7", format=continuing.FORMAT + 1)
    with pytest.raises(PlanError, match="not as this release leaves it"):
        find(tmp_path, "7", SPEC)


def test_one_allocation_alone_continues_a_run_and_can_be_continued_in_turn(tmp_path: Path, runs: Any) -> None:
    runs("7")
    for job in ("8", "9"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "job.yaml").write_bytes(SPEC)
    database = tmp_path / "state" / "c" / "holdfast.sqlite3"
    take(tmp_path, "7", by="8", database=database)
    assert database.read_bytes() == b"rows" and database.stat().st_mode & 0o777 == 0o600
    take(tmp_path, "7", by="8", database=database)  # Once more is no error: it is its own.
    with pytest.raises(PlanError, match="continued already, by job 8"):
        take(tmp_path, "7", by="9", database=tmp_path / "other")
    assert not (tmp_path / "other").exists() and not (tmp_path / "9" / "continue.json").exists()
    with pytest.raises(PlanError) as refused:
        find(tmp_path, "7", SPEC)
    assert "--continue 8" in refused.value.fix
    assert isinstance(find(tmp_path, "7", SPEC, by="8"), Left) and isinstance(find(tmp_path, "8", SPEC), Left)


def test_the_newest_checkpoint_that_may_be_resumed_from_counts() -> None:
    rows = [(10, 1, "verified", "/a"), (20, 1, "complete", "/b"), (30, 2, "corrupt", "/c"), (40, 2, "writing", "/d")]
    assert newest(rows) == (20, "/b")
    assert newest([*rows, (50, 2, "replicated", "local:step_00000050-e2")]) == (20, "/b"), "its nodes go"
    assert newest([]) == newest([(1, 1, "pruned", "/a")]) == (None, "")


def guest(folder: Path, run: str, *, job: str = "9") -> tuple[int, str]:
    """(exit code, output) of the batch script of `job`, which was submitted behind `run`; it needs no Slurm to end."""
    mine = folder / job
    mine.mkdir(exist_ok=True)
    (mine / "job.yaml").write_bytes(SPEC)
    done = subprocess.run(
        [
            sys.executable, "-m", "controlplane.slurm.guest", "--nodes", "2", "--spares", "0", "--devices", "4",
            "--grace-s", "20", "--continues", run, "--chained", "--directory", str(mine),
        ],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env={"PATH": os.defpath, "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("succeeded", 0, "The job is done: 90 steps."),
        ("failed", 1, "The job has failed: the budget is spent"),
        ("cancelled", 1, "The job was cancelled"),
    ],
)
def test_an_allocation_behind_the_end_of_the_job_ends_at_once_with_its_exit_code(
    tmp_path: Path, runs: Any, state: str, code: int, words: str
) -> None:
    runs("7")
    kept = {"state": state, "committed_step": 90, "state_reason": "the budget is spent"}
    (tmp_path / "7" / "job.json").write_bytes(msgspec.json.encode(kept))
    for run, job in (("7", "9"), ("9", "10")):
        found, output = guest(tmp_path, run, job=job)
        assert found == code and f"Run {run} has ended its job already: nothing is started." in output, output
        assert words in output and not (tmp_path / run / "continued-by").exists()


def test_an_allocation_that_finds_nothing_to_continue_from_says_so_and_starts_nothing(
    tmp_path: Path, runs: Any
) -> None:
    runs("7")
    (tmp_path / "7" / "continue.json").unlink()
    code, output = guest(tmp_path, "7")
    assert code == 7 and "It could not continue: run 7 has left nothing" in output and "Fix: see " in output
    assert "Starting the control plane" not in output
