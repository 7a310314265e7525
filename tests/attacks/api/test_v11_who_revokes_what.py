"""V11: a token that may only read revoked its owner's token that administers."""

import pytest
from django.contrib.auth.models import User

from controlplane.access.models import ApiToken
from controlplane.access.services import create_api_token
from tests.integration.api.conftest import Caller, grant
from tests.integration.api.principals import Browser

pytestmark = pytest.mark.django_db


@pytest.fixture
def line(user: User) -> dict[str, tuple[str, Caller]]:
    """above -> self -> below, and one beside, of the same account; `self` may only read."""
    grant(user, "operate")
    found: dict[str, tuple[str, Caller]] = {}
    for name, parent, scope in (
        ("above", None, "operate"),
        ("self", "above", "read"),
        ("below", "self", "read"),
        ("beside", None, "read"),
    ):
        maker = None if parent is None else found[parent][0]
        shown = create_api_token(user, name=name, scope=scope, parent_id=maker)
        found[name] = (shown.id, Caller(shown.secret))
    return found


def revoke(caller: Caller, token_id: str) -> int:
    return int(caller.post(f"/tokens/{token_id}:revoke").status_code)


@pytest.mark.parametrize(("target", "status"), [("above", 404), ("beside", 404), ("below", 202), ("self", 202)])
def test_a_token_revokes_itself_and_what_came_from_it(
    line: dict[str, tuple[str, Caller]], target: str, status: int
) -> None:
    assert revoke(line["self"][1], line[target][0]) == status
    assert (ApiToken.objects.get(pk=line[target][0]).revoked_at is not None) == (status == 202)


def test_a_token_sees_what_it_may_revoke(line: dict[str, tuple[str, Caller]]) -> None:
    for name, seen in (("above", {"above", "self", "below"}), ("self", {"self", "below"}), ("beside", {"beside"})):
        assert {row["name"] for row in line[name][1].get("/tokens").json()["items"]} == seen


def test_a_person_at_the_page_sees_and_revokes_all_of_the_account(
    user: User, line: dict[str, tuple[str, Caller]]
) -> None:
    page = Browser(user)
    assert {row["name"] for row in page.get("/tokens").json()["items"]} == set(line)
    assert revoke(page, line["above"][0]) == 202
    assert ApiToken.objects.filter(revoked_at=None).get().name == "beside"


def test_an_administrator_revokes_anybodys_and_nobody_else_does(line: dict[str, tuple[str, Caller]]) -> None:
    eve = User.objects.create_user("eve")
    grant(eve, "operate")
    assert revoke(Caller(create_api_token(eve, name="x", scope="operate").secret), line["beside"][0]) == 404
    grant(eve, "admin")
    admin = Caller(create_api_token(eve, name="x", scope="admin").secret)
    assert revoke(admin, line["beside"][0]) == 202
    User.objects.get(pk=eve.pk).groups.clear()
    assert revoke(admin, line["above"][0]) == 404
