"""Events of jobs that ended long ago go; what is left and who asks for what went is told so."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane.config.env import Env
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import IncidentState, JobState
from controlplane.recovery import forgetting
from controlplane.recovery.models import Incident
from controlplane.runtime.clock import now
from controlplane.runtime.events import kept_from, newest_seq, publish
from controlplane.runtime.models import Event
from controlplane.sentinel.tasks import retention
from tests.integration.api.conftest import SPEC

pytestmark = pytest.mark.django_db
DAY_S = 86_400.0
OLD_DAYS, RECENT_DAYS, KEPT_DAYS = 40.0, 2.0, 30.0


def job_of(name: str, *, ended_days: float | None, notes: int = 3) -> Job:
    """With its submission and some notes, all of which are old."""
    linted = lint(SPEC | {"metadata": {"name": name}})
    assert linted.spec is not None, linted.faults
    job = submit_job(linted.spec, owner="ada", actor="ada")
    for number in range(notes):
        publish("job.note", f"Note {number}.", job_id=job.id)
    if ended_days is not None:
        Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, finished_at=ago(ended_days))
    Event.objects.filter(job_id=job.id).update(at=ago(OLD_DAYS))
    return job


def ago(days: float) -> Any:
    return now() - timedelta(days=days)


def left(job: Job) -> int:
    return Event.objects.filter(job_id=job.id).count()


def test_who_asks_for_more_than_there_is_after_the_database_was_set_back_is_told_to_read_anew(caller: Any) -> None:
    publish("job.note", "Before the backup.")
    reader, newest = caller("read"), newest_seq()
    assert reader.get(f"/events?after_seq={newest}").json()["items"] == [], "of the newest there is nothing after"
    for path in (f"/events?after_seq={newest + 400}", f"/events/watch?since={newest + 400}"):
        answer = reader.get(path)
        assert (answer.status_code, "was set back" in answer.json()["detail"]) == (410, True), path


def test_events_go_when_their_job_has_ended_long_ago_and_no_others() -> None:
    over, young, runs = (
        job_of(name, ended_days=days) for name, days in (("over", OLD_DAYS), ("young", RECENT_DAYS), ("runs", None))
    )
    publish("node.note", "Of no job.", node_id="node_1")
    Event.objects.filter(job_id="").update(at=ago(OLD_DAYS))
    publish("job.note", "Told today of a job that ended long ago.", job_id=over.id)
    kept = [left(young), left(runs), Event.objects.filter(job_id="").count()]
    assert min(kept) > 0
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) > 0
    assert [left(young), left(runs), Event.objects.filter(job_id="").count()] == kept
    assert [event.sentence for event in Event.objects.filter(job_id=over.id)] == [
        "Told today of a job that ended long ago."
    ]
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) == 0


@pytest.mark.parametrize("unsettled", [{"state": IncidentState.OPEN}, {"certificate_due_at": True}])
def test_a_job_whose_incident_is_not_settled_keeps_its_events(unsettled: dict[str, Any]) -> None:
    job = job_of("over", ended_days=OLD_DAYS)
    settled = {"state": IncidentState.RESOLVED, "certificate_due_at": None}
    due = settled | unsettled | ({"certificate_due_at": now()} if unsettled.get("certificate_due_at") else {})
    incident = Incident.objects.create(id="inc_1", job=job, title="Rank 0 ended", opened_at=ago(OLD_DAYS), **due)
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) == 0
    Incident.objects.filter(pk=incident.pk).update(**settled)
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) > 0
    assert left(job) == 0


def test_many_go_in_short_transactions_the_rest_at_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "BATCH", 4)
    monkeypatch.setattr(forgetting, "MAX_BATCHES", 2)
    job = job_of("over", ended_days=OLD_DAYS, notes=9)
    total, oldest = left(job), kept_from()
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) == 8
    assert left(job) == total - 8
    assert kept_from() == oldest + 8
    assert forgetting.forget_events(KEPT_DAYS * DAY_S) == total - 8


def test_a_cursor_before_what_went_is_told_so_and_numbers_go_on(caller: Any) -> None:
    ada = caller("read")
    over, runs = job_of("over", ended_days=OLD_DAYS), job_of("runs", ended_days=None)
    last = Event.objects.filter(job_id=over.id).order_by("-seq").values_list("seq", flat=True)[0]
    newest = newest_seq()
    forgetting.forget_events(KEPT_DAYS * DAY_S)
    for path in ("/events?after_seq=1", "/events/watch?since=1", f"/jobs/{over.id}/events?after_seq=1"):
        answer = ada.get(path)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (410, "gone"), path
    assert ada.get(f"/events?after_seq={last}").status_code == 200
    assert ada.get("/events").json()["items"][0]["seq"] > last, "0: from the first that is kept"
    assert len(ada.get(f"/jobs/{runs.id}/events?after_seq=1").json()["items"]) == left(runs), "all of its own are there"
    assert ada.get(f"/jobs/{over.id}/events").json()["items"] == []
    publish("job.note", "Goes on.", job_id=runs.id)
    assert newest_seq() == newest + 1


def test_the_setting_says_how_long_and_0_keeps_them_for_good(settings: Any) -> None:
    assert Env.model_fields["event_retention_days"].default == 365.0
    job = job_of("over", ended_days=OLD_DAYS)
    for days, remain in ((0.0, True), (OLD_DAYS + 1, True), (KEPT_DAYS, False)):
        settings.EVENT_RETENTION_DAYS = days
        retention()
        assert bool(left(job)) is remain
