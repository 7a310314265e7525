"""What a watcher is sent: when to ask again, events by number, a comment when nothing happens."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from controlplane.access.rights import rights_of
from controlplane.access.standing import Standing
from controlplane.api import eventlog
from controlplane.runtime.events import publish, unit_of_work
from controlplane.sdk import sse
from tests.integration.api.principals import by_token

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_S = 30.0


def happen(*kinds: str) -> None:
    with unit_of_work():
        for kind in kinds:
            publish(kind, f"{kind} happened.")


async def following(stream: AsyncIterator[bytes]) -> str:
    return (await asyncio.wait_for(anext(stream), PATIENCE_S)).decode()


async def test_a_stream_says_when_to_retry_numbers_its_events_and_keeps_the_line_open(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eventlog.HEARTBEAT_S == 15.0
    monkeypatch.setattr(eventlog, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(eventlog, "POLL_S", 0.05)
    ada = await sync_to_async(User.objects.create_user)("ada", password="correct horse battery")
    who = await sync_to_async(by_token)(ada, "read")
    assert who.token is not None
    await sync_to_async(happen)("one", "two", "three")
    rights = await sync_to_async(rights_of)(ada, who.token)
    assert rights is not None
    stream = eventlog.stream(1, "", Standing(kind="token", key=who.token.id, user_id=ada.pk), rights)
    assert await following(stream) == "retry: 1000\n\n"
    for seq, kind in ((2, "two"), (3, "three")):
        said = await following(stream)
        assert said.startswith(f"id: {seq}\nevent: event\ndata: ")
        assert f'"kind":"{kind}"' in said
    assert await following(stream) == ": quiet\n\n"
    await sync_to_async(happen)("four")
    while (said := await following(stream)) == ": quiet\n\n":
        pass
    assert said.startswith("id: 4\n")
    await stream.aclose()


async def test_a_stream_that_is_open_as_the_log_is_set_back_says_so_and_goes_on_from_there(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "POLL_S", 0.05)
    ada = await sync_to_async(User.objects.create_user)("ada", password="correct horse battery")
    who = await sync_to_async(by_token)(ada, "read")
    rights = await sync_to_async(rights_of)(ada, who.token)
    assert who.token is not None and rights is not None
    await sync_to_async(happen)("one", "two")
    stream = eventlog.stream(1000, "", Standing(kind="token", key=who.token.id, user_id=ada.pk), rights)
    read, found = sse.Reader(1000), []
    for line in ((await following(stream)) + (await following(stream))).split("\n"):
        found.append(read.feed(line))
    await sync_to_async(happen)("three")
    for line in (await following(stream)).split("\n"):
        found.append(read.feed(line))
    assert [(event.kind, event.seq) for event in found if event is not None] == [("resync", 2), ("three", 3)]
    await stream.aclose()
