"""More requests than a web process answers: the rest is refused at once with the moment to come again, none hangs."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application

from controlplane.access.services import create_api_token
from controlplane.api import throttle
from controlplane.config.busy import Busy
from tests.integration.api.conftest import Caller
from tests.integration.api.server import running

pytestmark = pytest.mark.django_db(transaction=True)
MOST, MORE = 3, 20


class Held:
    """The overview, which answers once it is let go."""

    def __init__(self) -> None:
        self.go, self.inside = threading.Event(), threading.Semaphore(0)

    def __call__(self, *_: Any) -> dict[str, Any]:
        self.inside.release()
        assert self.go.wait(30.0), "nobody let it go"
        return {}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held()
    monkeypatch.setattr("controlplane.api.routers.fleet.overview", found)
    yield found
    found.go.set()


def headers() -> dict[str, str]:
    user = User.objects.create_superuser("ada")
    return {"Authorization": f"Bearer {create_api_token(user, name='t', scope='admin').secret}"}


def ask(url: str, path: str, known: dict[str, str]) -> httpx.Response:
    return httpx.get(url + path, headers=known, timeout=20.0)


def test_a_full_process_refuses_the_rest_at_once_answers_its_probes_and_those_that_it_works_on(held: Held) -> None:
    known, full = headers(), Busy(get_asgi_application(), most=MOST)
    with running(full) as url, ThreadPoolExecutor(MOST + MORE) as pool:
        working = [pool.submit(ask, url, "/api/v1/overview", known) for _ in range(MOST)]
        for _ in range(MOST):
            assert held.inside.acquire(timeout=20.0), "it is worked on"
        refused = [each.result() for each in [pool.submit(ask, url, "/api/v1/jobs", known) for _ in range(MORE)]]
        assert not any(each.done() for each in working), "the others still wait, and these have their answers"
        for answer in refused:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.headers["Content-Type"] == "application/problem+json"
            problem = answer.json()
            assert problem["type"].endswith("/unavailable") and problem["instance"] == "/api/v1/jobs"
            assert problem["request_id"] == answer.headers["X-Request-ID"]
        assert ask(url, "/healthz", {}).status_code == 200
        posted = httpx.post(url + "/api/v1/jobs", headers=known, content=b"x" * 1_000_000, timeout=20.0)
        assert posted.status_code == 503, "a large body is refused too"
        held.go.set()
        assert [each.result().status_code for each in working] == [200] * MOST
        assert ask(url, "/api/v1/jobs", known).status_code == 200, "and then there is room again"
    assert full.waiting == 0


def test_a_stream_takes_a_place_until_it_begins_and_not_as_long_as_it_is_open() -> None:
    known, full = headers(), Busy(get_asgi_application(), most=1)
    with (
        running(full) as url,
        httpx.stream("GET", url + "/api/v1/events/watch", headers=known, timeout=20.0) as watched,
    ):
        assert watched.status_code == 200
        assert ask(url, "/api/v1/jobs", known).status_code == 200


def test_who_does_not_send_all_of_a_request_keeps_nobody_out() -> None:
    known, full = headers(), Busy(get_asgi_application(), most=1)
    begun = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    with running(full) as url, ExitStack() as slow:
        where = urlsplit(url)
        for _ in range(MORE):
            line = slow.enter_context(socket.create_connection((str(where.hostname), where.port or 80), timeout=20.0))
            line.sendall(begun)
        for _ in range(3):
            assert ask(url, "/api/v1/jobs", known).status_code == 200
    assert full.waiting == 0


def test_the_web_process_is_such_a_one() -> None:
    import os

    before = os.umask(0)
    try:
        from controlplane.config.asgi import application
    finally:
        os.umask(before)
    assert isinstance(application.app.application_mapping["http"], Busy)


def test_each_answer_says_what_is_left_of_an_accounts_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "requests", throttle.Buckets(2.0, 3, clock=lambda: 0.0))
    caller = Caller(headers()["Authorization"].partition(" ")[2])
    told = [caller.get("/version"), *(caller.get("/me") for _ in range(4))]
    assert "RateLimit-Limit" not in told[0], "of nobody in particular"
    assert [answer.status_code for answer in told[1:]] == [200, 200, 200, 429]
    names = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
    assert [tuple(answer[name] for name in names) for answer in told[1:]] == [
        ("3", "2", "1"), ("3", "1", "1"), ("3", "0", "2"), ("3", "0", "2"),
    ]  # fmt: skip
    assert told[-1]["Retry-After"] == "1"


def test_a_database_that_does_not_answer_is_a_503_with_the_moment_to_come_again(
    caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def away(*_: Any) -> None:
        raise OperationalError("too many connections")

    monkeypatch.setattr("controlplane.api.routers.fleet.overview", away)
    answer = caller("read").get("/overview")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
