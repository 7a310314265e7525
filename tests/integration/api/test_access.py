"""Who may do what: every route against every scope, and both doors."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.models import ApiToken
from controlplane.access.services import create_one_time_password
from tests.integration.api.conftest import SPEC

pytestmark = pytest.mark.django_db
SCOPES = ("", "read", "submit", "operate", "admin")

READS = [
    "/overview",
    "/jobs",
    "/nodes",
    "/incidents",
    "/events",
    "/tokens",
    "/jobs/nope",
    "/nodes/nope",
    "/decisions/x",
]
READS += [
    f"/jobs/nope/{part}"
    for part in ("replicas", "steps", "events", "decisions", "incidents", "checkpoints", "commands", "logs")
]
NODE_ORDERS = ("revoke", "restore", "rotate-key", "confirm", "remove", "re-enrol")
WRITES = [
    ("/jobs", SPEC, "submit"),
    ("/jobs/nope:cancel", {"reason": "r"}, "operate"),
    ("/jobs/nope:checkpoint", {"reason": "r"}, "operate"),
    ("/jobs/nope:evict-replica", {"reason": "r", "replica": 0}, "operate"),
    ("/jobs/nope:fault", {"reason": "r", "replica": 0, "rank": 0, "fault": "nan"}, "operate"),
    ("/jobs/nope:debug", {"reason": "r", "replica": 0, "rank": 0, "look": "ping"}, "operate"),
    ("/nodes/nope:cordon", {"reason": "r"}, "operate"),
    ("/nodes/nope:uncordon", {"reason": "r"}, "operate"),
    ("/demo/faults", {"kind": "no_spares"}, "operate"),
    *[(f"/nodes/nope:{verb}", {"reason": "r"}, "admin") for verb in NODE_ORDERS],
    ("/join-tokens", {"name": "n9"}, "admin"),
    ("/join-tokens/nope:revoke", {}, "admin"),
]


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("scope", SCOPES)
def test_reading_needs_an_account_and_no_more(caller: Any, path: str, scope: str) -> None:
    assert (caller(scope).get(path).status_code == 401) == (scope == "")


@pytest.mark.parametrize(("path", "body", "needed"), WRITES)
@pytest.mark.parametrize("scope", SCOPES)
def test_writing_needs_its_scope(caller: Any, path: str, body: Any, needed: str, scope: str) -> None:
    status = caller(scope).post(path, body).status_code
    if scope == "":
        assert status == 401
    else:
        assert (status == 403) == (SCOPES.index(scope) < SCOPES.index(needed))


@pytest.mark.parametrize("path", ["/version", "/openapi.json"])
def test_some_things_are_for_everybody(caller: Any, path: str) -> None:
    assert caller("").get(path).status_code == 200


def test_a_wrong_token_is_refused_even_beside_a_session(user: User) -> None:
    client = Client()
    client.force_login(user)
    response = client.get("/api/v1/jobs", headers={"Authorization": "Bearer holdfast_read_wrong"})
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_a_session_writes_only_with_the_csrf_token(user: User) -> None:
    user.is_superuser = True
    user.save()
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    body = {"data": SPEC, "content_type": "application/json"}
    refused = client.post("/api/v1/jobs", **body)
    assert refused.status_code == 403
    assert refused.json()["type"].endswith("/csrf")
    token = client.get("/api/v1/me").json()["csrf"]
    assert client.post("/api/v1/jobs", **body, headers={"X-CSRFToken": token}).status_code == 201


def test_me_is_401_for_nobody_and_still_sets_the_csrf_cookie() -> None:
    response = Client().get("/api/v1/me")
    assert response.status_code == 401
    assert "csrftoken" in response.cookies


def test_signing_in_with_a_password_and_out_again(user: User) -> None:
    client = Client()
    credentials = {"username": "ada", "password": "correct horse battery"}
    answer = client.post("/api/v1/login", credentials, content_type="application/json")
    assert answer.status_code == 200
    assert answer.json()["roles"] == ["read"]
    assert client.get("/api/v1/me").json()["username"] == "ada"
    assert client.post("/api/v1/logout").status_code == 204
    assert client.get("/api/v1/me").status_code == 401


def test_a_one_time_password_works_once(user: User) -> None:
    credentials = {"username": "ada", "password": create_one_time_password(user)}
    first = Client().post("/api/v1/login", credentials, content_type="application/json")
    again = Client().post("/api/v1/login", credentials, content_type="application/json")
    assert (first.status_code, again.status_code) == (200, 401)


def test_guessing_passwords_is_slowed_down(user: User) -> None:
    wrong = {"username": "ada", "password": "x"}
    statuses = [Client().post("/api/v1/login", wrong, content_type="application/json").status_code for _ in range(12)]
    assert statuses[0] == 401
    assert statuses[-1] == 429


def test_a_token_is_shown_once_and_gives_no_more_than_its_maker_has(caller: Any) -> None:
    ada = caller("submit")
    made = ada.post("/tokens", {"name": "ci", "scope": "read"})
    assert made.status_code == 201
    secret = made.json()["token"]
    listed = ada.get("/tokens").json()["items"]
    assert secret not in str(listed)
    assert ada.post("/tokens", {"name": "root", "scope": "admin"}).status_code == 403
    assert ada.post(f"/tokens/{made.json()['id']}:revoke").status_code == 202
    assert ApiToken.objects.get(pk=made.json()["id"]).revoked_at is not None


def test_somebody_elses_token_is_invisible(caller: Any, db: None) -> None:
    other = User.objects.create_user("eve", password="another long password")
    foreign = ApiToken.objects.create(id="tok_x", name="x", user=other, scope="read", sha256="y")
    assert caller("operate").post(f"/tokens/{foreign.id}:revoke").status_code == 404
    assert caller("admin").post(f"/tokens/{foreign.id}:revoke").status_code == 202
