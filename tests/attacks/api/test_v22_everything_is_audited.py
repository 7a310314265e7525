"""Every sign-in, act and refusal leaves its row; a flood of refusals leaves few."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from controlplane.access import join_tokens, projects
from controlplane.access.models import ApiToken, AuditEntry
from controlplane.access.refusals import MAX_ROWS_A_WINDOW, WINDOW_S, Refusals, refusals
from controlplane.access.services import create_api_token, create_one_time_password
from controlplane.api import openapi
from controlplane.api.routers import shadow
from controlplane.engines.models import PoolElement
from controlplane.fleet.models import KnownEnd, Node, Reservation
from controlplane.jobs.models import Job
from controlplane.policies import services as policies
from controlplane.policies import shadows
from controlplane.policies.models import ShadowRun
from controlplane.policies.whose import FLEETS
from controlplane.policy.shadow import Bar
from controlplane.recovery import shadowing, verdicts
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.ground import ground
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.requests import checkpoint
from controlplane.runtime.clock import iso, now
from tests.attacks.backend.test_enrolment_garbage import proved
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job
from tests.integration.backend.fake_agent import join_token

pytestmark = pytest.mark.django_db
WHY = "because the test says so"
WINDOW = {"reason": WHY, "starts_at": iso(now()), "ends_at": iso(now() + timedelta(hours=1))}
BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/login": {"username": "ada", "password": "correct horse battery"},
    "/api/v1/password": {
        "username": "ada",
        "current": "correct horse battery",
        "password": "another horse, another battery",
    },
    "/api/v1/logout": {},
    "/api/v1/tokens": {"name": "ci", "scope": "read"},
    "/api/v1/tokens/{token_id}:revoke": {},
    "/api/v1/jobs": SPEC | {"metadata": {"name": "another"}},
    "/api/v1/jobs/{job_id}:cancel": {"reason": WHY},
    "/api/v1/jobs/{job_id}:checkpoint": {"reason": WHY},
    "/api/v1/jobs/{job_id}:preempt": {"reason": WHY},
    "/api/v1/jobs/{job_id}:resume": {"reason": WHY},
    "/api/v1/jobs/{job_id}:evict-replica": {"reason": WHY, "replica": 0},
    "/api/v1/jobs/{job_id}:fault": {"reason": WHY, "replica": 0, "rank": 0, "fault": "nan"},
    "/api/v1/jobs/{job_id}:debug": {"reason": WHY, "replica": 0, "rank": 0, "diagnostic": "ping"},
    "/api/v1/jobs/{job_id}:command-rank": {
        "reason": WHY,
        "replica": 0,
        "rank": 0,
        "command": {"name": "collect_garbage"},
    },
    "/api/v1/nodes/{node_id}:cordon": {"reason": WHY},
    "/api/v1/nodes/{node_id}:maintain": WINDOW,
    "/api/v1/windows": WINDOW | {"segment": "rack-1"},
    "/api/v1/windows/{window_id}:cancel": {"reason": WHY},
    "/api/v1/reservations": WINDOW | {"segment": "rack-1", "project": "default"},
    "/api/v1/reservations/{reservation_id}:cancel": {"reason": WHY},
    "/api/v1/pools/{pool_id}:resize": {"size": 1, "reason": WHY},
    "/api/v1/nodes/{node_id}:uncordon": {"reason": WHY},
    "/api/v1/nodes/{node_id}:drain": {"reason": WHY},
    "/api/v1/requests/{request_id}:withdraw": {"reason": WHY},
    "/api/v1/devices/{device_id}:reset": {"reason": WHY},
    "/api/v1/nodes/{node_id}:revoke": {"reason": WHY},
    "/api/v1/nodes/{node_id}:restore": {"reason": WHY},
    "/api/v1/nodes/{node_id}:rotate-key": {"reason": WHY},
    "/api/v1/nodes/{node_id}:confirm": {"reason": WHY},
    "/api/v1/nodes/{node_id}:remove": {"reason": WHY},
    "/api/v1/nodes/{node_id}:re-enrol": {"reason": WHY},
    "/api/v1/incidents/{incident_id}:acknowledge": {"reason": WHY},
    "/api/v1/breakers/{breaker_id}:close": {"reason": WHY},
    "/api/v1/decisions/{decision_id}:approve": {"reason": WHY},
    "/api/v1/decisions/{decision_id}:reject": {"reason": WHY},
    "/api/v1/decisions/{decision_id}:hold": {"reason": WHY},
    "/api/v1/projects": {"name": "vision", "reason": WHY},
    "/api/v1/projects/{name}:set": {"max_priority": 700, "reason": WHY},
    "/api/v1/projects/{name}:set-member": {"account": "ada", "role": "operator", "reason": WHY},
    "/api/v1/projects/{name}:remove-member": {"account": "ada", "reason": WHY},
    "/api/v1/policy:put": {"text": "max_acts: 9", "parent": 0, "reason": WHY},
    "/api/v1/policy:rollback": {"to": 0, "parent": 1, "reason": WHY},
    "/api/v1/policy:replay": {"since_s": 60.0},
    "/api/v1/policy/shadow:start": {"text": "max_acts: 9", "reason": WHY},
    "/api/v1/policy/shadow:promote": {"run": 1, "parent": 0, "reason": WHY},
    "/api/v1/policy/shadow:stop": {"run": 1, "reason": WHY},
    "/api/v1/join-tokens": {"name": "n9"},
    "/api/v1/join-tokens/{token_id}:revoke": {},
    "/api/v1/demo/faults": {"kind": "no_spares"},
}
NO_SCOPE_NEEDED = (
    *("/api/v1/login", "/api/v1/password", "/api/v1/logout"),
    *("/api/v1/tokens", "/api/v1/tokens/{token_id}:revoke"),
)
READS = ("/api/v1/policy:replay",)
"""Asked by POST as they are long; nothing is stored or carried out."""
WRITES = [
    path
    for path, operations in json.loads(openapi.render())["paths"].items()
    if set(operations) & {"post", "put", "patch", "delete"}
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    refusals.__init__()  # type: ignore[misc]


@pytest.fixture
def ids(db: None, user: User) -> dict[str, str]:
    nodes = [make_node("node-1"), make_node("node-2")]
    Node.objects.filter(pk=nodes[0].pk).update(segment="rack-1")
    job = running_job(nodes, SPEC)
    incident = Incident.objects.get(job=job)
    return {
        "job_id": job.id,
        "incident_id": incident.id,
        "node_id": nodes[0].id,
        "device_id": make_node("node-9").devices.get(index=0).id,
        "token_id": create_api_token(user, name="old").id,
        "request_id": checkpoint(job, reason="r", actor="user:ada").id,
        "decision_id": _recommended(job).id,
        "name": "default",
        "window_id": KnownEnd.objects.create(
            id="end_1", node=nodes[1], source="spot", leaves_at=now(), reason="r", who="agent", said_at=now()
        ).id,
        "reservation_id": _reserved(make_node("node-8")).id,
        "pool_id": PoolElement.objects.create(
            engine="resident", pool="9", index=1, job="9", state="PENDING", seen_at=now()
        ).pool,
        "breaker_id": Breaker.objects.create(id="brk_1", code="burst", reason="r", opened_at=now()).id,
    }


def _reserved(node: Node) -> Reservation:
    times = {"starts_at": now(), "ends_at": now() + timedelta(hours=1), "said_at": now()}
    row = Reservation.objects.create(id="resv_1", project="default", reason="r", who="user:ada", **times)
    row.nodes.set([node])
    return row


def _recommended(job: Job) -> Decision:
    """A decision that waits for people."""
    fields = {"rule": "r", "choice": "c", "reason_code": "r", "sentence": "s", "policy_version": "p", "snapshot": b""}
    return Decision.objects.create(id="dec_1", job=job, at=now(), key="1:r", mode="recommend", applied=False, **fields)


@pytest.fixture
def target(ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The address of a write, aimed at something that is as the write needs it."""

    def aimed(path: str) -> str:
        here = dict(ids)
        if path.startswith("/api/v1/join-tokens/"):
            here["token_id"] = join_tokens.create(join_tokens.Binding(name="n8")).id
        if path.endswith(":approve"):
            # The policy still recommends it.
            monkeypatch.setattr(verdicts, "_why_no_approval", lambda *args, **given: "")
        if path.endswith(":rollback"):
            policies.put(FLEETS, {"max_acts": 9}, policies.Edit(parent=0, reason="r", actor="user:ada"), ground())
        if path.endswith(("/shadow:promote", "/shadow:stop")):
            run = shadows.start(
                {"max_acts": 9}, Bar(), ground=ground(), actor="user:ada", reason="r", after=shadowing.newest_id()
            )
            ShadowRun.objects.filter(pk=run.pk).update(id=1)
            # It has reached its bar.
            monkeypatch.setattr(shadow, "below", lambda score, bar: ())
        if path.endswith(":remove"):
            here["node_id"] = make_node("node-3").id
        if path.endswith(":restore"):
            Node.objects.filter(pk=here["node_id"]).update(revoked_at=now())
        if path.endswith(":resume"):
            Job.objects.filter(pk=here["job_id"]).update(state="preempted", parked_by="user:ada: r")
        if path.endswith(":remove-member"):
            projects.set_member("default", "ada", "viewer", reason="r", actor="user:ada")
        if path.endswith(":uncordon"):
            Node.objects.filter(pk=here["node_id"]).update(state="cordoned")
        if path.endswith(":confirm"):
            Node.objects.filter(pk=here["node_id"]).update(state="quarantined", doubt="two of it")
        return path.format(**here).removeprefix("/api/v1")

    return aimed


