"""V10: a token kept what its owner had lost. (Every operation: tests/integration/api/test_access.py.)"""

import pytest
from django.contrib.auth.models import User

from controlplane.access.models import ApiToken
from controlplane.access.scopes import effective_scope
from controlplane.access.services import create_api_token
from controlplane.runtime.errors import Denied
from tests.integration.api.conftest import SPEC, Caller, grant
from tests.integration.api.principals import by_token, demote

pytestmark = pytest.mark.django_db


def test_a_token_does_no_more_than_its_owner_may_at_that_moment(user: User) -> None:
    who = by_token(user, "admin")
    assert who.caller.post("/jobs", SPEC).status_code == 201
    demote(who)
    assert who.caller.post("/jobs", SPEC).status_code == 403
    assert who.caller.get("/me").json()["roles"] == ["read"]
    assert who.caller.post("/tokens", {"name": "x", "scope": "submit"}).status_code == 403
    assert who.caller.get("/jobs").status_code == 200


def test_what_its_owner_regains_the_token_regains_and_no_more(user: User) -> None:
    who = by_token(user, "submit")
    demote(who)
    grant(user, "admin")
    assert who.caller.get("/me").json()["roles"] == ["read", "submit"]


def test_a_superusers_token_falls_with_him(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    user.refresh_from_db()
    caller = Caller(create_api_token(user, name="x", scope="admin").secret)
    User.objects.filter(pk=user.pk).update(is_superuser=False, is_staff=True)
    assert caller.get("/me").json()["roles"] == ["read", "submit", "operate"]


def test_nobody_gets_a_token_beyond_the_account_not_even_from_the_console(user: User) -> None:
    with pytest.raises(Denied):
        create_api_token(user, name="x", scope="operate")
    assert not ApiToken.objects.exists()


def test_a_token_without_an_active_owner_may_nothing(user: User) -> None:
    token = by_token(user, "read").token
    assert token is not None
    token.user.is_active = False
    assert effective_scope(token) is None
