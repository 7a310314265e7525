"""Policy documents in force: who decides by them from when on, and what a decision leads back to."""

from typing import Any

import msgspec
import pytest

from controlplane.access.append_only import AppendOnlyError
from controlplane.access.models import AuditEntry
from controlplane.access.project_models import Project
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Replica
from controlplane.jobs.services import submit_job
from controlplane.policies import selectors, services
from controlplane.policies.models import PolicyContent, PolicyVersion
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS, Whose
from controlplane.policy import plan
from controlplane.policy.document import DEFAULT, Ground, Measure, config_of, narrowed
from controlplane.protocol.spec import Metadata
from controlplane.protocol.states import Mode
from controlplane.recovery import gauges, load_queue
from controlplane.recovery.apply import already_taken
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.ground import ground
from controlplane.recovery.models import Decision, Signal, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, from_s, now, now_s
from controlplane.runtime.errors import Conflict, Invalid
from controlplane.runtime.ids import new_id
from controlplane.runtime.models import Event
from tests.integration.backend.builders import (
    job_that_lost_a_rank,
    kill_rank,
    live_ranks,
    make_fleet,
    make_job,
    run_job,
)
from tests.integration.backend.conftest import job_spec

pytestmark = pytest.mark.django_db(transaction=True)
RECOMMEND = {"rule_modes": {"replica_failure": "recommend"}}


@pytest.fixture(autouse=True)
def _sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def another_job() -> Job:
    document = job_spec()
    return submit_job(msgspec.structs.replace(document, metadata=Metadata(name="other")), owner="ada", actor="ada")


def put(document: Any, whose: Job | Project | None = None, *, parent: int | None = None, **more: Any) -> PolicyVersion:
    """Store it on top of the newest."""
    job, project = (whose if isinstance(whose, kind) else None for kind in (Job, Project))
    scope = Whose(job=job, project=project)
    newest = selectors.newest(scope.scope)
    known = parent if parent is not None else newest.number if newest is not None else 0
    edit = Edit(parent=known, reason="a test", actor="user:ada")
    return services.put(scope, document, edit, more.get("ground", Ground()))


def decisions(job: Job, rule: str) -> list[tuple[str, bool]]:
    rows = Decision.objects.filter(job=job, rule=rule).order_by("id")
    return list(rows.values_list("mode", "applied"))


def test_the_next_pass_decides_by_the_newest_document_and_says_so() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    row = put(RECOMMEND)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    made = Decision.objects.filter(job=job, rule="replica_failure").latest("id")
    assert (made.mode, made.applied, made.policy_version) == ("recommend", False, row.version)
    assert row.version == config_of(RECOMMEND).version != DEFAULT.version


def test_a_decisions_version_leads_to_the_whole_policy_after_the_document_has_changed() -> None:
    _, job = job_that_lost_a_rank()
    put({"max_acts": 7}, job)
    put({"lease_s": 20})
    for row in Decision.objects.filter(job=job):
        assert selectors.by_version(row.policy_version) == DEFAULT
    assert PolicyContent.objects.filter(pk=DEFAULT.version).exists(), "it is stored, as another release has others"
    assert selectors.by_version("none") is None


def test_what_was_only_recommended_is_carried_out_once_the_rule_may_act() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    put(RECOMMEND)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    assert decisions(job, "replica_failure") == [("recommend", False)]
    reconcile_job(job.id)
    assert len(decisions(job, "replica_failure")) == 1, "it is recorded once"
    put({})
    reconcile_job(job.id)
    assert decisions(job, "replica_failure")[:2] == [("recommend", False), ("enforce", True)]
    keys = Decision.objects.filter(job=job, rule="replica_failure").order_by("id").values_list("key", flat=True)
    assert keys[0] == keys[1]
    assert Replica.objects.filter(attempt__job=job, index=0).count() == 2, "it was started elsewhere"


def test_what_was_carried_out_is_not_recommended_after_the_rule_was_held_back() -> None:
    _, job = job_that_lost_a_rank()
    made = decisions(job, "replica_failure")
    assert ("enforce", True) in made
    put({"rule_modes": {"replica_failure": "observe"}})
    reconcile_job(job.id)
    assert decisions(job, "replica_failure") == made


