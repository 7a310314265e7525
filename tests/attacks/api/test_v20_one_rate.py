"""Many tokens of one account have no more requests than one: the rate is the account's (V20)."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.services import create_api_token
from controlplane.api import throttle

pytestmark = pytest.mark.django_db
BURST = 12


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """GET /api/v1/nodes with a token, while time stands still."""
    monkeypatch.setattr(throttle, "requests", throttle.Buckets(1.0, BURST, clock=lambda: 0.0))
    client = Client()
    return lambda secret: client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {secret}"})


def test_tokens_that_a_token_makes_bring_no_more_requests(ask: Callable[[str], Any]) -> None:
    ada = User.objects.create_superuser("ada")
    parent = create_api_token(ada, name="parent", scope="admin")
    answers = []
    for number in range(BURST // 2):
        made = Client().post(
            "/api/v1/tokens", {"name": f"child {number}", "scope": "read"}, content_type="application/json",
            headers={"Authorization": f"Bearer {parent.secret}", "Idempotency-Key": f"key-{number:08}"},
        )  # fmt: skip
        assert made.status_code == 201, made.content
        answers.append(ask(made.json()["token"]))
    assert [answer.status_code for answer in answers] == [200] * (BURST // 2)
    last = ask(create_api_token(ada, name="one more", scope="read").secret)
    assert (last.status_code, last.headers["Retry-After"]) == (429, "1")
    assert ask(parent.secret).status_code == 429


def test_all_sessions_of_an_account_share_a_rate_that_its_tokens_cannot_use_up(ask: Callable[[str], Any]) -> None:
    ada = User.objects.create_user("ada")
    stolen = create_api_token(ada, name="script", scope="read").secret
    assert [ask(stolen).status_code for _ in range(BURST + 1)] == [200] * BURST + [429]
    pages = [Client(), Client()]
    for page in pages:
        page.force_login(ada)
    for number in range(BURST):
        assert pages[number % 2].get("/api/v1/nodes").status_code == 200
    assert {page.get("/api/v1/nodes").status_code for page in pages} == {429}


def test_another_account_is_not_kept_waiting(ask: Callable[[str], Any]) -> None:
    first = create_api_token(User.objects.create_user("ada"), name="a", scope="read").secret
    second = create_api_token(User.objects.create_user("bob"), name="b", scope="read").secret
    assert [ask(first).status_code for _ in range(BURST + 2)] == [200] * BURST + [429] * 2
    assert ask(second).status_code == 200
