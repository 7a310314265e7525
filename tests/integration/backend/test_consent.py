"""What a job's policy only recommends, people approve, reject or hold; nothing is done on facts that have changed."""

from datetime import datetime, timedelta

import pytest

from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.policies import services
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import Ground
from controlplane.protocol import spec as specs
from controlplane.protocol.states import Mode
from controlplane.recovery import recommended, verdicts
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.replay import replay
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict
from controlplane.runtime.ids import new_id
from controlplane.runtime.models import Event, ProcessBeat
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


def put(document: dict[str, object], parent: int = 0) -> None:
    services.put(FLEETS, document, Edit(parent=parent, reason="a test", actor="user:ada"), Ground())


def dead_device() -> Decision:
    """A device without work that died on a fleet whose policy only recommends what to do about it; the
    recommendation."""
    make_fleet(4)
    put({"rule_modes": {"device_fault": "recommend"}})
    node = Node.objects.earliest("id")
    Signal.objects.create(
        id=new_id("sig"), node=node, kind="xid", device_index=0, value=79.0, key=f"xid:{node.id}:0:79", seen_at=now(),
        evidence={"xid": 79},
    )  # fmt: skip
    reconcile_fleet()
    return Decision.objects.get(job=None, mode="recommend")


def fleet_acts() -> list[Decision]:
    return list(Decision.objects.filter(job=None, rule="device_fault", applied=True).order_by("id"))


def test_a_recommendation_of_the_fleet_waits_for_a_person_and_is_carried_out_by_the_next_pass(sees: None) -> None:
    row = dead_device()
    node = Node.objects.earliest("id")
    shown = recommended.shown(row)
    assert (shown["approvals_needed"], shown["acts_at"], set(shown["capabilities"].values())) == (1, None, {""})
    assert f"make node {node.name} cordoned" in shown["reach"]
    assert row.cost_gpu_s == node.devices.count() * PolicyConfig().bar_s
    reconcile_fleet()
    assert fleet_acts() == [] and Node.objects.get(pk=node.pk).state == "ready"
    verdicts.say(row.pk, "approve", reason="swap it", person=ADA)
    assert fleet_acts() == [], "a word carries nothing out"
    reconcile_fleet()
    (done,) = fleet_acts()
    assert (done.key, done.evidence["consent"]) == (row.key, "Approved by user:ada.")
    assert Node.objects.get(pk=node.pk).state == "cordoned" and Signal.objects.get().settled_at is not None
    refused = recommended.shown(Decision.objects.get(pk=row.pk))["capabilities"]
    assert refused["approve"].endswith(done.pk)
    entry = AuditEntry.objects.get(action="decision.approve")
    assert (entry.actor, entry.subject, entry.reason) == (ADA, row.pk, "swap it")
    told = Event.objects.get(kind="decision.verdict")
    assert (told.node_id, told.job_id) == (node.pk, "")
    page = replay(since_s=3600.0)
    assert page.replayed == page.equal > 1


def test_what_was_rejected_or_held_of_the_fleet_is_left_and_what_is_gone_cannot_be_approved(sees: None) -> None:
    row = dead_device()
    put({"fleet_act_after_s": 60, "rule_modes": {"device_fault": "recommend"}}, 1)
    assert recommended.shown(row)["acts_at"] is not None
    verdicts.say(row.pk, "hold", reason="the rack is being moved", person=ADA)
    age(row, 3600.0)
    reconcile_fleet()
    assert fleet_acts() == []
    verdicts.say(row.pk, "reject", reason="a false reading", person=BOB)
    Signal.objects.update(settled_at=now())
    with pytest.raises(Conflict, match="what it rested on has changed"):
        verdicts.say(row.pk, "approve", reason="late", person=ADA)


def test_a_countdown_of_the_fleet_acts_where_nobody_objected_and_a_second_person_is_asked_above_the_limit(
    sees: None,
) -> None:
    row = dead_device()
    document = {"second_approver_gpu_s": 10, "rule_modes": {"device_fault": "recommend"}}
    put(document, 1)
    verdicts.say(row.pk, "approve", reason="go", person=ADA)
    reconcile_fleet()
    assert fleet_acts() == []
    with pytest.raises(Conflict, match="it takes a second person"):
        verdicts.say(row.pk, "approve", reason="go, go", person=ADA)
    Decision.objects.filter(pk=row.pk).update(verdict="", verdicts=[])
    put(document | {"fleet_act_after_s": 60}, 2)
    age(row, 30.0)
    reconcile_fleet()
    assert fleet_acts() == []
    age(row, 61.0)
    reconcile_fleet()
    (done,) = fleet_acts()
    assert done.evidence["consent"] == "Nobody objected within 60 s of its recommendation."
