"""What browsers watch is said to the sentinel as it is, also where it changes meanwhile."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from controlplane.live import pumps
from controlplane.live.hub import Client, Hub
from controlplane.runtime import bus


class Process:
    """As much of a web process as says what is watched. `meanwhile`: while it is written."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.hub, self.name, self.meanwhile = Hub(), "w0", meanwhile

    async def in_thread(self, work: Callable[..., Any], *given: Any) -> Any:
        """Another browser comes before it is done."""
        found = work(*given)
        self.meanwhile()
        return found


async def test_what_a_browser_begins_to_watch_while_that_is_written_is_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pumps, "WATCHED_S", 60.0)
    written: list[list[str]] = []

    def write(states: Mapping[str, Any]) -> bool:
        written.append(states[bus.watch_key("w0")]["topics"])
        return True

    monkeypatch.setattr(bus, "write_live", write)

    def watch() -> None:
        if len(written) == 1:
            process.hub.clients.add(Client(rights=lambda: None, topics={"node:a": None}))  # type: ignore[arg-type,return-value]
            process.hub.watching.set()

    process = Process(watch)
    task = asyncio.create_task(pumps.announce_watched(process))  # type: ignore[arg-type]
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    assert written == [[], ["node:a"]]
