"""Policy documents over the API: read, changed, compared, brought back."""

from typing import Any

import msgspec
import pytest

from controlplane.access.project_models import Project
from controlplane.jobs.models import Job
from controlplane.policies import selectors
from controlplane.policy.document import DEFAULT
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.protocol import rest
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job
from tests.integration.backend.builders import job_that_lost_a_rank

pytestmark = pytest.mark.django_db
TEXT = "lease_s: 20\nmax_acts: 9\nxid_overrides:\n  63: ignore\nrule_modes:\n  straggler: observe\n"


def body(text: str, parent: int = 0, **more: Any) -> dict[str, Any]:
    return {"text": text, "parent": parent, "reason": "fewer at night"} | more


@pytest.fixture
def job(db: None) -> Job:
    return running_job([make_node("node-1"), make_node("node-2")], SPEC)


@pytest.fixture
def lost(db: None, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that lost a replica, with the decisions that were really made."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)
    return job_that_lost_a_rank()[1]


def test_the_overview_says_how_far_the_fleets_policy_lets_automation_go(caller: Any) -> None:
    reader = caller("read")
    health = reader.get("/overview").json()["health"]
    assert (health["mode"], health["rules_held"]) == ("enforce", 0)
    held = "rule_modes:\n" + "".join(f"  {rule}: recommend\n" for rule in sorted(REMEDIAL))
    assert caller("admin").post("/policy:put", body(held)).status_code == 201
    health = reader.get("/overview").json()["health"]
    assert (health["mode"], health["rules_held"]) == ("recommend", 0)


def test_without_a_document_every_field_has_its_default_and_says_where_that_comes_from(caller: Any) -> None:
    row = caller("read").get("/policy").json()
    assert (row["number"], row["document"], row["version"]) == (0, {}, DEFAULT.version)
    assert {field["set_by"] for field in row["fields"]} == {"default"}
    lease = next(field for field in row["fields"] if field["name"] == "lease_s")
    assert (lease["value"], lease["unit"], lease["source"], lease["safer"]) == (10.0, "s", "own value", "higher")
    assert all(field["because"] for field in row["fields"])


def test_a_change_is_in_force_at_once_and_is_stored_with_who_when_and_why(caller: Any) -> None:
    admin = caller("admin")
    made = admin.post("/policy:put", body(TEXT))
    assert made.status_code == 201, made.content
    assert selectors.of_fleet().max_acts == 9 and selectors.of_fleet().xid_overrides == {63: "ignore"}
    row = admin.get("/policy").json()
    set_by = {field["name"]: field["set_by"] for field in row["fields"] if field["set_by"] != "default"}
    assert set_by == {"lease_s": "fleet", "max_acts": "fleet"}
    assert (row["modes"], row["xids"], row["number"]) == ({"straggler": "observe"}, {"63": "ignore"}, 1)
    health = admin.get("/overview").json()["health"]
    assert (health["mode"], health["rules_held"]) == ("enforce", 1)
    (version,) = admin.get("/policy/versions").json()["items"]
    assert (version["who"], version["reason"], version["parent"]) == ("user:ada (token admin)", "fewer at night", 0)
    assert version["text"] == row["text"] == TEXT
    assert admin.post("/policy:put", body(row["text"], 1)).status_code == 409, "the text means the same again"


def test_json_is_taken_as_yaml_is(caller: Any) -> None:
    admin = caller("admin")
    assert admin.post("/policy:put", body('{"max_acts": 9, "xid_overrides": {"63": "ignore"}}')).status_code == 201
    assert selectors.of_fleet().xid_overrides == {63: "ignore"}


def test_who_has_not_read_the_newest_version_changes_nothing(caller: Any) -> None:
    admin = caller("admin")
    admin.post("/policy:put", body("max_acts: 9"))
    late = admin.post("/policy:put", body("max_acts: 8"))
    assert late.status_code == 409 and "version 1 is the newest" in late.json()["detail"]
    assert admin.post("/policy:rollback", {"to": 0, "parent": 0, "reason": "r"}).status_code == 409
    assert selectors.of_fleet().max_acts == 9


def test_a_document_is_refused_whole_with_every_fault(caller: Any) -> None:
    answer = caller("admin").post("/policy:put", body("max_acts: 0\nleese_s: 10\nlease_s: 20\n"))
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/max_acts", "/leese_s"]
    assert selectors.of_fleet() == DEFAULT
    broken = caller("admin").post("/policy:put", body("max_acts: [1"))
    assert (broken.status_code, broken.json()["errors"][0]["pointer"]) == (422, "/text")


def test_a_timeout_below_what_this_fleet_measured_is_refused(caller: Any, job: Job) -> None:
    step = job.steps.first()
    assert step is not None
    job.steps.all().delete()
    for number in range(30):
        step.pk, step.step, step.step_time_s, step.stall_s = None, number, 25.0, 0.0
        step.save(force_insert=True)
    answer = caller("admin").post("/policy:put", body("lease_s: 20"))
    assert answer.status_code == 422
    assert "below what was measured here: a step takes 25 s" in answer.json()["errors"][0]["message"]
    (seen,) = [row for row in caller("read").get("/policy").json()["measured"] if row["field"] == "lease_s"]
    assert (seen["p99_s"], seen["samples"]) == (25.0, 30)


def test_a_jobs_document_narrows_and_is_its_own(caller: Any, job: Job) -> None:
    admin = caller("admin")
    admin.post("/policy:put", body("lease_s: 20"))
    wider = admin.post("/policy:put", body("lease_s: 15", job_id=job.id))
    assert wider.status_code == 422 and "only narrow" in wider.json()["errors"][0]["message"]
    assert admin.post("/policy:put", body("lease_s: 30", job_id=job.name)).status_code == 201
    row = admin.get(f"/policy?job_id={job.id}").json()
    lease = next(field for field in row["fields"] if field["name"] == "lease_s")
    assert (row["job_name"], row["number"], lease["value"], lease["set_by"]) == (job.name, 1, 30.0, "job")
    assert admin.get("/policy").json()["fields"][0]["value"] == 20.0
    assert admin.get(f"/policy/versions?job_id={job.id}&count=true").json()["total"] == 1
    assert admin.get("/policy?job_id=job_none").status_code == 404


def test_two_versions_are_compared_and_one_is_brought_back(caller: Any) -> None:
    admin = caller("admin")
    admin.post("/policy:put", body("max_acts: 9"))
    admin.post("/policy:put", body("max_acts: 8\nlease_s: 20", 1))
    found = admin.get("/policy/diff?before=1&after=2").json()["changes"]
    assert found == [
        {"field": "lease_s", "before": 10.0, "after": 20.0},
        {"field": "max_acts", "before": 9, "after": 8},
    ]
    assert admin.get("/policy/diff?before=0&after=9").status_code == 404
    back = admin.post("/policy:rollback", {"to": 1, "parent": 2, "reason": "too few"})
    assert back.status_code == 201
    assert (back.json()["number"], back.json()["restores"]) == (3, 1)
    assert admin.get("/policy/diff?before=1&after=3").json()["changes"] == []


def test_a_dry_run_stores_nothing_and_says_what_would_be_decided_otherwise(caller: Any, lost: Job) -> None:
    operator = caller("operate")
    hold = {"since_s": 3600, "text": "rule_modes: {replica_failure: recommend}"}
    whole = operator.post("/policy:replay", hold).json()
    (held,) = whole["differences"]
    assert (held["kind"], held["before"]["choice"], held["job_name"]) == ("held", "evict_and_replace", lost.name)
    assert held["after"]["mode"] == "recommend" and held["before"]["cost_gpu_s"] is not None
    assert whole["changes"] == [{"field": "rule_modes.replica_failure", "before": None, "after": "recommend"}]
    assert selectors.of_fleet() == DEFAULT and operator.get("/policy/versions?count=true").json()["total"] == 0
    of_job = operator.post("/policy:replay", hold | {"job_id": lost.id}).json()
    assert [each["kind"] for each in of_job["differences"]] == ["held"]
    assert operator.post("/policy:replay", hold | {"text": "max_acts: 0"}).status_code == 422


def test_a_replay_is_paged_and_equal(caller: Any, lost: Job) -> None:
    operator, cursor, pages = caller("operate"), "", []
    while True:
        page = operator.post("/policy:replay", {"since_s": 3600, "limit": 2, "cursor": cursor}).json()
        msgspec.convert(page, rest.PolicyReplay)
        pages.append(page)
        if page["next"] is None:
            break
        cursor = page["next"]
    replayed = sum(page["replayed"] for page in pages)
    assert len(pages) > 1 and replayed == sum(page["equal"] for page in pages) == lost.decisions.count()
    assert operator.post("/policy:replay", {"since_s": 3600, "cursor": "x"}).status_code == 400


def test_a_decision_that_was_edited_comes_out_otherwise(caller: Any, lost: Job) -> None:
    lost.decisions.filter(rule="replica_failure").update(sentence="Other words.")
    (differs,) = caller("operate").post("/policy:replay", {"since_s": 3600}).json()["differences"]
    assert (differs["kind"], differs["fields"]) == ("differs", ["sentence"])
    assert differs["before"]["sentence"] == "Other words." != differs["after"]["sentence"]


def test_a_decisions_version_leads_to_its_policy(caller: Any, job: Job) -> None:
    admin = caller("admin")
    decision = admin.get(f"/jobs/{job.id}/decisions").json()["items"][0]
    assert admin.get(f"/policy/recorded/{decision['policy_version']}").status_code == 404, "no real policy made it"
    first = admin.get(f"/policy/recorded/{DEFAULT.version}").json()
    assert (first["changes"], first["numbers"]) == ([], [])
    made = admin.post("/policy:put", body("max_acts: 9")).json()
    row = admin.get(f"/policy/recorded/{made['version']}").json()
    assert (row["changes"], row["numbers"]) == ([{"field": "max_acts", "before": 20, "after": 9}], [1])
    assert admin.get("/policy/recorded/0123456789ab").status_code == 404


def test_a_project_stands_between_the_fleet_and_its_jobs_and_each_says_who_set_what(caller: Any, job: Job) -> None:
    admin, name = caller("admin"), job.project
    admin.post("/policy:put", body("lease_s: 20"))
    wider = admin.post("/policy:put", body("lease_s: 15", project=name))
    assert "a project's policy may only narrow: 15 is below the fleet's 20" in wider.json()["errors"][0]["message"]
    alone = admin.post("/policy:put", body("preempt_patience_s: 5", project=name))
    assert alone.status_code == 422 and "the fleet's alone" in alone.json()["errors"][0]["message"]
    assert admin.post("/policy:put", body("lease_s: 30\nmax_acts: 9", project=name)).status_code == 201
    below = admin.post("/policy:put", body("lease_s: 25", job_id=job.id)).json()
    assert f"25 is below the project {name}'s 30" in below["errors"][0]["message"]
    admin.post("/policy:put", body("lease_s: 40", job_id=job.id))
    found = {}
    for where in ("", f"?project={name}", f"?job_id={job.id}"):
        row = admin.get(f"/policy{where}").json()
        msgspec.convert(row, rest.Policy)
        values = {field["name"]: (field["value"], field["set_by"]) for field in row["fields"]}
        found[where] = (row["project"], row["job_name"], values["lease_s"], values["max_acts"])
    assert list(found.values()) == [
        (None, None, (20.0, "fleet"), (20, "default")),
        (name, None, (30.0, "project"), (9, "project")),
        (name, job.name, (40.0, "job"), (9, "project")),
    ]
    admin.post("/policy:put", body("lease_s: 50", 1))
    again = admin.get(f"/policy?job_id={job.id}").json()["fields"][0]
    assert (again["value"], again["set_by"]) == (50.0, "fleet"), "the narrower counts"


def test_versions_diff_and_roll_back_of_a_project_are_its_own(caller: Any, job: Job) -> None:
    admin, name = caller("admin"), job.project
    admin.post("/policy:put", body("lease_s: 20", project=name))
    admin.post("/policy:put", body("lease_s: 30", 1, project=name))
    late = admin.post("/policy:put", body("lease_s: 40", 1, project=name))
    assert late.status_code == 409
    assert admin.get(f"/policy/versions?project={name}&count=true").json()["total"] == 2
    assert admin.get("/policy/versions?count=true").json()["total"] == 0
    found = admin.get(f"/policy/diff?project={name}&before=0&after=2").json()["changes"]
    assert found == [{"field": "lease_s", "before": 10.0, "after": 30.0}]
    back = admin.post("/policy:rollback", {"to": 0, "parent": 2, "reason": "as it was", "project": name})
    assert (back.status_code, back.json()["number"]) == (201, 3)
    both = admin.post("/policy:put", body("{}", project=name, job_id=job.id))
    assert (both.status_code, both.json()["errors"][0]["pointer"]) == (422, "/project")
    assert admin.get("/policy?project=no-such-one").status_code == 404


def test_a_dry_run_of_a_project_is_over_its_jobs_alone(caller: Any, lost: Job) -> None:
    operator = caller("operate")
    hold = {"since_s": 3600, "text": "rule_modes: {replica_failure: recommend}"}
    found = operator.post("/policy:replay", hold | {"project": lost.project}).json()
    assert [each["kind"] for each in found["differences"]] == ["held"]
    assert found["changes"] == [{"field": "rule_modes.replica_failure", "before": None, "after": "recommend"}]
    Project.objects.create(name="empty", visibility="open")
    none = operator.post("/policy:replay", hold | {"project": "empty"}).json()
    assert (none["replayed"], none["differences"]) == (0, [])
    own = operator.post("/policy:replay", {"since_s": 3600, "project": lost.project}).json()
    assert own["replayed"] == own["equal"] == lost.decisions.count()


def test_a_decision_says_which_documents_made_it(caller: Any, lost: Job) -> None:
    reader = caller("read")
    row = lost.decisions.filter(rule="replica_failure").latest("id")
    assert reader.get(f"/decisions/{row.id}").json()["policy_documents"] == {"fleet": 0, "project": 0, "job": 0}
    lost.decisions.filter(pk=row.pk).update(policy_documents=None)
    assert reader.get(f"/decisions/{row.id}").json()["policy_documents"] is None, "of an earlier release"