@pytest.mark.parametrize(
    ("kept", "taken"),
    [
        ("observe", {"observe"}),
        ("recommend", {"observe", "recommend"}),
        ("enforce", {"observe", "recommend", "enforce"}),
    ],
)
def test_a_key_is_taken_as_far_as_it_went_and_no_further(kept: str, taken: set[str]) -> None:
    _, job = job_that_lost_a_rank()
    row = Decision.objects.filter(job=job, rule="replica_failure").latest("id")
    Decision.objects.filter(pk=row.pk).update(mode=kept)
    decision = plan.Decision(
        rule=row.rule, choice=row.choice, reason_code="r", sentence="s", key=row.key, actions=()
    )  # fmt: skip
    found = {str(mode) for mode in Mode if already_taken(job, msgspec.structs.replace(decision, mode=mode))}
    assert found == taken


def lost_device() -> None:
    node = Node.objects.order_by("id").first()
    assert node is not None
    Signal.objects.create(
        id=new_id("sig"), node=node, kind="xid", device_index=0, value=79.0, key=f"xid:{node.id}:0:79", seen_at=now(),
        evidence={"xid": 79},
    )  # fmt: skip


def test_the_fleets_own_pass_obeys_the_document_and_acts_once_it_may() -> None:
    make_fleet(3)
    put({"rule_modes": {"device_fault": "observe"}})
    lost_device()
    assert reconcile_fleet() > 0
    modes = Decision.objects.filter(job=None, rule="device_fault").order_by("id").values_list("mode", flat=True)
    assert set(modes) == {"observe"}
    reconcile_fleet()
    assert len(modes.all()) == 1, "it is recorded once"
    put({})
    reconcile_fleet()
    assert set(modes.all()) == {"observe", "enforce"}


def test_a_jobs_document_holds_back_that_job_alone() -> None:
    fleet = make_fleet(8)
    first, other = run_job(fleet), another_job()
    put(RECOMMEND, first)
    assert selectors.of_job(first.pk).rule_modes == {"replica_failure": Mode.RECOMMEND}
    assert selectors.of_job(other.pk) == selectors.of_fleet() == DEFAULT
    kill_rank(fleet, live_ranks(first)[0])
    reconcile_job(first.pk)
    made = Decision.objects.filter(job=first, rule="replica_failure").latest("id")
    assert (made.mode, made.policy_version) == ("recommend", narrowed(DEFAULT, RECOMMEND).version)
    assert selectors.by_version(made.policy_version) == narrowed(DEFAULT, RECOMMEND)


def test_a_jobs_document_that_is_wider_than_the_fleets_is_refused_and_counts_for_nothing_later() -> None:
    job = make_job()
    put({"lease_s": 20})
    with pytest.raises(Invalid, match="1 fault") as refused:
        put({"lease_s": 15}, job)
    assert refused.value.errors[0]["pointer"] == "/lease_s"
    put({"lease_s": 30}, job)
    put({"lease_s": 60})
    assert selectors.of_job(job.pk).lease_s == 60.0


def test_two_editors_never_overwrite_each_other() -> None:
    put({"lease_s": 20})
    put({"lease_s": 30}, parent=1)
    with pytest.raises(Conflict, match="version 2 is the newest, not 1"):
        put({"lease_s": 40}, parent=1)
    with pytest.raises(Conflict, match="says that already"):
        put({"lease_s": 30})
    assert selectors.of_fleet().lease_s == 30.0


def test_versions_are_appended_and_never_changed() -> None:
    row = put({"lease_s": 20})
    row.reason = "another"
    with pytest.raises(AppendOnlyError):
        row.save()
    with pytest.raises(AppendOnlyError):
        PolicyVersion.objects.all().delete()
    assert (row.who, row.parent, row.number) == ("user:ada", 0, 1)


