"""People set and change their own passwords, without a shell on the server."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from controlplane.access.models import ApiToken, AuditEntry
from controlplane.access.refusals import refusals
from controlplane.access.scopes import scope_of
from controlplane.access.services import create_api_token, create_one_time_password, create_user
from controlplane.access.sessions import stored_key
from controlplane.access.standing import Standing, rights_now

pytestmark = pytest.mark.django_db
OLD, NEW = "correct horse battery", "another horse, another battery"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Refusals of other tests count for nothing here."""
    refusals.__init__()  # type: ignore[misc]


def change(current: str, password: str = NEW, **headers: str) -> Any:
    body = {"username": "ada", "current": current, "password": password}
    return Client().post("/api/v1/password", body, content_type="application/json", headers=headers)


def signed_in(password: str) -> Client | None:
    client = Client()
    body = {"username": "ada", "password": password}
    done = client.post("/api/v1/login", body, content_type="application/json")
    return client if done.status_code == 200 else None


def test_a_one_time_password_sets_one_that_works_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_user", "ada", "--scope", "submit")
    given = capsys.readouterr().out.strip()
    assert signed_in(NEW) is None
    assert change(given).status_code == 204
    assert change(given, "a third one, of its own").status_code == 401
    for _ in range(2):
        client = signed_in(NEW)
        assert client is not None
        assert client.get("/api/v1/me").json()["roles"] == ["read", "submit"]


def test_a_change_ends_sessions_streams_and_one_time_passwords_and_leaves_tokens(user: User) -> None:
    page, unused = signed_in(OLD), create_one_time_password(user)
    assert page is not None
    token = create_api_token(user, name="ci").secret
    stream = Standing(kind="session", key=stored_key(page.cookies["sessionid"].value), user_id=user.pk)
    assert stream in rights_now([stream])
    assert change(OLD).status_code == 204
    assert page.get("/api/v1/me").status_code == 401
    assert stream not in rights_now([stream])
    assert signed_in(OLD) is None
    assert signed_in(unused) is None
    assert signed_in(NEW) is not None
    assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert ApiToken.objects.get(user=user).revoked_at is None


@pytest.mark.parametrize("password", ["short", "otp_" + "x" * 40, "one-time"])
def test_a_password_that_is_not_taken_uses_up_nothing(user: User, password: str) -> None:
    given = create_one_time_password(user)
    refused = change(given, given if password == "one-time" else password)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/password"
    assert change(OLD, OLD).status_code == 422
    assert change(given).status_code == 204


def test_neither_a_token_nor_an_open_session_changes_it(user: User) -> None:
    token = create_api_token(user, name="ci").secret
    assert change("a wrong guess", Authorization=f"Bearer {token}").status_code == 401
    page = signed_in(OLD)
    assert page is not None
    body = {"username": "ada", "current": "a wrong guess", "password": NEW}
    assert page.post("/api/v1/password", body, content_type="application/json").status_code == 401
    assert change(OLD, Origin="https://elsewhere.example").status_code == 403
    assert change(OLD).status_code == 204


def test_guessing_here_is_counted_with_guessing_at_the_sign_in(user: User) -> None:
    answers = [change("a wrong guess").status_code for _ in range(7)]
    assert answers[:6] == [401] * 6
    assert answers[6] == 429
    body = {"username": "ada", "password": OLD}
    assert Client().post("/api/v1/login", body, content_type="application/json").status_code == 429


def test_the_change_is_audited_and_tells_no_password(user: User) -> None:
    change("a wrong guess")
    change(OLD)
    change(create_one_time_password(user), "a third one, of its own")
    rows = list(AuditEntry.objects.filter(subject="ada", action__in=("user.change_secret", "login.failed")))
    assert [(row.action, row.actor, row.origin) for row in sorted(rows, key=lambda row: row.id)] == [
        ("login.failed", "user:ada", "127.0.0.1"),
        ("user.change_secret", "user:ada", "127.0.0.1"),
        ("user.change_secret", "user:ada", "127.0.0.1"),
    ]
    assert [row.data["method"] for row in rows if row.data.get("method")] == ["password", "one_time_password"]
    told = str([vars(row) for row in AuditEntry.objects.all()])
    assert not any(secret in told for secret in (OLD, NEW, "a third one", "a wrong guess"))


@pytest.mark.parametrize("scope", ["read", "submit", "operate", "admin"])
def test_an_account_has_the_scope_it_was_made_with_and_keeps_it(scope: str) -> None:
    create_user("bo", scope=scope)
    assert scope_of(User.objects.get(username="bo")) == scope
    create_user("bo")
    assert scope_of(User.objects.get(username="bo")) == scope
    create_user("bo", scope="submit")
    assert scope_of(User.objects.get(username="bo")) == "submit"
