"""V1, by path and by entrypoint: what a rank says of a checkpoint never leads the server outside
of the job's own directory, and nothing of a job's own program is loaded."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.checkpoints.examine import wants_load
from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.rank import CheckpointReport
from controlplane.recovery import proof
from controlplane.recovery.certificate import certify
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import Fleet, kill_rank, live_ranks, make_fleet, read_all_back, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)


def home(job: Job) -> Path:
    """The directory that the server gave the job."""
    return Path(job.attempts.get().checkpoint_dir)


def write_checkpoint(path: Path, job: Job, step: int) -> Path:
    """As a trainer leaves it, but for its one file, which is no tensor."""
    path.mkdir(parents=True)
    (path / ".metadata").write_bytes(b"cposix\nsystem\n(S'false'\ntR.")
    digest = hashlib.blake2b((path / ".metadata").read_bytes(), digest_size=16).hexdigest()
    files = [{"name": ".metadata", "bytes": (path / ".metadata").stat().st_size, "blake2b": digest}]
    marker = {
        "format": 1, "job_id": job.id, "attempt": 1, "step": step, "epoch": 2, "kind": "interval",
        "layout": {"tp": 1, "pp": 2, "replicas": 3}, "consumed_samples": 0, "files": files,
    }  # fmt: skip
    (path / "COMMITTED.json").write_text(json.dumps(marker))
    return path


def tell(fleet: Fleet, job: Job, path: str, *, step: int = 5, kind: str = "scheduled", state: str = "complete") -> None:
    row = live_ranks(job)[0]
    holders = (("node_1",), ("node_2",)) if kind == "local" else ()
    said = CheckpointReport(step, path, state, kind, 2, digest="d", holders=holders)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))


def test_a_rank_cannot_name_a_directory_outside_its_job(tmp_path: Path, settings: Settings) -> None:
    """Complete or not, of whatever kind: it is refused, counted, told once, and nothing of it is read."""
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path / "references"
    fleet = make_fleet()
    job = run_job(fleet)
    foreign = write_checkpoint(tmp_path / "step_5", job, 5)
    beside = write_checkpoint(home(job).parent / "job_of_another" / "step_5", job, 5)
    paths = [
        str(foreign), str(beside), f"{home(job)}/../job_of_another/step_5", f"{home(job)}2/step_5", str(home(job)),
        f"{home(job)}/", f"{home(job)}/.", f"{home(job)}/..", f"{home(job)}//step_5", f"{home(job)}/a/b",
        f"{home(job)}/" + "s" * 2000, f"file://{foreign}", "http://127.0.0.1:1/step_5", "s3://others/step_5",
        "step_5", "/", "/proc/self", "", f"{home(job)}/step_5\n", "local:step_00000005-e2", "local:../../etc",
    ]  # fmt: skip
    for path in paths:
        for state in ("writing", "failed", "complete"):
            tell(fleet, job, path, state=state)
        tell(fleet, job, path, kind="local")
    assert not job.checkpoints.exists()
    counted = FrameCounter.objects.filter(reason="foreign_checkpoint")
    assert sum(counted.values_list("count", flat=True)) == 4 * len(paths)
    assert Event.objects.filter(kind="checkpoint.refused", job_id=job.id).count() == 1
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    assert Incident.objects.filter(job=job).exists()
    assert not list(tmp_path.glob("references/incidents/*/checkpoint")), "nothing is pinned"


def test_a_row_from_before_that_points_elsewhere_is_neither_read_nor_resumed_from(tmp_path: Path) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    foreign = write_checkpoint(tmp_path / "step_5", job, 5)
    Checkpoint.objects.create(
        id="ckpt_old", job=job, attempt=1, step=5, epoch=2, path=str(foreign), kind="scheduled", state="complete",
        started_at=ago(9.0), committed_at=ago(8.0), verify_due_at=now(),
    )  # fmt: skip
    for rank in live_ranks(job):
        kill_rank(fleet, rank)
    reconcile_job(job.id)
    row = Checkpoint.objects.get()
    assert row.state == "corrupt"
    assert "does not lie in the job's own directory" in row.state_reason
    assert job.attempts.get(number=2).resume_path == ""


@pytest.mark.parametrize("swapped", ["step", "job", "file"])
def test_a_link_that_is_put_in_later_leads_nowhere(swapped: str, tmp_path: Path, settings: Settings) -> None:
    """Reported from a directory in order; by the time it is read, a name on the way is a link."""
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path / "references"
    fleet = make_fleet()
    job = run_job(fleet)
    own = write_checkpoint(home(job) / "step_5", job, 5)
    tell(fleet, job, str(own))
    victim = {"step": own, "job": home(job), "file": own / ".metadata"}[swapped]
    elsewhere = tmp_path / "elsewhere"
    shutil.move(victim, elsewhere)
    victim.symlink_to(elsewhere)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    assert Incident.objects.filter(job=job).exists()
    assert not list(tmp_path.glob("references/incidents/*/checkpoint")), "nothing is pinned"
    read_all_back()
    row = job.checkpoints.get()
    assert row.state == "corrupt"
    assert "link" in row.state_reason


def test_a_named_pipe_or_a_marker_without_end_holds_nobody_up() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    pipe, deep = (write_checkpoint(home(job) / f"step_{step}", job, step) for step in (5, 6))
    (pipe / ".metadata").unlink()
    os.mkfifo(pipe / ".metadata")
    (deep / "COMMITTED.json").write_bytes(b'{"files":' + b"[" * 1_000_000)
    for step, path in ((5, pipe), (6, deep)):
        tell(fleet, job, str(path), step=step)
    read_all_back()
    assert {row.step: row.state for row in job.checkpoints.all()} == {5: "corrupt", 6: "corrupt"}


def test_nothing_of_a_jobs_own_program_is_loaded_or_run(tmp_path: Path, settings: Settings) -> None:
    """Its bytes are compared with the marker; the certificate says why it does not judge losses."""
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path / "references"
    fleet = make_fleet(5)
    job = run_job(fleet, entrypoint=("python", "train.py"), checkpoint=specs.Checkpoint(restore_test=True))
    tell(fleet, job, str(write_checkpoint(home(job) / "run" / "iter_0000005", job, 5)))
    read_all_back()
    row = job.checkpoints.get()
    assert row.state == "verified"
    assert (row.verify_due_at, wants_load(row)) == (None, False)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    Incident.objects.filter(job=job).update(resolved_at=ago(3600.0))
    incident = Incident.objects.get(job=job)
    certificate = certify(incident)
    proof.start(incident, until_step=9)
    losses = next(check for check in certificate["checks"] if check["name"] == "loss_matches_reference")
    assert losses["ok"] is None
    assert losses["detail"] == "not judged: own program's checkpoints are not loaded by the server"
    assert not proof.comes(incident)
    assert not list(tmp_path.glob("references/incidents/*")), "nothing is pinned, and no run was begun"
