"""Who may do what, now and later: every route against every scope, both doors, and rights that end."""

from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.models import ApiToken
from controlplane.access.services import create_one_time_password
from controlplane.api import openapi
from controlplane.runtime.address import parse_networks
from tests.attacks.backend.test_enrolment_garbage import proved
from tests.integration.api.conftest import SPEC, Caller
from tests.integration.api.matrix import (
    OPERATIONS,
    OTHER_ADDRESSES,
    SOCKETS,
    STREAMS,
    ask,
    operations_of_the_api,
    other_addresses,
    socket_routes,
    streaming_operations,
)
from tests.integration.api.principals import (
    SESSION_ENDINGS,
    TOKEN_ENDINGS,
    by_session,
    by_token,
    demote,
)
from tests.integration.backend.fake_agent import join_token

pytestmark = pytest.mark.django_db
SCOPES = ("read", "submit", "operate", "admin")
ALL = sorted(OPERATIONS)
GUARDED = [name for name in ALL if OPERATIONS[name].needed]
KINDS = {"token": by_token, "session": by_session}


def test_every_address_has_its_row() -> None:
    assert set(OPERATIONS) == operations_of_the_api()
    assert set(OTHER_ADDRESSES) == other_addresses()
    assert set(SOCKETS) == socket_routes()
    assert streaming_operations() == STREAMS


def test_the_document_names_the_scope_that_each_operation_needs() -> None:
    """The page takes it from there: which of its buttons may be pressed is written nowhere else."""
    needed = {name: row.needed for name, row in OPERATIONS.items()}
    needed["GET /me"] = ""  # It looks itself who asks, after it has set the cookie that signing in needs.
    assert openapi.scopes(openapi.document()) == needed
    assert openapi.NEEDS.read_text(encoding="utf-8") == openapi.render_needs(openapi.document())


def answers(caller: Caller, operations: Iterable[str]) -> dict[str, int]:
    """The status of each as of this caller, none of which leaves anything."""
    found = {}
    for operation in operations:
        with caller.undone():
            found[operation] = ask(caller, operation)
    return found


def needing(scope: str) -> list[str]:
    return [name for name in GUARDED if OPERATIONS[name].needed == scope]


def refused(found: dict[str, int]) -> dict[str, int]:
    return {operation: status for operation, status in found.items() if status in (401, 403)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", SCOPES)
def test_an_operation_needs_its_scope_and_no_more(user: User, scope: str, kind: str) -> None:
    beyond = [name for name in GUARDED if SCOPES.index(scope) < SCOPES.index(OPERATIONS[name].needed)]
    assert refused(answers(KINDS[kind](user, scope).caller, ALL)) == dict.fromkeys(beyond, 403)


def test_nobody_may_what_needs_a_scope(db: None) -> None:
    assert refused(answers(Caller(), ALL)) == dict.fromkeys(GUARDED, 401)


def test_a_join_token_opens_no_operation(db: None) -> None:
    assert answers(Caller(join_token(name="node-9")), GUARDED) == dict.fromkeys(GUARDED, 401)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("ending", TOKEN_ENDINGS)
def test_a_token_that_ended_meanwhile_is_refused_at_the_next_request(user: User, ending: str, scope: str) -> None:
    who, asked = by_token(user, scope), needing(scope)
    assert asked and refused(answers(who.caller, asked)) == {}
    TOKEN_ENDINGS[ending](who)
    assert answers(who.caller, asked) == dict.fromkeys(asked, 401)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("ending", SESSION_ENDINGS)
def test_a_session_that_ended_meanwhile_is_refused_at_the_next_request(user: User, ending: str, scope: str) -> None:
    who, asked = by_session(user, scope), [name for name in needing(scope) if name != "POST /logout"]
    assert asked and refused(answers(who.caller, asked)) == {}
    SESSION_ENDINGS[ending](who)
    assert answers(who.caller, asked) == dict.fromkeys(asked, 401)


@pytest.mark.parametrize("kind", KINDS)
def test_who_was_demoted_meanwhile_may_do_only_what_is_left(user: User, kind: str) -> None:
    who, asked = KINDS[kind](user, "admin"), [name for name in GUARDED if name != "POST /logout"]
    assert refused(answers(who.caller, asked)) == {}
    demote(who)
    beyond = [name for name in asked if OPERATIONS[name].needed != "read"]
    assert refused(answers(who.caller, asked)) == dict.fromkeys(beyond, 403)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/jobs/somewhere", "/api/v1/openapi.json"])
def test_what_tells_nothing_is_for_everybody(path: str) -> None:
    assert Client().get(path, REMOTE_ADDR="198.51.100.7").status_code == 200


def test_metrics_are_for_named_addresses_and_for_accounts(user: User, settings: Any) -> None:
    far = {"REMOTE_ADDR": "198.51.100.7"}
    secret = by_token(user, "read").secret
    assert Client().get("/metrics").status_code == 200
    assert Client().get("/metrics", **far).status_code == 401
    assert Client().get("/metrics", headers={"Authorization": f"Bearer {secret}"}, **far).status_code == 200
    # Passed on by a proxy that nobody named: its own address says nothing of who asks.
    assert Client().get("/metrics", headers={"X-Forwarded-For": "198.51.100.7"}).status_code == 401
    settings.TRUSTED_PROXIES = parse_networks("127.0.0.1")
    assert Client().get("/metrics", headers={"X-Forwarded-For": "198.51.100.7"}).status_code == 401
    settings.METRICS_FROM = parse_networks("198.51.100.0/24")
    assert Client().get("/metrics", headers={"X-Forwarded-For": "198.51.100.7"}).status_code == 200


def test_enrolling_takes_a_join_token_and_no_account(user: User) -> None:
    body = proved("holdfast_join_x", "node-1")
    headers = {"Authorization": f"Bearer {by_token(user, 'admin').secret}"}
    answer = Client().post("/agent/v1/enroll", body, content_type="application/json", headers=headers)
    assert answer.status_code == 403


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
