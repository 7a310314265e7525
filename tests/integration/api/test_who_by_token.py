"""What was done by a token names the account and the token; and a token reads while the database takes no writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from controlplane.access import actors, services
from controlplane.access.models import ApiToken, AuditEntry, JoinToken
from controlplane.access.services import create_api_token
from controlplane.fleet.models import KnownEnd
from controlplane.runtime.models import Event
from tests.integration.api.conftest import Caller, grant, make_node
from tests.integration.api.test_windows import window

pytestmark = pytest.mark.django_db(transaction=True)
NIGHTLY = "user:ada (token nightly)"


@pytest.fixture
def nightly(user: User) -> Caller:
    grant(user, "admin")
    return Caller(create_api_token(user, name="nightly", scope="admin").secret)


def test_a_token_is_named_with_its_account_wherever_people_read_it(nightly: Caller) -> None:
    node = make_node("node-1")
    assert nightly.post(f"/nodes/{node.pk}:cordon", {"reason": "a fan"}).status_code == 202
    assert nightly.post(f"/nodes/{node.pk}:maintain", window()).status_code == 202
    assert nightly.post("/join-tokens", {"pool": "rack-1"}).status_code == 201
    assert nightly.get(f"/nodes/{node.pk}").json()["state_reason"] == f"a fan ({NIGHTLY})"
    assert (KnownEnd.objects.get().who, JoinToken.objects.get().created_by) == (NIGHTLY, NIGHTLY)
    sentence = Event.objects.filter(kind="node.leaves").latest("seq").sentence
    assert sentence.endswith(f"fans ({NIGHTLY})")
    (row,) = nightly.get("/audit?action=node.cordon").json()["items"]
    assert (row["actor"], row["who"]) == (f"token:{ApiToken.objects.get().pk}", NIGHTLY)


def test_any_other_actor_stays_as_it_is_and_the_words_fit_every_column(user: User) -> None:
    strangers = ["user:ada", "console", "policy", "token:unknown", "token:tok_404", ""]
    assert actors.all_in_words(strangers) == {name: name for name in strangers}
    user.username = "u" * 150
    user.save()
    made = create_api_token(user, name="n" * 100, scope="read")
    assert len(actors.in_words(f"token:{made.id}")) <= 120


@contextmanager
def no_writes() -> Iterator[None]:
    sqlite = connection.vendor == "sqlite"
    off, on = (
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF")
        if sqlite
        else ("SET default_transaction_read_only = on", "SET default_transaction_read_only = off")
    )
    with connection.cursor() as cursor:
        cursor.execute(off)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(on)


def test_a_token_reads_while_the_database_takes_no_writes_and_its_use_is_noted_later(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create_api_token(user, name="nightly", scope="read")
    caller: Any = Caller(made.secret)
    monkeypatch.setattr(services, "_unnoted_until_s", 0.0)
    with no_writes():
        assert [caller.get("/jobs").status_code for _ in range(2)] == [200, 200]
    assert ApiToken.objects.get().last_used_at is None
    monkeypatch.setattr(services, "_unnoted_until_s", 0.0)
    assert caller.get("/jobs").status_code == 200
    assert ApiToken.objects.get().last_used_at is not None
    assert AuditEntry.objects.filter(action="api_token.first_use").count() == 1
