"""`manage.py adopt_job`: on rows that are older than what was started, no attempt gets a number that one had before, so
that the fence beside its checkpoints lets it save."""

from pathlib import Path

import msgspec
import pytest
from django.core.management import CommandError, call_command

from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.services import submit_job
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import Fleet, make_fleet
from tests.integration.backend.conftest import job_spec

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fleet() -> Fleet:
    return make_fleet()


def adopted(folder: Path, *fence: str, started: bool = True, ahead: dict[str, int] | None = None) -> Job:
    """A job after the command, with these files in its fence. `ahead`: what agents have reported of it."""
    job = submit_job(job_spec(), owner="ada", actor="ada")
    file = folder / "job.yaml"
    file.write_bytes(msgspec.json.encode(environment.without_values(job.spec)))
    if started:
        reconcile_job(job.id)
        Attempt.objects.filter(job=job).update(checkpoint_dir=str(folder / "checkpoints"))
    Job.objects.filter(pk=job.id).update(ahead=ahead or {})
    (folder / "checkpoints" / "FENCE").mkdir(parents=True)
    for name in fence:
        (folder / "checkpoints" / "FENCE" / name).write_bytes(b"fence")
    call_command("adopt_job", job.id, str(file))
    job.refresh_from_db()
    return job


def test_attempts_that_the_rows_do_not_know_are_counted_as_started(tmp_path: Path) -> None:
    job = adopted(tmp_path, "a2-e4", "a12-e9", "a3-e31", "a99-e", ".a99-e99.tmp", "b99-e99")
    assert job.ahead == {"attempt": 12, "epoch": 9}


@pytest.mark.parametrize("fence", [(), ("a0-e1",), ("a1-e0",), ("else",)])
def test_a_fence_that_is_not_ahead_changes_nothing(tmp_path: Path, fence: tuple[str, ...]) -> None:
    assert adopted(tmp_path, *fence).ahead == {}


@pytest.mark.parametrize(
    ("fence", "attempt", "epoch"), [("a2-e4", 12, 90), ("a12-e80", 12, 90), ("a13-e80", 13, 90), ("a13-e95", 13, 95)]
)
def test_what_agents_have_reported_is_never_lowered(tmp_path: Path, fence: str, attempt: int, epoch: int) -> None:
    job = adopted(tmp_path, fence, ahead={"attempt": 12, "epoch": 90})
    assert job.ahead == {"attempt": attempt, "epoch": epoch}


def test_a_job_that_was_never_started_is_adopted_too(tmp_path: Path) -> None:
    assert adopted(tmp_path, "a7-e7", started=False).ahead == {}


def test_the_next_attempt_is_numbered_above_the_fence(tmp_path: Path) -> None:
    job = adopted(tmp_path, "a7-e40")
    Attempt.objects.filter(job=job).update(state="ended")
    Job.objects.filter(pk=job.id).update(state="pending")
    reconcile_job(job.id)
    newest = Attempt.objects.filter(job=job).latest("number")
    job.refresh_from_db()
    assert newest.number == 8 and job.epoch > 40


def test_a_job_that_is_none_is_said(tmp_path: Path) -> None:
    adopted(tmp_path)
    with pytest.raises(CommandError, match="no job"):
        call_command("adopt_job", "job_none", str(tmp_path / "job.yaml"))
