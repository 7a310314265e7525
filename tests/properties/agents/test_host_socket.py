"""Whatever a rank host says, its agent goes on and hears what is right of it; a host may name its
own children alone."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.core import events as ev
from agents.ranks.hosts import HostKeeper
from agents.ranks.identity import identity_of
from agents.ranks.logs import LogFiles
from agents.ranks.places import Places
from agents.ranks.watcher import ProcessWatcher
from controlplane.protocol.codec import encode_line
from controlplane.protocol.rank import HostReady, HostState, RankForked
from tests.properties.agents.garbage import HOST_LINES, REF, any_json, mutated_lines, nested
from tests.properties.agents.puppet import Puppet

JOB = REF.job_id
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example]
)
pieces = st.one_of(
    st.binary(max_size=300),
    any_json.map(lambda line: line + b"\n"),
    mutated_lines(HOST_LINES).map(lambda line: line + b"\n"),
    nested.map(lambda line: line + b"\n"),
)


class Keeper:
    """The agent's keeper of hosts, in a loop of its own, and one host."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.seen: list[ev.Event] = []
        self.run(self._start(directory))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def _start(self, directory: Path) -> None:
        self.watcher = ProcessWatcher(self.loop)
        logs = LogFiles(directory / "logs")
        places = Places(directory / "jobs")
        places.open()
        place = places.prepare(JOB, None)
        self.keeper = HostKeeper("none", logs, self.watcher, self.seen.append)
        self.host = Puppet(place.host_socket, None)
        identity = identity_of(self.host.process.pid)
        assert identity is not None, "it was just started"
        self.keeper.adopt(JOB, identity, place)

    async def say(self, *said: bytes) -> None:
        """All of it, each on whatever connection there is; then one right line, heard."""
        for piece in said:
            await self.host.say(piece)
        before = len(self.seen)
        await self.host.say(b"\n")
        while not any(isinstance(event, ev.HostReadied) and event.import_s == 0.25 for event in self.seen[before:]):
            async with asyncio.timeout(10):
                await self.host.say(encode_line(HostReady(1, 0.25)))
                await asyncio.sleep(0.001)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)

    def end(self) -> None:
        self.keeper.close()
        self.watcher.close()
        self.host.end()
        self.run(asyncio.sleep(0))
        self.loop.close()


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    made = Keeper(tmp_path_factory.mktemp("h"))
    yield made
    made.end()


@SETTINGS
@given(said=st.lists(pieces, min_size=1, max_size=2))
def test_whatever_a_host_says_its_agent_goes_on(keeper: Keeper, said: list[bytes]) -> None:
    keeper.run(keeper.say(*said))
    assert keeper.faults == [], "nothing was raised"


def test_a_host_cannot_name_a_process_that_is_not_its_own(keeper: Keeper) -> None:
    """Else its agent would signal that one as a rank."""
    stranger = identity_of(os.getpid())
    assert stranger is not None, "that is this very process"
    forked = RankForked(REF, stranger.pid, stranger.start_time_ticks)
    refused = keeper.keeper.refused_lines
    for line in (encode_line(forked), encode_line(HostState((forked,)))):
        keeper.run(keeper.say(line))
    assert keeper.keeper.refused_lines >= refused + 2
    assert not any(
        (isinstance(event, ev.RankForkedHere) and event.identity == stranger)
        or (isinstance(event, ev.HostListed) and forked in event.ranks)
        for event in keeper.seen
    )
