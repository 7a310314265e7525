"""One undisturbed run for recoveries that wait together, and one of its own where that settles nothing."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.jobs.models import Job
from controlplane.protocol.launch import TrainerConfig
from controlplane.recovery import proof
from controlplane.recovery.certificate import certify, certify_due
from controlplane.recovery.models import Incident
from controlplane.runtime.clock import ago
from controlplane.runtime.ids import new_id
from controlplane.runtime.sandbox import service
from tests.integration.backend.test_certificates import resolved_with_a_run

pytestmark = pytest.mark.django_db
LOSS = "loss_matches_reference"
SLEEPS = ["-s", "import time; time.sleep(600)", "0"]
Begun = list[tuple[str, int, int]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begun]:
    """Of each run that was begun: whose, from which step and up to which. A sleeper runs in its place."""
    runs: Begun = []
    with contextlib.ExitStack() as ending:

        def begin(config: TrainerConfig, place: Path, until_step: int) -> service.Sandboxed:
            runs.append((place.name, config.resume.step if config.resume else 0, until_step))
            process = service.start(service.Task(module="timeit", arguments=SLEEPS, place=place))
            ending.callback(process.end)
            return process

        monkeypatch.setattr(proof, "_start", begin)
        monkeypatch.setattr(proof._Places, "running", {})
        yield runs


def two_that_wait(settings: Settings, tmp_path: Path) -> tuple[Job, Incident, Incident]:
    """Recoveries of one job, resolved an hour ago: the first with a checkpoint of step 0, the second with
    one of step 1."""
    job, first, _ = resolved_with_a_run(settings, tmp_path)
    second = Incident.objects.get(pk=first.pk)
    second.pk, second.opened_at = new_id("inc"), ago(44.0)
    second.save(force_insert=True)
    for row, step in ((first, 0), (second, 1)):
        (proof.folder(row) / "checkpoint").mkdir(parents=True)
        (proof.folder(row) / "step").write_text(str(step))
        certify(row)
    Incident.objects.filter(job=job).update(resolved_at=ago(3600.0), certificate_due_at=ago(1.0))
    return job, first, second


def write_losses(incident: Incident, losses: list[float], *, first_step: int = 0) -> None:
    (proof.folder(incident) / proof.RUNNING).touch()
    text = json.dumps({"losses": losses, "tolerance": 1e-5, "first_step": first_step})
    (proof.folder(incident) / "losses.json").write_text(text)


def losses_check(incident: Incident) -> dict[str, object]:
    certificate = certify(Incident.objects.get(pk=incident.pk))
    return next(check for check in certificate["checks"] if check["name"] == LOSS)


def test_one_run_is_begun_for_both_from_the_earlier_checkpoint(
    settings: Settings, tmp_path: Path, begun: Begun
) -> None:
    _, first, second = two_that_wait(settings, tmp_path)
    certify_due()
    Incident.objects.update(certificate_due_at=ago(1.0))
    certify_due()
    assert begun == [(first.id, 0, 6)]
    assert proof.shared_with(second) == proof.folder(first)
    assert losses_check(second)["detail"] == "the undisturbed run waits for those of other incidents"


def test_both_are_judged_by_it(settings: Settings, tmp_path: Path) -> None:
    _, first, second = two_that_wait(settings, tmp_path)
    (proof.folder(second) / proof.SHARED).write_text(first.id)
    write_losses(first, [4.0] * 6)
    for row in (first, second):
        check = losses_check(row)
        assert check["ok"] is True
        assert "undisturbed run from step 0" in str(check["detail"])


@pytest.mark.parametrize("losses", [[4.0] * 5 + [4.5], [4.0] * 2, None], ids=["differs", "ends too early", "failed"])
def test_one_that_it_does_not_settle_is_judged_by_a_run_of_its_own(
    settings: Settings, tmp_path: Path, begun: Begun, losses: list[float] | None
) -> None:
    _, first, second = two_that_wait(settings, tmp_path)
    (proof.folder(second) / proof.SHARED).write_text(first.id)
    if losses is None:
        (proof.folder(first) / "failed").touch()
    else:
        write_losses(first, losses)
    assert losses_check(second)["ok"] is None, "a shared run alone makes nothing red"
    assert proof.shared_with(second) is None
    Incident.objects.filter(pk=second.pk).update(certificate_due_at=ago(1.0))
    Incident.objects.filter(pk=first.pk).update(certificate_due_at=None)
    certify_due()
    assert [run[:2] for run in begun] == [(second.id, 1)]
    write_losses(second, [4.0] * 4 + [4.5], first_step=1)
    assert losses_check(second)["ok"] is False


def test_a_run_whose_process_died_is_not_waited_for(settings: Settings, tmp_path: Path) -> None:
    _, first, second = two_that_wait(settings, tmp_path)
    (proof.folder(second) / proof.SHARED).write_text(first.id)
    losses_check(second)
    assert proof.shared_with(second) is None, "it was never begun, or its mark is older than any run lasts"


def test_a_run_is_claimed_once_and_again_only_when_its_mark_is_older_than_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / proof.RUNNING
    assert (proof._claim(mark), proof._claim(mark)) == (True, False)
    assert mark.exists()
    monkeypatch.setattr(proof, "_is_fresh", lambda _mark: False)
    assert not proof._claim(mark), "another process made it since somebody looked"
    monkeypatch.setattr(proof, "GIVE_UP_S", -1.0)
    assert proof._claim(mark)


@pytest.mark.parametrize("name", ["../../elsewhere", "", "inc_x", "/etc"])
def test_a_mark_names_an_incident_and_nothing_else(settings: Settings, tmp_path: Path, name: str) -> None:
    _, _, second = two_that_wait(settings, tmp_path)
    (proof.folder(second) / proof.SHARED).write_text(name)
    assert proof.shared_with(second) is None
