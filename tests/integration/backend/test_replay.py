"""The journal made again: by the policies that decided, and by a candidate."""

from typing import Any

import pytest
from django.db.models import Q

from controlplane.access.project_models import Project
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.policies import selectors, services
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS, Whose
from controlplane.policy.document import Ground
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.replay import Page, replay
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from tests.integration.backend.builders import job_that_lost_a_rank, kill_rank, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
HOLD = {"rule_modes": {"replica_failure": "recommend"}}


@pytest.fixture(autouse=True)
def _sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def by(document: dict[str, Any], **more: Any) -> Page:
    return replay(since_s=3600.0, candidate=selectors.candidate(FLEETS, document), **more)


def kinds(page: Page) -> list[tuple[str, str]]:
    return [
        (str(each.change.kind), each.change.before.choice)
        for each in page.differs
        if each.change and each.change.before
    ]


def put(document: Any, job: Job | None = None, parent: int = 0) -> None:
    services.put(Whose(job=job), document, Edit(parent=parent, reason="a test", actor="user:ada"), Ground())


def test_the_policy_that_decided_makes_every_decision_again_byte_for_byte() -> None:
    fleet, job = job_that_lost_a_rank()
    put({"lease_s": 20})
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    Signal.objects.create(
        id=new_id("sig"), node=Node.objects.get(name="n5"), kind="xid", device_index=0, value=79.0, key="xid:5:0:79",
        seen_at=now(), evidence={"xid": 79},
    )  # fmt: skip
    reconcile_fleet()
    page = replay(since_s=3600.0)
    made = Decision.objects.count()
    assert Decision.objects.filter(job=None).exists() and len(set(Decision.objects.values_list("policy_version"))) == 2
    assert (page.replayed, page.equal, page.differs, page.left_out, page.after) == (made, made, [], {}, None)


def test_a_decision_that_comes_out_otherwise_is_named_with_what_differs() -> None:
    _, job = job_that_lost_a_rank()
    row = Decision.objects.filter(job=job, rule="replica_failure").latest("id")
    Decision.objects.filter(pk=row.pk).update(sentence="Other words.", cost_gpu_s=(row.cost_gpu_s or 0.0) + 1.0)
    (differs,) = replay(since_s=3600.0).differs
    assert (differs.decision_id, differs.fields) == (row.id, ("sentence", "cost_gpu_s"))
    Decision.objects.filter(pk=row.pk).update(key="gone")
    (differs,) = replay(since_s=3600.0).differs
    assert (differs.fields, differs.again) == (("key",), None)


def test_what_cannot_be_made_again_is_left_out_with_the_reason_and_never_equal() -> None:
    _, job = job_that_lost_a_rank()
    first, second, third, *_ = Decision.objects.filter(job=job).order_by("id")
    Decision.objects.filter(pk=first.pk).update(policy_version="0123456789ab")
    Decision.objects.filter(pk=second.pk).update(snapshot=b"")
    Decision.objects.filter(pk=third.pk).update(snapshot=b"\x01damaged")
    page = replay(since_s=3600.0)
    assert sum(page.left_out.values()) == 3 and page.equal == page.replayed == Decision.objects.count() - 3
    assert {"policy that decided", "no snapshot is kept", "damaged"} == {
        word
        for word in ("policy that decided", "no snapshot is kept", "damaged")
        if any(word in r for r in page.left_out)
    }


def test_a_candidate_says_what_it_would_have_held_and_at_what_price() -> None:
    _, job = job_that_lost_a_rank()
    page = by(HOLD)
    assert kinds(page) == [("held", "evict_and_replace")]
    assert page.differs[0].change is not None and page.differs[0].change.before is not None
    assert page.differs[0].change.before.cost_gpu_s is not None
    assert page.equal == page.replayed - 1
    same = by({})
    assert (same.differs, same.equal) == ([], same.replayed)
    assert Decision.objects.filter(job=job, mode="recommend").count() == 0, "nothing is stored"


