"""The trust ladder in rows: climbed by evidence only, and left when a rank cannot load."""

import hashlib
import json
import shutil
import time
from pathlib import Path

import pytest
from django.test import override_settings

from controlplane.checkpoints import examine, services
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.services import verify_due
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.rank import CheckpointReport
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import Fleet, bodies, join_all, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
LOCAL = specs.Checkpoint(local=specs.LocalTier(dir="/nvme", interval_steps=2, copies=1))
LIMIT_S = 90.0


def report_local(fleet: Fleet, job: Job, step: int, holders: tuple[tuple[str, ...], ...]) -> None:
    row = live_ranks(job)[0]
    path = f"local:step_{step:08d}-e2"
    said = CheckpointReport(step, path, "complete", "local", 2, digest="d", holders=holders)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))


def home(job: Job) -> Path:
    """Where the server told the job's ranks to keep checkpoints."""
    return Path(job.attempts.order_by("number").first().checkpoint_dir)


def commit(fleet: Fleet, job: Job, step: int, *, oldest_kept: tuple[int, int] = (0, 0)) -> Checkpoint:
    path = home(job) / f"step_{step}"
    path.mkdir(parents=True)
    (path / "shard").write_bytes(b"good")
    files = [{"name": "shard", "bytes": 4, "blake2b": hashlib.blake2b(b"good", digest_size=16).hexdigest()}]
    marker = {
        "format": 1, "job_id": job.id, "attempt": 1, "step": step, "epoch": 2, "kind": "interval",
        "layout": {"tp": 1, "pp": 2, "replicas": 3}, "consumed_samples": 0, "files": files,
    }  # fmt: skip
    (path / "COMMITTED.json").write_text(json.dumps(marker))
    row = live_ranks(job)[0]
    said = CheckpointReport(step, str(path), "complete", "scheduled", 2, digest="d", oldest_kept=oldest_kept)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    return job.checkpoints.get(step=step, kind="scheduled")


def kill_all(fleet: Fleet, job: Job, code: int | None, *, log: str = "") -> None:
    for rank in live_ranks(job):
        number = 9 if code is None else None
        fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), code, number, False, log))
    reconcile_job(job.id)


def climbed(row: Checkpoint) -> list[str]:
    kinds = Event.objects.filter(entity_id=row.id).order_by("id").values_list("kind", flat=True)
    return [kind.removeprefix("checkpoint.") for kind in kinds]


def test_a_local_checkpoint_climbs_as_far_as_its_copies_carry_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=LOCAL)
    report_local(fleet, job, 2, (("node_1", "node_2"), ("node_2", "node_3")))
    report_local(fleet, job, 4, (("node_1",), ("node_2", "node_3")))
    report_local(fleet, job, 6, ((), ("node_2",)))
    states = {row.step: row.state for row in job.checkpoints.all()}
    assert states == {2: "replicated", 4: "verified", 6: "corrupt"}
    assert climbed(job.checkpoints.get(step=2)) == ["complete", "verified", "replicated"]


def test_a_restart_takes_the_local_step_that_its_nodes_hold() -> None:
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=LOCAL)
    commit(fleet, job, 1)
    everywhere = tuple(node.id for node in fleet.nodes.values())
    report_local(fleet, job, 2, (everywhere, everywhere))
    report_local(fleet, job, 4, (("node_gone",), everywhere))
    kill_all(fleet, job, None)
    attempt = job.attempts.get(number=2)
    assert (attempt.resume_step, attempt.resume_path) == (2, "local:step_00000002-e2")
    started = [body.launch.config.resume for _, body in bodies(job, "start_ranks") if body.launch.attempt == 2]
    assert {(resume.path, resume.step) for resume in started} == {("local:step_00000002-e2", 2)}


def test_what_ranks_refuse_to_load_is_passed_over_and_said_so() -> None:
    """On the nodes' disks nothing but the ranks' word (exit 74) is to be had; what can be read
    here keeps its place as long as it reads back."""
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=LOCAL)
    commit(fleet, job, 1)
    everywhere = tuple(node.id for node in fleet.nodes.values())
    report_local(fleet, job, 4, (everywhere, everywhere))
    kill_all(fleet, job, None)
    assert job.attempts.get(number=2).resume_step == 4
    join_all(fleet, job)
    kill_all(fleet, job, 74, log="Traceback\nResumeFailed: local:step_00000004-e2: its content is not what was written")
    row = job.checkpoints.get(step=4)
    assert row.state == "corrupt"
    assert "its content is not what was written" in row.state_reason
    assert job.attempts.get(number=3).resume_step == 1
    said = job.decisions.filter(rule="restart").order_by("-at").first().sentence
    assert "passed over as corrupt: step 4" in said
    join_all(fleet, job)
    kill_all(fleet, job, 74, log="ResumeFailed: a fault of the software")
    assert job.checkpoints.get(step=1).state == "complete"


