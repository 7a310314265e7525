"""A certificate over a recovery in which the server's clock was set back by 20 s: numbers and epochs
tell what came after what, times do not."""

import pytest

from controlplane.jobs.models import Attempt, Job, StepRecord
from controlplane.protocol.states import AttemptState
from controlplane.recovery.certificate import certify
from controlplane.recovery.models import Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import commit_step, make_fleet, run_job
from tests.integration.backend.test_certificates import go_on, kill_replica, resolved

pytestmark = pytest.mark.django_db
LAST = 8


def set_back() -> tuple[Job, Incident]:
    """Steps 0 to 3 in the first view, 4 to 7 in the next. Steps 2 and 3 were committed by a clock that was
    20 s ahead; 0 and 1 long before, 4 and 5 by times that lie before the window of the incident."""
    fleet = make_fleet(5)
    job = run_job(fleet)
    for step in (2, 3):
        commit_step(fleet, job, step)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    job.refresh_from_db()
    go_on(fleet, job, first=4, until=LAST)
    incident = resolved(job)
    steps = StepRecord.objects.filter(job=job)
    steps.filter(step__lt=2).update(at=ago(90.0))
    steps.filter(step__in=(2, 3)).update(at=ago(12.0))
    steps.filter(step__in=(4, 5)).update(at=ago(65.0))
    ViewRow.objects.filter(job=job, resumed_at__isnull=False).update(resumed_at=ago(30.0))
    return job, incident


def test_no_step_is_called_lost_and_none_late_that_was_committed_before_the_view() -> None:
    _, incident = set_back()
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    assert checks["no_step_lost"]["ok"] is True, checks["no_step_lost"]
    assert checks["no_step_lost"]["detail"] == f"steps 0 to {LAST - 1} are all there"
    assert checks["old_incarnation_fenced"]["ok"] is True, checks["old_incarnation_fenced"]


def test_where_all_that_came_after_lies_before_the_window_nothing_is_called_late() -> None:
    job, incident = set_back()
    StepRecord.objects.filter(job=job, step__gte=4).update(at=ago(65.0))
    certificate = certify(incident)
    told = next(check for check in certificate["checks"] if check["name"] == "old_incarnation_fenced")
    assert told["ok"] is not False, told
    assert certificate["state"] != "red"


def test_a_step_that_no_row_has_is_missed_all_the_same() -> None:
    job, incident = set_back()
    StepRecord.objects.filter(job=job, step=5).delete()
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    said = "no report of step 5 is there; the steps after it count it as committed"
    assert (checks["no_step_lost"]["ok"], checks["no_step_lost"]["detail"]) == (None, said)


def test_a_step_of_which_no_report_came_is_not_lost_where_a_new_attempt_has_gone_on_from_before_it() -> None:
    job, incident = set_back()
    first = job.attempts.get()
    job.attempts.update(state=AttemptState.ENDED)
    Attempt.objects.create(job=job, number=2, resume_step=4, layout=first.layout, replicas=3, checkpoint_dir="/c")
    StepRecord.objects.filter(job=job, step__gte=4).update(attempt=2)
    StepRecord.objects.filter(job=job, step=4).delete()
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    said = "no report of step 4 is there; the steps after it count it as committed"
    assert (checks["no_step_lost"]["ok"], checks["no_step_lost"]["detail"]) == (None, said)


def test_a_step_of_the_old_view_after_the_new_one_went_on_is_a_breach() -> None:
    job, incident = set_back()
    old = min(ViewRow.objects.filter(job=job).values_list("epoch", flat=True))
    StepRecord.objects.filter(job=job, step=LAST - 1).update(epoch=old, at=ago(11.0))
    certificate = certify(incident)
    told = next(check for check in certificate["checks"] if check["name"] == "old_incarnation_fenced")
    assert certificate["state"] == "red"
    assert f"step {LAST - 1} of an epoch before view" in told["detail"]


def test_an_incident_in_whose_middle_the_clock_was_set_back_is_judged_by_the_order_of_commits() -> None:
    """It began by a clock 30 s ahead of the one by which it ended: by times its steps and its eviction came before."""
    job, incident = set_back()
    Incident.objects.filter(pk=incident.pk).update(opened_at=ago(10.0), recovered_at=ago(38.0), resolved_at=ago(38.0))
    StepRecord.objects.filter(job=job, step__lt=4).update(at=ago(11.0))
    StepRecord.objects.filter(job=job, step__gte=4).update(at=ago(36.0))
    incident.refresh_from_db()
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    assert checks["no_step_lost"]["detail"] == f"steps 0 to {LAST - 1} are all there"
    assert "1.1 from view" in checks["old_incarnation_fenced"]["detail"]
    assert checks["sample_ledger_exact"]["ok"] is True, checks["sample_ledger_exact"]


def test_no_hole_opens_before_the_fault_where_the_clock_was_set_back_shortly_before() -> None:
    """The steps from before that lie beside the fault by their times, those after it too long before."""
    job, incident = set_back()
    StepRecord.objects.filter(job=job, step=0).update(at=ago(40.0))
    StepRecord.objects.filter(job=job, step=1).update(at=ago(70.0))
    StepRecord.objects.filter(job=job, step__in=(2, 3)).update(at=ago(45.0))
    Incident.objects.filter(pk=incident.pk).update(began={"of_attempt": 1, "step": 3, "attempt": 1, "epoch": 2})
    incident.refresh_from_db()
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    assert checks["no_step_lost"]["detail"] == f"steps 2 to {LAST - 1} are all there"