def test_a_candidate_of_the_fleet_is_narrowed_by_each_jobs_own_document() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    put(HOLD, job)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    assert by({"max_acts": 19}).differs == []


def test_a_candidate_of_a_job_is_about_that_job_alone() -> None:
    _, job = job_that_lost_a_rank()
    other = Decision.objects.filter(job=job).earliest("id")
    Decision.objects.filter(pk=other.pk).update(job=None, key="of the fleet")
    page = replay(since_s=3600.0, among=Q(job=job), candidate=selectors.candidate(Whose(job=job), HOLD))
    assert kinds(page) == [("held", "evict_and_replace")]
    assert page.replayed == Decision.objects.filter(job=job).count() == Decision.objects.count() - 1
    assert page.left_out == {}, "what is not the job's is not read"


def test_what_a_pass_found_already_made_is_not_compared_again() -> None:
    _, job = job_that_lost_a_rank()
    Decision.objects.filter(job=job, rule="replica_failure").update(rule="lifecycle", key="made in another pass")
    page = by(HOLD)
    assert page.differs == [] and page.equal == page.replayed


def test_what_one_pass_decided_is_not_torn_by_the_end_of_a_page() -> None:
    _, job = job_that_lost_a_rank()
    row = Decision.objects.filter(job=job).latest("id")
    before = Decision.objects.exclude(snapshot=row.snapshot).count()
    together = Decision.objects.filter(snapshot=row.snapshot).count() + 3
    for number in range(3):
        row.pk, row.key = new_id("dec"), f"another {number}"
        row.save(force_insert=True)
    page = by(HOLD, limit=before + 1)
    assert page.replayed == before and page.after is not None
    assert by(HOLD, after=page.after).replayed == together


def test_what_a_candidate_adds_is_one_difference_however_many_passes_would_decide_it() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    put(HOLD)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    page = by({})
    assert [str(each.change.kind) for each in page.differs if each.change] == ["freed"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_together_are_the_whole(limit: int) -> None:
    job_that_lost_a_rank()
    whole, pages, after = by(HOLD), [], ""
    while True:
        page = by(HOLD, limit=limit, after=after)
        pages.append(page)
        if page.after is None:
            break
        after = page.after
    assert sum(page.replayed for page in pages) == whole.replayed
    assert [each.decision_id for page in pages for each in page.differs] == [each.decision_id for each in whole.differs]


def test_only_the_asked_time_is_made_again() -> None:
    job_that_lost_a_rank()
    assert replay(since_s=1e-3).replayed == 0


def test_a_candidate_of_a_project_lies_between_the_fleets_document_and_each_jobs() -> None:
    _, job = job_that_lost_a_rank()
    project = Project.objects.get(name=job.project)
    services.put(Whose(job=job), {"lease_s": 30}, Edit(parent=0, reason="a test", actor="user:ada"), Ground())
    candidate = selectors.candidate(Whose(project=project), HOLD | {"lease_s": 20})
    assert (candidate(job.pk).lease_s, dict(candidate(job.pk).rule_modes)) == (30.0, {"replica_failure": "recommend"})
    assert candidate(None) == selectors.of_fleet()
    page = replay(since_s=3600.0, among=Q(job__project=project.pk), candidate=candidate)
    assert ("held", "evict_and_replace") in kinds(page)


def test_what_a_projects_document_decided_is_made_again_byte_for_byte_after_it_has_changed() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    project = Project.objects.get(name=job.project)
    edit = Edit(parent=0, reason="a test", actor="user:ada")
    services.put(Whose(project=project), HOLD, edit, Ground())
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    services.rollback(Whose(project=project), 0, Edit(parent=1, reason="a test", actor="user:ada"))
    reconcile_job(job.id)
    page = replay(since_s=3600.0)
    assert page.replayed == page.equal == Decision.objects.count() and not page.differs
    made = Decision.objects.filter(job=job, rule="replica_failure").order_by("id")
    assert [row.policy_documents["project"] for row in made][:2] == [1, 2]