def test_a_storage_that_fails_burns_no_checkpoint() -> None:
    """The ranks leave with 75, as from any passing trouble: the next attempt takes the same one."""
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=specs.Checkpoint(dir="s3://bucket/runs"))
    row = live_ranks(job)[0]
    path = f"s3://bucket/runs/{job.id}/step_00000003-e2"
    said = CheckpointReport(3, path, "complete", "scheduled", 2, digest="d")
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    with override_settings(CHECKPOINT_ROOTS=("s3://bucket",)):
        kill_all(fleet, job, None)
        join_all(fleet, job)
        kill_all(fleet, job, 75, log=f"StorageAway: {path} cannot be read: EndpointConnectionError")
    assert [attempt.resume_path for attempt in job.attempts.order_by("number")] == ["", path, path]
    assert states(job) == {3: "complete"}


def test_an_error_of_the_disk_burns_no_checkpoint() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    here = commit(fleet, job, 1)
    marker = home(job) / "step_1" / "COMMITTED.json"
    marker.chmod(0)  # Whoever reads it is no root.
    verify(job, step=1)
    assert states(job) == {1: "complete"}
    assert "Permission denied" in Checkpoint.objects.get(pk=here.pk).state_reason
    assert not services.distrust_if_damaged(job, here.path)
    marker.unlink()
    verify(job, step=1)
    assert states(job) == {1: "corrupt"}


def test_what_retention_has_removed_is_off_the_ladder_and_never_resumed_from() -> None:
    """Whatever state it had reached; each tier by itself, and not before it is said."""
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=LOCAL)
    report_local(fleet, job, 1, (("node_1", "node_2"),) * 2)
    for step in (1, 2, 3):
        commit(fleet, job, step)
    verify(job, step=1)
    verify(job, step=2)
    shutil.rmtree(home(job) / "step_1")
    (home(job) / "step_3" / "shard").write_bytes(b"harm")
    commit(fleet, job, 4, oldest_kept=(2, 2))
    assert states(job) == {1: "pruned", 2: "verified", 3: "complete", 4: "complete"}
    assert job.checkpoints.get(kind="local").state == "replicated"
    assert job.checkpoints.get(step=1, kind="scheduled").verify_due_at is None
    verify(job, step=3)
    being_read = job.checkpoints.get(step=4)
    commit(fleet, job, 5, oldest_kept=(2, 5))
    services._look(being_read)
    assert states(job) == {1: "pruned", 2: "pruned", 3: "pruned", 4: "pruned", 5: "complete"}
    assert "it was corrupt" in job.checkpoints.get(step=3).state_reason
    shutil.rmtree(home(job) / "step_5")
    Checkpoint.objects.filter(step=5).update(state="corrupt")
    Checkpoint.objects.filter(kind="local").update(state="pruned")
    kill_all(fleet, job, None)
    assert job.attempts.get(number=2).resume_step == 0
    said = job.decisions.filter(rule="restart").order_by("-at").first().sentence
    assert "passed over as corrupt: step 5" in said
    assert "step 3" not in said


def test_a_restore_test_is_a_load_in_a_process_of_its_own() -> None:
    """Torch is here, so that a directory that is no torch_dist checkpoint reads back but does
    not load, and falls off the ladder."""
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=specs.Checkpoint(restore_test=True))
    row = commit(fleet, job, 1)
    _sweep_until(row, "corrupt")
    assert climbed(row)[-2:] == ["verified", "corrupt"]
    assert "it does not load" in Checkpoint.objects.get(pk=row.pk).state_reason


def test_what_cannot_be_examined_stays_where_it_is_and_says_why() -> None:
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=specs.Checkpoint(dir="nosuch://bucket"))
    row = live_ranks(job)[0]
    said = CheckpointReport(3, f"nosuch://bucket/{job.id}/step_00000003-e2", "complete", "scheduled", 2, digest="d")
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    saved = job.checkpoints.get(step=3)
    deadline = time.monotonic() + LIMIT_S
    with override_settings(CHECKPOINT_ROOTS=("nosuch://bucket",)):
        while not Checkpoint.objects.get(pk=saved.pk).state_reason and time.monotonic() < deadline:
            _sweep(saved)
    fresh = Checkpoint.objects.get(pk=saved.pk)
    assert (fresh.state, fresh.verify_due_at) == ("complete", None)
    assert "nosuch:// cannot be used here" in fresh.state_reason


def states(job: Job) -> dict[int, str]:
    """Of the persistent tier."""
    return dict(job.checkpoints.filter(kind="scheduled").values_list("step", "state"))


def verify(job: Job, *, step: int) -> None:
    """Read it back now, and no other."""
    Checkpoint.objects.update(verify_due_at=None)
    Checkpoint.objects.filter(job=job, step=step, kind="scheduled").update(verify_due_at=now())
    verify_due()


def _sweep(row: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=row.pk, verify_due_at__isnull=False).update(verify_due_at=now())
    verify_due()
    time.sleep(0.1)


def _sweep_until(row: Checkpoint, state: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while Checkpoint.objects.get(pk=row.pk).state != state:
        assert time.monotonic() < deadline, Checkpoint.objects.get(pk=row.pk).state_reason
        _sweep(row)
    for process in examine._running:
        process.wait()