def newest() -> int:
    return AuditEntry.objects.order_by("-id").values_list("id", flat=True).first() or 0


def since(mark: int) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(id__gt=mark).order_by("id"))


@override_settings(HOLDFAST_DEMO=True)
@pytest.mark.parametrize("path", [path for path in WRITES if path not in READS])
def test_every_write_of_the_api_leaves_a_row(caller: Any, target: Callable[[str], str], path: str) -> None:
    assert path in BODIES, f"say here what {path} is sent, so that its audit is tested"
    admin = caller("admin")
    admin.get("/me")
    where, mark = target(path), newest()
    body = BODIES[path] | ({"reason": "r"} if "reason" in BODIES[path] else {})
    response = admin.post(where, body, x_request_id="a-request-of-mine")
    assert response.status_code < 300, response.content
    rows = since(mark)
    assert rows, "nothing was written down"
    assert all(row.actor and row.subject and row.origin == "127.0.0.1" for row in rows)
    assert any(row.request_id == "a-request-of-mine" for row in rows)
    if "reason" in body:
        assert any(row.reason == "r" for row in rows)


@override_settings(HOLDFAST_DEMO=True)
@pytest.mark.parametrize("path", [path for path in WRITES if path not in NO_SCOPE_NEEDED])
def test_every_refused_write_leaves_one_row(caller: Any, ids: dict[str, str], path: str) -> None:
    reader = caller("read")
    reader.get("/me")
    mark = newest()
    assert reader.post(path.format(**ids).removeprefix("/api/v1"), BODIES[path]).status_code == 403
    (row,) = since(mark)
    assert row.action == "request.refused.403"
    assert row.actor.startswith("token:tok_")
    assert "{" not in row.subject
    assert row.subject.startswith("POST /api/v1/")
    assert "needs the scope" in row.reason