def test_a_rollback_is_a_new_version_that_says_what_it_brought_back() -> None:
    put({"lease_s": 20})
    put({"lease_s": 30, "max_acts": 5})
    edit = Edit(parent=2, reason="too slow", actor="user:eve")
    back = services.rollback(FLEETS, 1, edit)
    assert (back.number, back.parent, back.restores, back.document) == (3, 2, 1, {"lease_s": 20})
    services.rollback(FLEETS, 0, Edit(parent=3, reason="all of it", actor="user:eve"))
    assert selectors.of_fleet() == DEFAULT
    rows = AuditEntry.objects.filter(action__startswith="policy.").order_by("id")
    assert [row.action for row in rows] == ["policy.put", "policy.put", "policy.rollback", "policy.rollback"]
    assert (rows[2].before, rows[2].after) == ({"lease_s": 30, "max_acts": 5}, {"lease_s": 20, "max_acts": 20})
    assert (rows[2].actor, rows[2].reason) == ("user:eve", "too slow")


def test_what_was_measured_since_stops_no_rollback() -> None:
    put({"lease_s": 12})
    put({"lease_s": 30})
    slow = Ground(measured={"lease_s": Measure(p99_s=25.0, samples=500, what="a step")})
    with pytest.raises(Invalid):
        put({"lease_s": 12}, ground=slow)
    services.rollback(FLEETS, 1, Edit(parent=2, reason="as it was", actor="user:ada"))
    assert selectors.of_fleet().lease_s == 12.0


def test_a_change_makes_the_jobs_that_it_concerns_due_and_is_on_the_timeline() -> None:
    first, other = make_job(), another_job()
    later = from_s(now_s() + 3600.0)
    Job.objects.update(due_at=later)
    put({"lease_s": 20}, first)
    assert set(Job.objects.filter(due_at__lte=now()).values_list("pk", flat=True)) == {first.pk}
    put({"lease_s": 15})
    assert set(Job.objects.filter(due_at__lte=now()).values_list("pk", flat=True)) == {first.pk, other.pk}
    events = Event.objects.filter(kind="policy.changed").order_by("seq")
    assert [row.job_id for row in events] == [first.pk, ""]
    assert "lease_s" in events[1].sentence and "user:ada" in events[1].sentence


def test_the_queue_and_the_breaker_read_the_document_that_is_in_force() -> None:
    fleet = make_fleet(5)
    put({"preempt_patience_s": 5, "max_acts": 1})
    assert load_queue.config().preempt_patience_s == 5.0
    assert gauges.breaker()[gauges.ACTS] == 0.0
    job = run_job(fleet)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    assert Decision.objects.filter(job=job, rule="replica_failure", applied=True).exists()
    assert gauges.breaker()[gauges.ACTS] == 1.0


def test_a_job_that_is_deleted_takes_its_documents_along_and_no_other() -> None:
    job = make_job()
    put({"lease_s": 20})
    put({"lease_s": 30}, job)
    job.delete()
    assert list(PolicyVersion.objects.values_list("scope", flat=True)) == ["fleet"]


def test_what_is_measured_is_read_from_rows() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet, steps=30)
    ViewRow.objects.filter(job=job).update(announced_at=ago(9.0), ordered_at=ago(2.0))
    job.steps.update(step_time_s=3.0)
    found = ground()
    assert (found.nodes, found.devices) == (5, 10)
    assert found.measured["lease_s"] == Measure(p99_s=3.0, samples=30, what="a step")
    assert found.measured["flush_limit_s"].p99_s == pytest.approx(7.0, abs=0.1)
    assert "save_first_s" not in found.measured


def project_of(job: Job, name: str = "vision") -> Project:
    """A project, in which the job is from now on."""
    project = Project.objects.create(name=name)
    Job.objects.filter(pk=job.pk).update(project=name)
    job.refresh_from_db()
    return project


