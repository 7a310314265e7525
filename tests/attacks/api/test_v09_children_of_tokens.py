"""V9: a token that lasts 60 s made one that lasts for ever."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from controlplane.access import services
from controlplane.access.models import ApiToken, Scope
from controlplane.access.scopes import allows
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, Denied, Invalid
from tests.integration.api.conftest import Caller, grant
from tests.integration.api.principals import PASSWORD, Browser

pytestmark = pytest.mark.django_db


def made(caller: Caller, **body: Any) -> tuple[ApiToken, Caller]:
    """A token made over the API, and who speaks with it."""
    answer = caller.post("/tokens", {"name": "x"} | body)
    assert answer.status_code == 201, answer.content
    return ApiToken.objects.get(pk=answer.json()["id"]), Caller(answer.json()["token"])


def test_a_token_of_a_minute_makes_none_that_outlives_it(user: User) -> None:
    parent = services.create_api_token(user, name="short", ttl_s=60)
    caller, row = Caller(parent.secret), ApiToken.objects.get(pk=parent.id)
    child, _ = made(caller)
    assert child.expires_at == row.expires_at
    refused = caller.post("/tokens", {"name": "x", "expires_in_s": 3600})
    assert refused.status_code == 422
    told = refused.json()["errors"][0]
    assert told["pointer"] == "/expires_in_s"
    assert "ask for at most" in told["fix"]
    assert not ApiToken.objects.filter(user=user, expires_at=None).exists()


def test_grandchildren_are_bounded_too_and_end_with_the_first_of_their_line(user: User) -> None:
    grant(user, "operate")
    first, caller = made(Caller(services.create_api_token(user, name="x", scope="operate").secret), scope="submit")
    second, grandchild = made(caller, scope="read", expires_in_s=600)
    third, last = made(grandchild)
    assert third.expires_at == second.expires_at
    assert grandchild.post("/tokens", {"name": "x", "scope": "submit"}).status_code == 403
    services.revoke_api_token(first.id, actor="test")
    assert [one.get("/jobs").status_code for one in (caller, grandchild, last)] == [401, 401, 401]
    assert caller.post("/tokens", {"name": "x"}).status_code == 401


def test_a_person_at_the_page_is_bounded_by_the_account_alone(user: User) -> None:
    row, _ = made(Browser(user))
    assert (row.parent_id, row.expires_at) == (None, None)
    assert Browser(user).post("/tokens", {"name": "x", "scope": "admin"}).status_code == 403


def test_a_password_that_is_no_token_makes_one_and_is_no_parent(user: User) -> None:
    client = Client()
    client.post("/api/v1/login", {"username": "ada", "password": PASSWORD}, content_type="application/json")
    answer = client.post("/api/v1/tokens", {"name": "x"}, content_type="application/json")
    assert answer.status_code == 201
    assert ApiToken.objects.get().parent_id is None


def test_a_token_that_ended_meanwhile_makes_no_child(user: User) -> None:
    parent = services.create_api_token(user, name="x", ttl_s=60)
    ApiToken.objects.update(expires_at=now() - timedelta(seconds=1))
    with pytest.raises(Denied):
        services.create_api_token(user, name="y", parent_id=parent.id)


def test_a_token_cannot_fill_the_table(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_LIVE_TOKENS", 3)
    parent = services.create_api_token(user, name="x")
    for _ in range(2):
        services.create_api_token(user, name="y", parent_id=parent.id)
    with pytest.raises(Conflict):
        services.create_api_token(user, name="z", parent_id=parent.id)
    services.revoke_api_token(parent.id, actor="test")
    assert services.create_api_token(user, name="z").secret


TTLS = st.none() | st.floats(min_value=60, max_value=10**8)
STEPS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(Scope.values), TTLS), min_size=1, max_size=12)


@bounds(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, revoked=st.integers(0, 30))
def test_no_child_ever_outlives_or_outranks_or_survives_its_maker(
    user: User, steps: list[tuple[int, str, float | None]], revoked: int
) -> None:
    ApiToken.objects.all().delete()
    grant(user, "admin")
    ids = [services.create_api_token(user, name="root", scope="admin", ttl_s=10**7).id]
    for parent, scope, ttl_s in steps:
        try:
            maker = ids[parent % len(ids)]
            ids.append(services.create_api_token(user, name="x", scope=scope, ttl_s=ttl_s, parent_id=maker).id)
        except (Denied, Invalid):
            continue
    services.revoke_api_token(ids[revoked % len(ids)], actor="test")
    for row in ApiToken.objects.exclude(parent=None).select_related("parent"):
        assert row.parent is not None
        assert row.expires_at is not None
        assert row.parent.expires_at is not None
        assert row.expires_at <= row.parent.expires_at
        assert allows(row.parent.scope, row.scope)
        assert row.revoked_at is not None or row.parent.revoked_at is None