def sign_in(name: str, password: str) -> int:
    body = json.dumps({"username": name, "password": password})
    return Client().post("/api/v1/login", body, content_type="application/json").status_code


def test_each_way_of_signing_in_and_out_is_told(user: User) -> None:
    otp = create_one_time_password(user)
    mark = newest()
    assert sign_in("ada", otp) == 200
    assert sign_in("ada", otp) == 401
    assert sign_in("nobody", "x") == 401
    client = Client()
    client.post(
        "/api/v1/login", {"username": "ada", "password": "correct horse battery"}, content_type="application/json"
    )
    client.post("/api/v1/logout")
    told = [(row.actor, row.action) for row in since(mark)]
    assert told[:2] == [("user:ada", "login.one_time_password"), ("user:ada", "login.failed")]
    assert told[2][1] == "login.failed"
    assert told[3:] == [("user:ada", "login.password"), ("user:ada", "logout")]


def test_a_password_typed_as_a_name_is_not_written_down(user: User) -> None:
    mark = newest()
    assert sign_in("correct horse battery", "ada") == 401
    assert all("horse" not in str(vars(row)) for row in since(mark))


def test_attempts_that_are_held_back_are_told(user: User) -> None:
    mark = newest()
    while sign_in("ada", "wrong") != 429:
        pass
    assert {row.action for row in since(mark)} == {"login.failed", "login.throttled"}


def test_a_token_of_nobody_and_a_revoked_one_are_told(user: User) -> None:
    made = create_api_token(user, name="gone", scope="read")
    ApiToken.objects.filter(pk=made.id).update(revoked_at="2020-01-01T00:00:00Z")
    mark = newest()
    for secret in ("holdfast_read_made-up", made.secret):
        assert Client().get("/api/v1/jobs", headers={"Authorization": f"Bearer {secret}"}).status_code == 401
    assert [row.actor for row in since(mark)] == ["token:unknown", f"token:{made.id}"]


def test_a_visitor_who_has_not_signed_in_is_no_refusal(db: None) -> None:
    assert Client().get("/api/v1/me").status_code == 401
    assert not AuditEntry.objects.exists()


