"""V12: streams that went on after their reader's right had ended. Redis is away throughout."""

import asyncio
import http.client
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from controlplane.access import watch
from controlplane.access.models import AuditEntry, Scope
from controlplane.access.refusals import refusals
from controlplane.access.sessions import stored_key
from controlplane.access.standing import Standing
from tests.integration.api.principals import SESSION_ENDINGS, TOKEN_ENDINGS, Someone, by_session, by_token, demote
from tests.integration.api.server import running_whole

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_S = 40.0
"""Of the test, not of Holdfast: `test_the_bounds_of_a_look_keep_within_five_seconds` has its own."""


@pytest.fixture
def url(transactional_db: None, settings: Any) -> Iterator[str]:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with running_whole() as address:
        yield address
    connections.close_all()


@pytest.fixture
def ada(transactional_db: None) -> User:
    return User.objects.create_user("ada", password="correct horse battery")


def watching(url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """An open event stream."""
    line = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    line.request("GET", "/api/v1/events/watch?since=0", headers=headers)
    answer = line.getresponse()
    assert answer.status == 200
    return answer


def read_to_its_end(answer: http.client.HTTPResponse) -> bytes:
    """All that a stream says until it ends."""
    return answer.read()


def live(url: str, who: Someone) -> Any:
    """The page's socket, after its hello."""
    address = urlsplit(url)
    headers = {"Cookie": who.caller.cookie}  # type: ignore[attr-defined]
    target = f"ws://{address.netloc}/api/v1/live"
    socket = connect(target, additional_headers=headers, origin=f"http://{address.netloc}")  # type: ignore[arg-type]
    assert '"hello"' in str(socket.recv(timeout=PATIENCE_S))
    return socket


def closing_code(socket: Any) -> int:
    """Read until the server closes; how it did."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout=PATIENCE_S)
    assert closed.value.rcvd is not None
    return int(closed.value.rcvd.code)


@pytest.mark.parametrize("ending", TOKEN_ENDINGS)
def test_an_event_stream_ends_with_the_token_that_opened_it(url: str, ada: User, ending: str) -> None:
    who, other = by_token(ada, "read"), by_token(User.objects.create_user("eve"), "read")
    answer = watching(url, {"Authorization": f"Bearer {who.secret}"})
    unharmed = watching(url, {"Authorization": f"Bearer {other.secret}"})
    TOKEN_ENDINGS[ending](who)
    assert b": ended: signed out" in read_to_its_end(answer)
    assert unharmed.readline().startswith(b"retry")


@pytest.mark.parametrize("ending", SESSION_ENDINGS)
def test_an_event_stream_ends_with_the_session_that_opened_it(url: str, ada: User, ending: str) -> None:
    who = by_session(ada, "read")
    answer = watching(url, {"Cookie": who.caller.cookie})  # type: ignore[attr-defined]
    SESSION_ENDINGS[ending](who)
    assert b": ended: signed out" in read_to_its_end(answer)


@pytest.mark.parametrize("ending", SESSION_ENDINGS)
def test_the_socket_of_the_page_ends_with_its_session(url: str, ada: User, ending: str) -> None:
    who = by_session(ada, "read")
    socket = live(url, who)
    SESSION_ENDINGS[ending](who)
    assert closing_code(socket) == 4401


def test_a_socket_cannot_be_opened_with_what_the_database_holds(url: str, ada: User) -> None:
    from django.contrib.sessions.models import Session

    by_session(ada, "read")
    address = urlsplit(url)
    stolen = {"Cookie": f"sessionid={Session.objects.get().session_key}"}
    target = f"ws://{address.netloc}/api/v1/live"
    with connect(target, additional_headers=stolen, origin=f"http://{address.netloc}") as socket:  # type: ignore[arg-type]
        assert closing_code(socket) == 4401


def test_a_refused_socket_is_a_row_of_the_audit_log_and_a_flood_of_them_few(url: str, ada: User) -> None:
    refusals.flush(all_of_them=True)
    address = urlsplit(url)
    for _ in range(3):
        with connect(f"ws://{address.netloc}/api/v1/live", origin=f"http://{address.netloc}") as socket:  # type: ignore[arg-type]
            assert closing_code(socket) == 4401
    refusals.flush(all_of_them=True)
    rows = AuditEntry.raw.filter(action="live.refused").order_by("id")
    assert [(row.actor, row.origin, row.data) for row in rows] == [
        ("unknown", "127.0.0.1", {}), ("unknown", "127.0.0.1", {"repeated": 2}),
    ]  # fmt: skip


def test_streams_end_where_it_cannot_be_looked_up_who_may_read(
    url: str, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, reader = by_session(ada, "read"), by_token(ada, "read")
    answer = watching(url, {"Authorization": f"Bearer {reader.secret}"})
    socket = live(url, who)
    away: Callable[..., None] = lambda standings: None  # noqa: E731 - as a look answers without a database
    monkeypatch.setattr(watch, "_look", away)
    assert b": ended: unconfirmed" in read_to_its_end(answer)
    assert closing_code(socket) == 4503


@pytest.mark.parametrize("kind", [by_token, by_session])
async def test_a_stream_ends_when_its_reader_may_no_longer_do_what_it_needs(
    ada: User, kind: Callable[[User, str], Someone]
) -> None:
    who = await sync_to_async(kind)(ada, "operate")
    if who.token is not None:
        standing = Standing(kind="token", key=who.token.id, user_id=ada.pk)
    else:
        key = stored_key(who.caller.session_key)  # type: ignore[attr-defined]
        standing = Standing(kind="session", key=key, user_id=ada.pk)
    async with (
        watch.watch().guarded(standing, Scope.OPERATE) as orders,
        watch.watch().guarded(standing, Scope.READ) as reads,
    ):
        await sync_to_async(demote)(who)
        await asyncio.wait_for(orders.ended.wait(), PATIENCE_S)
        assert orders.reason == watch.SIGNED_OUT
        assert not reads.ended.is_set()


def test_the_bounds_of_a_look_keep_within_five_seconds() -> None:
    """A right that ends just after a look is found by the next, or by none and then too."""
    assert watch.LOOK_S + 2 * watch.TICK_S < 5.0
    assert watch.UNSEEN_S + 2 * watch.TICK_S < 5.0
