"""V19, jobs that are named in a body or a query, where no address says whose they are; and what is no project's."""

from datetime import timedelta
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.access.project_models import Role
from controlplane.api import openapi
from controlplane.api.faults import FAULTS
from controlplane.dispatch.models import Command
from controlplane.engines.models import Intent, PoolElement
from controlplane.fleet.models import Reservation
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.policies.models import ShadowRun
from controlplane.protocol.spec_lint import lint
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import Decision, Request, Signal
from controlplane.runtime.clock import now
from tests.integration.api.conftest import Caller, make_node
from tests.integration.api.matrix import OF_PROJECTS, OF_THE_FLEET
from tests.integration.api.tenants import OTHER, SECRET, account, caller_of, spec, tenants
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
BODIES: dict[str, dict[str, Any]] = {
    "POST /demo/faults": {"kind": "kill_rank", "replica": 0, "rank": 0},
    "POST /policy:put": {"text": "{}", "parent": 0, "reason": "r"},
    "POST /policy:replay": {"since_s": 60},
    "POST /policy:rollback": {"to": 0, "parent": 0, "reason": "r"},
}
QUERIES = {
    "GET /events": "job_id",
    "GET /events/watch": "job_id",
    "GET /jobs": "project",
    "GET /ledger": "job",
    "GET /policy": "job_id",
    "GET /policy/diff": "before=0&after=0&job_id",
    "GET /policy/versions": "job_id",
    "GET /requests": "job_id",
    "GET /reservations": "project",
}
POLICIES = sorted(name for name in {**BODIES, **QUERIES} if "/policy" in name)
FILTERS = frozenset({"GET /events", "GET /events/watch", "GET /jobs", "GET /requests"})
"""What is not seen gives an empty list."""


def named() -> tuple[set[str], set[str]]:
    """Operations that take a job in their body; those that take a job or a project in their query."""
    schema = openapi.document()
    bodies, queries = set(), set()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path.removeprefix('/api/v1')}"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = schema["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
            if "job_id" in fields.get("properties", {}):
                bodies.add(name)
            asked = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
            if asked & {"job_id", "job", "project"}:
                queries.add(name)
    return bodies, queries


def test_every_operation_that_takes_a_job_beside_its_address_is_attacked() -> None:
    assert named() == (set(BODIES), set(QUERIES))


@pytest.mark.parametrize("operation", sorted(BODIES))
def test_a_job_named_in_a_body_is_judged_in_its_project(db: None, settings: Settings, operation: str) -> None:
    settings.HOLDFAST_DEMO = True
    found, path = tenants(), operation.removeprefix("POST ")
    body = BODIES[operation] | {"job_id": found.job.id}
    outside = {
        "admin of another project": caller_of(account("eve", daylight=Role.ADMIN)),
        "token of another project": caller_of(account("root", fleet="admin", daylight=Role.ADMIN), project=OTHER),
    }
    for who, caller in outside.items():
        hidden, unknown = (caller.post(path, body | {"job_id": job}) for job in (found.job.id, "job_unknown"))
        assert hidden.status_code == unknown.status_code == 404, (who, hidden.content)
        assert hidden.json()["detail"].replace(found.job.id, "job_unknown") == unknown.json()["detail"]
    assert caller_of(account("vic", hush_hush=Role.VIEWER)).post(path, body).status_code == 403
    assert caller_of(account("amy", hush_hush=Role.ADMIN)).post(path, body).status_code not in (401, 403, 404)


@pytest.mark.parametrize("operation", sorted(set(QUERIES) - {"GET /events/watch"}))
def test_a_job_or_a_project_named_in_a_query_is_judged_too(db: None, operation: str) -> None:
    found, path = tenants(), operation.removeprefix("GET ")
    name = found.project.name if QUERIES[operation] == "project" else found.job.id
    where = f"{path}?{QUERIES[operation]}={name}"
    times = {"starts_at": now(), "ends_at": now() + timedelta(hours=1), "said_at": now()}
    kept = Reservation.objects.create(id="resv_1", project=found.project.name, reason="r", who="user:ada", **times)
    kept.nodes.set(found.nodes[:1])
    shown = kept.id if operation == "GET /reservations" else found.job.id
    eve = caller_of(account("eve", daylight=Role.ADMIN)).get(where)
    if operation in FILTERS:
        assert (eve.status_code, eve.json()["items"]) == (200, [])
    else:
        assert eve.status_code == 404
    mia = caller_of(account("mia", hush_hush=Role.VIEWER)).get(where)
    assert mia.status_code == 200 and shown in mia.content.decode() + name


