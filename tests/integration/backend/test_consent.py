"""What a job's policy only recommends, people approve, reject or hold; nothing is done on facts that have changed."""

from datetime import datetime, timedelta

import pytest

from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job
from controlplane.policy.config import PolicyConfig
from controlplane.protocol import spec as specs
from controlplane.protocol.states import Mode
from controlplane.recovery import recommended, verdicts
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.errors import Conflict
from controlplane.runtime.models import ProcessBeat
from tests.integration.backend.builders import Fleet, kill_rank, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
ADA, BOB = "user:ada", "user:bob"


def broken(*, act_after_s: float = 0.0) -> tuple[Fleet, Job, Decision]:
    """A job whose policy only recommends has lost a rank; the recommendation."""
    fleet = make_fleet(4)
    job = run_job(fleet, steps=5, resiliency=specs.Resiliency(mode=Mode.RECOMMEND, act_after_s=act_after_s))
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    return fleet, job, Decision.objects.get(job=job, mode="recommend")


def carried_out(job: Job) -> list[Decision]:
    """Decisions about the lost rank that were carried out."""
    return list(Decision.objects.filter(job=job, rule="replica_failure", applied=True))


def age(row: Decision, seconds: float) -> None:
    """It was recommended so long ago, and the sentinel leads for longer."""
    at = row.at - timedelta(seconds=seconds)
    Decision.objects.filter(pk=row.pk).update(at=at)
    lead_since(at - timedelta(hours=1))


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane sees well."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def lead_since(at: datetime) -> None:
    """A sentinel leads since then."""
    fields = {"role": "lease", "pid": 1, "started_at": at, "beat_at": at, "term": 2, "detail": {}}
    ProcessBeat.objects.update_or_create(name="lease:sentinel", defaults=fields)


def test_nothing_is_done_until_a_person_approves_and_then_by_the_next_pass() -> None:
    _, job, row = broken()
    assert carried_out(job) == [] and not Command.objects.filter(job=job, kind="start_ranks", decision_id=row.pk)
    shown = recommended.shown(row)
    assert (shown["approvals_needed"], shown["acts_at"], set(shown["capabilities"].values())) == (1, None, {""})
    assert any(each.startswith("start replica") for each in shown["reach"])
    verdicts.say(row.pk, "approve", reason="go", person=ADA)
    reconcile_job(job.id)
    (done,) = carried_out(job)
    assert done.key == row.key and done.evidence["consent"] == "Approved by user:ada."
    assert done.sentence.endswith("Approved by user:ada.")
    assert recommended.shown(Decision.objects.get(pk=row.pk))["capabilities"]["reject"].endswith(done.pk)
    entry = AuditEntry.objects.get(action="decision.approve")
    assert (entry.actor, entry.subject, entry.reason) == (ADA, row.pk, "go")


def test_what_was_rejected_is_not_done_and_can_still_be_approved(sees: None) -> None:
    _, job, row = broken(act_after_s=60.0)
    verdicts.say(row.pk, "reject", reason="I look at it first", person=ADA)
    age(row, 3600.0)
    reconcile_job(job.id)
    assert carried_out(job) == []
    with pytest.raises(Conflict, match="it is rejected already"):
        verdicts.say(row.pk, "reject", reason="no", person=BOB)
    verdicts.say(row.pk, "approve", reason="nothing to see", person=BOB)
    reconcile_job(job.id)
    assert len(carried_out(job)) == 1


def test_a_countdown_ends_in_the_act_unless_somebody_holds_it(sees: None) -> None:
    _, job, row = broken(act_after_s=60.0)
    assert recommended.shown(row)["acts_at"] is not None
    reconcile_job(job.id)
    assert carried_out(job) == []
    verdicts.say(row.pk, "hold", reason="wait", person=ADA)
    age(row, 61.0)
    reconcile_job(job.id)
    assert carried_out(job) == [] and recommended.shown(Decision.objects.get(pk=row.pk))["acts_at"] is None
    Decision.objects.filter(pk=row.pk).update(verdict="", verdicts=[])
    reconcile_job(job.id)
    assert carried_out(job)[0].evidence["consent"] == "Nobody objected within 60 s of its recommendation."


def test_a_countdown_counts_only_while_one_sentinel_leads_that_sees(
    sees: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job, row = broken(act_after_s=60.0)
    age(row, 3600.0)
    lead_since(row.at)
    reconcile_job(job.id)
    assert carried_out(job) == [], "the control plane was away: nobody could have objected"
    age(row, 3600.0)
    with monkeypatch.context() as blind:
        blind.setattr("controlplane.recovery.health_gate.is_blind", lambda: True)
        reconcile_job(job.id)
        assert carried_out(job) == []
    reconcile_job(job.id)
    assert len(carried_out(job)) == 1


def test_above_the_limit_two_people_have_to_approve(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job, row = broken()
    limited = PolicyConfig(second_approver_gpu_s=0.001)
    assert row.cost_gpu_s is not None and row.cost_gpu_s > 0.001
    monkeypatch.setattr("controlplane.policies.selectors.of_job", lambda job_id: limited)
    verdicts.say(row.pk, "approve", reason="go", person=ADA)
    reconcile_job(job.id)
    assert carried_out(job) == []
    with pytest.raises(Conflict, match="it takes a second person"):
        verdicts.say(row.pk, "approve", reason="go, go", person=ADA)
    verdicts.say(row.pk, "approve", reason="go", person=BOB)
    reconcile_job(job.id)
    assert carried_out(job)[0].evidence["consent"] == "Approved by user:ada and user:bob."


def test_an_approval_of_what_is_not_recommended_any_more_is_refused() -> None:
    fleet, job, row = broken()
    for rank in live_ranks(job):
        kill_rank(fleet, rank)
    reconcile_job(job.id)
    with pytest.raises(Conflict, match="does not recommend it any more"):
        verdicts.say(row.pk, "approve", reason="late", person=ADA)
    assert carried_out(job) == [] and not AuditEntry.objects.filter(action="decision.approve").exists()


def test_nobody_is_asked_about_what_was_carried_out_at_once() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet, steps=5)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    (done,) = carried_out(job)
    with pytest.raises(Conflict, match="it is no recommendation"):
        verdicts.say(done.pk, "approve", reason="go", person=ADA)