def test_a_projects_document_holds_back_its_jobs_alone_and_each_decision_names_the_documents_behind_it() -> None:
    fleet = make_fleet(8)
    first, other = run_job(fleet), another_job()
    project = project_of(first)
    put({"max_acts": 15})
    row = put(RECOMMEND, project)
    put({"lease_s": 30}, first)
    put({"lease_s": 40}, first)
    assert selectors.of_job(other.pk) == selectors.of_fleet() == config_of({"max_acts": 15})
    kill_rank(fleet, live_ranks(first)[0])
    reconcile_job(first.pk)
    made = Decision.objects.filter(job=first, rule="replica_failure").latest("id")
    assert (made.mode, made.policy_documents) == ("recommend", {"fleet": 1, "project": 1, "job": 2})
    by_hand = config_of({"max_acts": 15, "lease_s": 40, "rule_modes": {"replica_failure": "recommend"}})
    assert selectors.by_version(made.policy_version) == by_hand
    assert row.version == config_of({"max_acts": 15} | RECOMMEND).version, "of the project, without the job's"


def test_the_fleets_own_decisions_name_the_fleets_document() -> None:
    make_fleet(3)
    put({"max_acts": 15})
    lost_device()
    reconcile_fleet()
    found = Decision.objects.filter(job=None)
    assert found.exists() and all(row.policy_documents == {"fleet": 1} for row in found)


def test_a_change_of_a_project_wakes_its_jobs_and_is_told_to_no_stream() -> None:
    first, other = make_job(), another_job()
    project = project_of(first)
    Job.objects.update(due_at=from_s(now_s() + 3600.0))
    put({"lease_s": 20}, project)
    assert set(Job.objects.filter(due_at__lte=now()).values_list("pk", flat=True)) == {first.pk} != {other.pk}
    assert not Event.objects.filter(kind="policy.changed").exists(), "a stream is read by who does not see the project"
    entry = AuditEntry.objects.get(action="policy.put")
    assert (entry.subject, entry.before, entry.after) == ("project:vision", {"lease_s": 10.0}, {"lease_s": 20.0})


def test_a_project_with_the_name_of_a_scope_takes_no_place_but_its_own() -> None:
    job = make_job()
    project = project_of(job, "fleet")
    put({"lease_s": 20}, project)
    assert selectors.of_fleet() == DEFAULT and selectors.of_job(job.pk).lease_s == 20.0


def test_a_change_of_the_fleet_that_projects_cannot_follow_is_refused_by_name_and_a_roll_back_is_not() -> None:
    job = make_job()
    project = project_of(job)
    put({"lease_s": 12})
    put({"lease_s": 20})
    put({"witness_s": 15}, project)
    with pytest.raises(Invalid) as refused:
        put({"lease_s": 12})
    (fault,) = refused.value.errors
    assert (
        fault["pointer"] == "/lease_s" and "the project vision: witness_s 15 could not be reached" in fault["message"]
    )
    with pytest.raises(Invalid):
        put({})
    assert put({"lease_s": 16}).number == 3
    back = services.rollback(FLEETS, 1, Edit(parent=3, reason="it must work", actor="user:ada"))
    assert back.number == 4 and selectors.of_job(job.pk).lease_s == 12.0


def test_a_change_of_a_project_that_its_jobs_cannot_follow_is_refused_by_name_until_they_are_over() -> None:
    job = make_job()
    project = project_of(job)
    put({"lease_s": 30}, project)
    put({"witness_s": 25}, job)
    with pytest.raises(Invalid) as refused:
        put({"lease_s": 20}, project)
    assert job.name in refused.value.errors[0]["message"]
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    assert put({"lease_s": 20}, project).number == 2


def test_a_projects_versions_come_back_as_the_fleets_do() -> None:
    project = project_of(make_job())
    put({"lease_s": 20}, project)
    put({"lease_s": 40, "max_acts": 5}, project)
    back = services.rollback(Whose(project=project), 1, Edit(parent=2, reason="too slow", actor="user:eve"))
    assert (back.scope, back.number, back.restores, back.document) == ("project:vision", 3, 1, {"lease_s": 20})
    services.rollback(Whose(project=project), 0, Edit(parent=3, reason="all of it", actor="user:eve"))
    assert selectors.of(Whose(project=project)) == DEFAULT