@pytest.mark.parametrize("operation", POLICIES)
def test_a_project_named_for_its_policy_is_judged_and_hidden_as_one_that_is_not_there(db: None, operation: str) -> None:
    found, (method, path) = tenants(), operation.split(" ")
    where = f"{path}?{QUERIES[operation].replace('job_id', 'project')}" if method == "GET" else path
    eve = caller_of(account("eve", fleet="operate", daylight=Role.ADMIN))
    answers = []
    for name in (found.project.name, "no-such-one"):
        answer = (
            eve.get(f"{where}={name}") if method == "GET" else eve.post(path, BODIES[operation] | {"project": name})
        )
        answers.append((answer.status_code, answer.json()["detail"].replace(name, "X")))
    assert answers[0] == answers[1] and answers[0][0] == 404


def own_operator() -> tuple[Caller, Job]:
    """Of the project `OTHER` and of nothing else, with a job there that runs."""
    Signal.objects.update(key="k_exit")
    mine = running_job([make_node("node-4"), make_node("node-5")], spec("mine", OTHER))
    return caller_of(account("eve", daylight=Role.OPERATOR)), mine


@pytest.mark.parametrize("kind", sorted(kind for kind, fault in FAULTS.items() if "job" not in fault.needs))
def test_a_fault_of_the_fleet_is_not_had_by_naming_a_job_of_ones_own(db: None, settings: Settings, kind: str) -> None:
    settings.HOLDFAST_DEMO = True
    found = tenants()
    eve, mine = own_operator()
    body = {"kind": kind, "job_id": mine.id, "node_id": found.nodes[0].id, "device_index": 0}
    assert eve.post("/demo/faults", body).status_code == 403
    assert not Command.objects.exclude(kind="stop_ranks").exists()


def test_a_fault_for_a_job_by_its_name_is_for_the_one_that_was_judged(db: None, settings: Settings) -> None:
    settings.HOLDFAST_DEMO = True
    tenants()
    eve, mine = own_operator()
    linted = lint(spec("mine", SECRET)).spec
    assert linted is not None
    hidden = submit_job(linted, owner="ada", actor="user:ada")
    assert eve.post("/demo/faults", BODIES["POST /demo/faults"] | {"job_id": "mine"}).status_code == 202
    assert Request.objects.get(kind="fault").job_id == mine.id != hidden.id


def test_an_operator_of_a_project_is_none_of_the_fleet(db: None) -> None:
    tenants()
    eve = caller_of(account("eve", daylight=Role.ADMIN))
    Breaker.objects.create(id="brk_1", code="evict", reason="3 acts", opened_at=now(), decision_id="dec_fleet")
    fields = {"rule": "r", "choice": "c", "reason_code": "r", "sentence": "s", "policy_version": "p", "snapshot": b""}
    Decision.objects.create(id="dec_fleet", job=None, at=now(), key="k", mode="recommend", applied=False, **fields)
    PoolElement.objects.create(engine="resident", pool="9", index=1, job="9", state="PENDING", seen_at=now())
    assert eve.get("/breakers").json()["items"][0]["id"] == "brk_1"
    assert eve.get("/engines").json()["items"][0]["pools"][0]["id"] == "9", "nodes are the fleet's"
    assert eve.get("/decisions/dec_fleet").json()["approvals_needed"] == 1, "it is everybody's to read"
    for path, body in (
        ("/breakers/brk_1:close", {"reason": "r"}),
        ("/pools/9:resize", {"size": 1, "reason": "r"}),
        *((f"/decisions/dec_fleet:{act}", {"reason": "r"}) for act in ("approve", "reject", "hold")),
        ("/policy:replay", {"since_s": 60}),
        ("/policy:put", {"text": "{}", "parent": 0, "reason": "r"}),
        ("/policy/shadow:start", {"text": "stop_grace_s: 11\n", "reason": "r"}),
        ("/policy/shadow:promote", {"run": 1, "parent": 0, "reason": "r"}),
    ):
        assert eve.post(path, body).status_code == 403, path
    assert Decision.objects.get(pk="dec_fleet").verdicts == []
    assert not Intent.objects.exists()
    assert Breaker.objects.get().closed_at is None and not ShadowRun.objects.exists()


def test_every_order_for_what_is_not_seen_is_refused_in_the_words_of_what_does_not_exist(db: None) -> None:
    found = tenants()
    callers = {
        "admin of another": caller_of(account("eve", daylight=Role.ADMIN)),
        "operator of the fleet": caller_of(account("bob", fleet="operate")),
    }
    unknown = dict.fromkeys(found.ids, "unknown-one")
    for operation, row in OF_PROJECTS.items():
        method, _, path = operation.partition(" ")
        if method != "POST" or operation in OF_THE_FLEET:
            continue
        for who, caller in callers.items():
            hidden, none = (caller.post(path.format(**ids), row.body) for ids in (found.ids, unknown))
            assert hidden.status_code == none.status_code, (who, operation)
            words = hidden.json()["detail"]
            for name in found.ids.values():
                words = words.replace(f"'{name}'", "'unknown-one'")
            assert words == none.json()["detail"], (who, operation)
