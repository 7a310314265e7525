"""Changes that rest on what was read: If-Match on everything that is changed, and `expected_attempt` of jobs."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access import projects
from controlplane.access.models import AuditEntry
from controlplane.api.edge import EXTRA
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job
from controlplane.protocol.states import JobState
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.present import pending_certificate
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import Caller, make_node
from tests.integration.api.tenants import spec
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
WHY = {"reason": "r"}
STALE = '"0000-000.000"'


@pytest.fixture
def admin(caller: Any) -> Caller:
    found: Caller = caller("admin")
    return found


@pytest.fixture
def job(user: Any) -> Job:
    return running_job([make_node("n1"), make_node("n2")], spec("tiny", "default"))


def objects(job: Job) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Address of each kind of object that has a tag, with an action of it that is allowed now, and its body."""
    node = Node.objects.get(name="n1")
    incident = Incident.objects.create(
        id=new_id("inc"), job=job, node=node, title="t", opened_at=now(), phases=[], state="mitigated",
        certificate=pending_certificate(0),
    )  # fmt: skip
    decision = Decision.objects.create(
        id=new_id("dec"), job=job, at=now(), rule="replace", choice="evict", reason_code="c", sentence="s",
        policy_version="1", snapshot=b"", key="1:k", mode="recommend", applied=False,
    )  # fmt: skip
    return {
        "job": (f"/jobs/{job.id}", ":cancel", WHY),
        "node": (f"/nodes/{node.id}", ":cordon", WHY),
        "project": ("/projects/default", ":set", WHY | {"weight": 2}),
        "policy": ("/policy", ":put", WHY | {"text": "lease_s: 21"}),
        "incident": (f"/incidents/{incident.id}", ":acknowledge", WHY),
        "decision": (f"/decisions/{decision.id}", ":hold", WHY),
    }


def test_a_change_is_made_by_the_tag_that_was_read_and_not_twice_by_the_same(admin: Caller, job: Job) -> None:
    for kind, (address, verb, body) in objects(job).items():
        tag = admin.get(address)["ETag"]
        done = admin.post(address + verb, body, if_match=tag)
        assert done.status_code in (201, 202), (kind, done.content)
        again = admin.post(address + verb, body, if_match=tag)
        assert again.status_code == 412, (kind, again.content)
        problem = again.json()
        assert problem["type"].endswith("/precondition-failed")
        assert problem["errors"] and all(each["pointer"][1:] in problem["detail"] for each in problem["errors"]), kind
        assert admin.get(address)["ETag"].startswith(again["ETag"].rstrip('"')), "the present tag comes with it"


def test_a_refused_change_changes_nothing_and_leaves_no_audit_row(admin: Caller, job: Job) -> None:
    found = objects(job)
    assert admin.get("/me").status_code == 200, "the first use of a token is audited"
    before = set(AuditEntry.objects.values_list("pk", "action"))
    for address, verb, body in found.values():
        assert admin.post(address + verb, body, if_match=STALE).status_code == 412
    assert set(AuditEntry.objects.values_list("pk", "action")) == before
    job.refresh_from_db()
    assert not job.cancel_requested and projects.project("default").weight == 1


def test_every_object_with_a_tag_answers_304_to_it_and_says_it_in_its_body_too(admin: Caller, job: Job) -> None:
    for kind, (address, _, _) in objects(job).items():
        first = admin.get(address)
        assert first.json()["etag"] == first["ETag"] and not first["ETag"].startswith("W/"), kind
        # What is live in an answer (ages, readings) is a part of its tag; nothing here is.
        if kind in ("project", "policy", "incident", "decision"):
            assert admin.get(address, **{"If-None-Match": "W/" + first["ETag"]}).status_code == 304, kind
        assert admin.get(address, **{"If-Match": STALE}).status_code == 412, kind


def test_tags_are_compared_as_rfc_9110_says(admin: Caller, job: Job) -> None:
    address = "/projects/default"
    tag = admin.get(address)["ETag"]
    for header, status in (
        ("*", 202), (tag, 202), (f'"other", {tag}', 202), (f"W/{tag}", 412), (f'W/{tag}, "other"', 412),
        ('"a,b"', 412), (tag.strip('"'), 400), ("", 400), ('"open', 400),
    ):  # fmt: skip
        answered = admin.post(address + ":set", WHY | {"description": ""}, if_match=header)
        assert answered.status_code == status, (header, answered.content)
    weak = admin.post(address + ":set", WHY, if_match=f"W/{tag}").json()
    assert "weak" in weak["detail"] and "proxy" in weak["detail"]
    missing = admin.post("/projects/none:set", WHY, if_match="*")
    assert missing.status_code == 404


def test_a_stale_tag_says_which_fields_have_changed_and_what_they_are_now(admin: Caller, job: Job) -> None:
    tag = admin.get("/projects/default")["ETag"]
    projects.change("default", {"quota_gpus": 8, "weight": 3}, reason="r", actor="user:eve")
    stale = admin.post("/projects/default:set", WHY | {"weight": 2}, if_match=tag).json()
    assert [(each["pointer"], each["message"]) for each in stale["errors"]] == [
        ("/quota_gpus", "is 8 now"), ("/weight", "is 3 now"),
    ]  # fmt: skip
    assert "Read it again" in stale["detail"]


