"""The trust ladder in rows: climbed by evidence only, and left when a rank cannot load."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from django.test import override_settings

from controlplane.checkpoints import examine
from controlplane.checkpoints.keep import keep
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.readback import VERDICT, decoded, identity
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.rank import CheckpointReport
from controlplane.recovery import readers
from controlplane.recovery.readers import verify_due
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event
from controlplane.runtime.sandbox import service
from tests.integration.backend.builders import (
    Fleet,
    bodies,
    join_all,
    live_ranks,
    make_fleet,
    nodes_read,
    read_all_back,
    ref_of,
    run_job,
)
from tests.integration.trainer.saved import save
from trainer.checkpoint import manifest

pytestmark = pytest.mark.django_db(transaction=True)
LOCAL = specs.Checkpoint(local=specs.LocalTier(dir="/nvme", interval_steps=2, copies=1))
LIMIT_S = 240.0


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
    doubted = job.checkpoints.get(step=1)
    assert (doubted.state, doubted.doubt) == ("complete", "ResumeFailed: a fault of the software")
    assert job.attempts.get(number=4).resume_step == 1, "there is no other"
    verify(job, step=1)
    sound = job.checkpoints.get(step=1)
    assert (sound.state, sound.doubt) == ("verified", "")


def test_one_that_its_ranks_could_not_load_is_passed_over_until_it_was_read_back() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for step in (1, 2):
        commit(fleet, job, step)
    (home(job) / "step_2" / "shard").write_bytes(b"evil")
    kill_all(fleet, job, None)
    assert job.attempts.get(number=2).resume_step == 2, "nobody has read it yet"
    join_all(fleet, job)
    kill_all(fleet, job, 74, log="ResumeFailed: step_2: shard has another digest than was committed")
    assert job.attempts.get(number=3).resume_step == 1
    verify(job, step=2)
    assert states(job) == {1: "complete", 2: "corrupt"}


def test_what_is_kept_for_an_incident_is_open_to_the_sandboxs_own_user(tmp_path: Path) -> None:
    """The server makes its files for itself alone; the reference run found a folder that it could not
    enter, and every certificate from a pinned checkpoint said that its losses were not judged."""
    fleet = make_fleet()
    job = run_job(fleet)
    row = commit(fleet, job, 5)
    kept, place = tmp_path / "incident" / "checkpoint", tmp_path / "place"
    place.mkdir()
    before = os.umask(0o077)
    try:
        keep(row, kept)
    finally:
        os.umask(before)
    descriptor = os.open(kept, os.O_RDONLY | os.O_DIRECTORY)
    try:
        arguments = ["--path", "{in0}", "--name", "kept", *identity(row), "--out", f"{{out}}/{VERDICT}"]
        code = service.run(
            service.Task(
                module=examine.READER, arguments=arguments, place=place, inputs=[descriptor], outputs=[VERDICT]
            )
        )
    finally:
        os.close(descriptor)
    found = decoded(place)
    assert found is not None and found.ok, (code, found)
    assert found.took_s is not None and 0.0 < found.took_s < 120.0


def test_a_restart_from_a_checkpoint_that_takes_hours_to_read_waits_for_none_of_it() -> None:
    """85 GB could never be restarted from: the job's own transaction read them, for 30 s at most."""
    fleet = make_fleet()
    nodes_cannot_read()
    job = run_job(fleet)
    row = commit(fleet, job, 7)
    shard = home(job) / "step_7" / "shard"
    os.truncate(shard, 1 << 42)
    marker = json.loads((shard.parent / "COMMITTED.json").read_text())
    marker["files"][0]["bytes"] = 1 << 42
    (shard.parent / "COMMITTED.json").write_text(json.dumps(marker))
    Checkpoint.objects.filter(pk=row.pk).update(bytes=1 << 42, verify_due_at=now())
    verify_due()
    kill_all(fleet, job, None)
    assert (job.attempts.get(number=2).resume_step, states(job)) == (7, {7: "complete"})
    (reader,) = [process for process in examine._running if process.poll() is None]
    assert examine.limit_s(Checkpoint.objects.get(pk=row.pk)) > 3600
    join_all(fleet, job)
    small = commit(fleet, job, 8)
    verify(job, step=8)
    assert Checkpoint.objects.get(pk=small.pk).state == "verified", "the other one holds up nobody"
    reader.end()
    Checkpoint.objects.filter(pk=row.pk).update(verify_due_at=now())
    _sweep(row)
    assert states(job)[7] == "complete", "a reader that was ended proves nothing"


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
    nodes_cannot_read()
    job = run_job(fleet)
    here = commit(fleet, job, 1)
    marker = home(job) / "step_1" / "COMMITTED.json"
    marker.chmod(0)  # Whoever reads it is no root.
    verify(job, step=1)
    assert states(job) == {1: "complete"}
    assert "Permission denied" in Checkpoint.objects.get(pk=here.pk).state_reason
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
    readers.attend(being_read)
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


def test_one_that_loads_into_the_jobs_own_model_is_at_the_top_of_the_ladder(tmp_path: Path) -> None:
    fleet = make_fleet()
    job = run_job(fleet, checkpoint=specs.Checkpoint(restore_test=True))
    row = commit(fleet, job, 1)
    saved = Path(row.path)
    shutil.rmtree(saved)
    save(examine._one_rank(row), saved, step=1, scratch=tmp_path)
    (saved / manifest.MARKER).unlink()
    content = manifest.Manifest(
        job_id=job.id, attempt=1, epoch=2, step=1, kind="interval", layout=manifest.Layout(1, 1, 1),
        consumed_samples=12, files=manifest.describe_files(saved),
    )  # fmt: skip
    manifest.write_marker(saved, content)
    _sweep_until(row, "restore_tested")
    assert climbed(row)[-2:] == ["verified", "restore_tested"]
    read_s = Checkpoint.objects.get(pk=row.pk).read_s
    assert read_s is not None and 0.0 < read_s < 240.0, "reading and loading it, on the server's own machine"


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


def nodes_cannot_read() -> None:
    """Their agents are of a release that does not know the order: the server's own machine reads."""
    Node.objects.update(revision=2)


def states(job: Job) -> dict[int, str]:
    """Of the persistent tier."""
    return dict(job.checkpoints.filter(kind="scheduled").values_list("step", "state"))


def verify(job: Job, *, step: int) -> None:
    """Read it back now, and no other."""
    Checkpoint.objects.update(verify_due_at=None)
    row = job.checkpoints.get(step=step, kind="scheduled")
    Checkpoint.objects.filter(pk=row.pk).update(verify_due_at=now())
    read_all_back()


def _sweep(row: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=row.pk, verify_due_at__isnull=False).update(verify_due_at=now())
    verify_due()
    nodes_read()
    time.sleep(0.1)


def _sweep_until(row: Checkpoint, state: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while Checkpoint.objects.get(pk=row.pk).state != state:
        assert time.monotonic() < deadline, Checkpoint.objects.get(pk=row.pk).state_reason
        _sweep(row)
    for process in examine._running:
        process.wait()