def test_a_missing_csrf_token_is_told(user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    mark = newest()
    assert client.post("/api/v1/jobs", SPEC, content_type="application/json").status_code == 403
    (row,) = since(mark)
    assert (row.actor, "CSRF" in row.reason) == ("user:ada", True)


def test_a_refused_enrolment_is_told(db: None) -> None:
    mark = newest()
    body = json.dumps(proved("holdfast_join_made-up-and-long-enough", "node-9"))
    assert Client().post("/agent/v1/enroll", body, content_type="application/json").status_code == 403
    assert [(row.action, row.subject) for row in since(mark)] == [("node.enroll_refused", "node-9")]


def test_refused_enrolments_under_ever_new_names_do_not_fill_the_audit_log(db: None) -> None:
    mark, client = newest(), Client()

    def enrol(token: str, name: str) -> int:
        body = json.dumps(proved(token, name))
        return client.post("/agent/v1/enroll", body, content_type="application/json").status_code

    made_up = "holdfast_join_made-up-and-long-enough"
    assert {enrol(made_up, f"n{number}") for number in range(500)} == {403}
    refusals.flush(all_of_them=True)
    rows = [row for row in since(mark) if row.action == "node.enroll_refused"]
    # 300 names, and one row that has the number of the others.
    assert len(rows) == MAX_ROWS_A_WINDOW + 1
    assert (rows[0].subject, rows[0].origin, bool(rows[0].reason)) == ("n0", "127.0.0.1", True)
    assert rows[-1].data == {"repeated": 500 - MAX_ROWS_A_WINDOW}
    assert enrol(join_token(), "wanted") == 201


def test_the_first_use_of_a_token_is_told_once(user: User) -> None:
    made = create_api_token(user, name="new", scope="read")
    mark = newest()
    for _ in range(3):
        Client().get("/api/v1/jobs", headers={"Authorization": f"Bearer {made.secret}"})
    assert [(row.actor, row.action) for row in since(mark)] == [(f"token:{made.id}", "api_token.first_use")]


def test_no_secret_reaches_the_log(user: User) -> None:
    secrets = [
        create_api_token(user, name="ci").secret, join_token(), create_one_time_password(user),
    ]  # fmt: skip
    from controlplane.access.audit import audit

    audit(
        "x", "y", "z", reason=secrets[0], data={"password": "p4ssw0rd", "note": [secrets[1]], "env": {"KEY": "v4lue"}}
    )
    written = json.dumps(list(AuditEntry.objects.values()), default=str)
    assert not [text for text in (*secrets, "p4ssw0rd", "v4lue") if text in written]
    assert "KEY" in written


def test_the_same_refusal_again_and_again_is_counted_not_written(db: None) -> None:
    clock = iter(float(n) / 100 for n in range(10**6))
    counted = Refusals(clock=lambda: next(clock))
    mark = newest()
    for _ in range(1000):
        counted.note("token:unknown", "request.refused.401", "GET /api/v1/jobs", reason="wrong token")
    counted.flush(all_of_them=True)
    first, told = since(mark)
    assert (first.data, told.data) == ({}, {"repeated": 999})


def test_refusals_of_many_kinds_are_bounded_too(db: None) -> None:
    counted = Refusals(clock=lambda: 0.0)
    mark = newest()
    for number in range(MAX_ROWS_A_WINDOW + 200):
        counted.note("unknown", "login.failed", f"name-{number}", reason="wrong")
    assert len(since(mark)) == MAX_ROWS_A_WINDOW
    counted.flush(all_of_them=True)
    assert since(mark)[-1].data == {"repeated": 200}


def test_a_minute_later_a_refusal_is_a_row_again(db: None) -> None:
    now_s = 0.0
    counted = Refusals(clock=lambda: now_s)
    assert counted.note("a", "b", "c", reason="r")
    assert not counted.note("a", "b", "c", reason="r")
    now_s = WINDOW_S + 1
    assert counted.note("a", "b", "c", reason="r")
    assert [row.data for row in since(0)] == [{}, {"repeated": 1}, {}]


def test_only_administrators_read_the_log(caller: Any, ids: dict[str, str]) -> None:
    assert caller("operate").get("/audit").status_code == 403
    admin = caller("admin")
    admin.post(f"/nodes/{ids['node_id']}:cordon", {"reason": WHY})
    found = admin.get(f"/audit?action=node.*&subject={ids['node_id']}").json()["items"]
    assert [(row["action"], row["reason"], row["before"], row["after"]) for row in found] == [
        ("node.cordon", WHY, {"state": "ready"}, {"state": "cordoned"})
    ]
    assert admin.get("/audit?since=2999-01-01T00:00:00Z").json()["items"] == []
    assert admin.get("/audit?actor=nobody").json()["items"] == []