def test_training_on_and_new_readings_leave_a_job_and_a_node_what_they_were(admin: Caller, job: Job) -> None:
    node = Node.objects.get(name="n1")
    tags = {address: admin.get(address)["ETag"] for address in (f"/jobs/{job.id}", f"/nodes/{node.id}")}
    Job.objects.filter(pk=job.pk).update(committed_step=5)
    Device.objects.filter(node=node).update(risk=0.2)
    for address, tag in tags.items():
        assert admin.get(address, **{"If-None-Match": tag}).status_code == 200, "the answer is another one"
        verb = ":checkpoint" if address.startswith("/jobs") else ":cordon"
        assert admin.post(address + verb, WHY, if_match=tag).status_code in (202, 409), "and may be acted on"
    fleet.uncordon(node.pk, reason="r", actor="user:eve")
    again = admin.post(f"/nodes/{node.id}:cordon", WHY, if_match=tags[f"/nodes/{node.id}"])
    assert again.status_code == 412, "a node that came back to its state is not the one that was read"


def test_a_policy_is_changed_by_the_version_that_was_read_and_never_blindly(admin: Caller, db: None) -> None:
    blind = admin.post("/policy:put", WHY | {"text": "lease_s: 21"})
    assert (blind.status_code, blind.json()["type"].rpartition("/")[2]) == (428, "precondition-required")
    tag = admin.get("/policy")["ETag"]
    assert admin.post("/policy:put", WHY | {"text": "lease_s: 21"}, if_match=tag).json()["parent"] == 0
    assert admin.post("/policy:rollback", WHY | {"to": 0}, if_match=tag).status_code == 412
    assert admin.post("/policy:rollback", WHY | {"to": 0, "parent": 1}, if_match=tag).status_code == 412
    assert admin.post("/policy:rollback", WHY | {"to": 0}, if_match=admin.get("/policy")["ETag"]).status_code == 201


def test_an_action_of_a_job_is_refused_at_another_attempt_than_expected(admin: Caller, job: Job) -> None:
    verbs = {
        "checkpoint": {}, "preempt": {}, "resume": {}, "evict-replica": {"replica": 0}, "cancel": {},
        "fault": {"replica": 0, "rank": 0, "fault": "nan"}, "debug": {"replica": 0, "rank": 0, "diagnostic": "ping"},
        "command-rank": {"replica": 0, "rank": 0, "command": {"name": "collect_garbage"}},
    }  # fmt: skip
    newest = admin.get(f"/jobs/{job.id}").json()["attempt"]
    for verb, more in verbs.items():
        body = WHY | more | {"expected_attempt": newest + 1}
        refused = admin.post(f"/jobs/{job.id}:{verb}", body)
        assert refused.status_code == 409, verb
        assert refused.json()["errors"][0]["pointer"] == "/expected_attempt", verb
    job.refresh_from_db()
    assert job.state == JobState.RUNNING and not job.cancel_requested
    assert admin.post(f"/jobs/{job.id}:cancel", WHY | {"expected_attempt": newest}).status_code == 202


def test_an_if_match_that_nothing_compares_is_refused_and_not_ignored(admin: Caller, db: None) -> None:
    from controlplane.api.app import api

    paths = api.get_openapi_schema(path_prefix="")["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    compared = {path for path, operation in posts.items() if 412 in operation[EXTRA]["errors"]}
    named = ("/jobs/{job_id}:", "/nodes/{node_id}:", "/projects/{name}:", "/incidents/", "/decisions/", "/requests/")
    not_compared = {"/nodes/{node_id}:maintain", "/nodes/{node_id}:re-enrol"}
    assert {path for path in posts if path.startswith(named)} - not_compared <= compared
    assert {"/policy:put", "/policy:rollback", "/windows/{window_id}:cancel"} <= compared
    for path in sorted(set(posts) - compared):
        answered = admin.post(path.replace("{", "").replace("}", ""), {}, if_match="*")
        assert answered.status_code == 400 and "If-Match" in answered.json()["detail"], path


def test_reading_one_object_with_its_tag_costs_as_many_queries_whatever_there_is(admin: Caller, job: Job) -> None:
    def cost(address: str) -> int:
        admin.get(address)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert admin.get(address).status_code == 200
        return len(queries)

    node = Node.objects.get(name="n1")
    few = [cost(f"/jobs/{job.id}"), cost(f"/nodes/{node.id}"), cost("/projects/default")]
    for index in range(2, 10):
        Device.objects.create(
            id=new_id("dev"), node=node, index=index, uuid=f"GPU-x-{index}", model="Toy", driver="simulated"
        )
    for index in range(8):
        make_node(f"more-{index}")
    assert [cost(f"/jobs/{job.id}"), cost(f"/nodes/{node.id}"), cost("/projects/default")] == few
