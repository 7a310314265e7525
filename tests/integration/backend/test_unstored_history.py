"""History on its way, through a real Redis: what is not stored yet, and after it is; what others wrote there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from controlplane.fleet.models import Node
from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.samples import DeviceSample
from controlplane.runtime import bus, events
from controlplane.runtime.clock import now_s
from controlplane.runtime.seal import seal
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import History
from controlplane.sentinel.live_state import LiveState
from controlplane.telemetry import services
from controlplane.telemetry.codec import METRICS, Part, pack_whole
from controlplane.telemetry.models import TelemetryChunk
from controlplane.telemetry.selectors import node_series, pending_name
from controlplane.telemetry.services import store_chunks
from tests.integration.backend.builders import make_fleet
from tests.integration.backend.servers import RedisServer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _real(redis_server: RedisServer, settings: Settings) -> Iterator[None]:
    settings.REDIS_URL = redis_server.url
    bus.client().flushall()
    bus.health.note(None)
    yield
    bus.client().flushall()


@pytest.fixture
def node() -> Node:
    make_fleet(1)
    return Node.objects.get()


class Sentinel:
    """Hears a device of this node each second."""

    def __init__(self, node: Node, began_s: float) -> None:
        self.node, self.began_s, self.seq = node, began_s, 0
        self.live_state, self.history = LiveState(), History(600.0)
        self.live_state.expect({node.id}, {(node.id, 0)}, {})

    def second(self) -> None:
        """One more, shown."""
        self.seq += 1
        frame = AgentFrame(
            seq=self.seq, uptime_s=float(self.seq), devices=(DeviceSample(index=0, temperature_c=50.0 + 2 * self.seq),)
        )
        heard = [Heard(node_id=self.node.id, session_id="s", at_s=self.began_s + self.seq, frame=frame)]
        self.history.take(self.live_state.take(heard), self.live_state)
        self.history.publish()

    def series(self) -> dict[str, Any]:
        """As the API shows it."""
        found = node_series(self.node.id, since_s=self.began_s, until_s=self.began_s + 1000.0)["devices"]
        return found[0] if found else {"t": [], "temperature_c": []}


def test_a_chart_has_each_second_while_it_is_shown_and_after_it_is_stored(node: Node) -> None:
    sentinel = Sentinel(node, round(now_s()) - 100.0)
    for _ in range(5):
        sentinel.second()
    whole = sentinel.series()
    assert whole["t"] == [sentinel.began_s + second for second in range(1, 6)]
    assert whole["temperature_c"] == [52.0, 54.0, 56.0, 58.0, 60.0]
    assert len(bus.read_parts(pending_name(node.id))) == 5, "a part each, none written twice"
    assert sentinel.history.force(known={node.id}) == 1
    assert bus.read_parts(pending_name(node.id)) == []
    assert sentinel.series() == whole
    sentinel.second()
    assert len(sentinel.series()["t"]) == 6
    assert TelemetryChunk.objects.get().codec == "q3"


def test_after_redis_lost_it_or_another_sentinel_has_written_there_it_is_all_there_again(node: Node) -> None:
    sentinel = Sentinel(node, round(now_s()) - 100.0)
    for _ in range(3):
        sentinel.second()
    bus.client().flushall()
    sentinel.second()
    sentinel.second()
    assert len(sentinel.series()["t"]) == 5
    bus.write_parts([(pending_name(node.id), [b"of another sentinel"], True)])
    sentinel.second()
    sentinel.second()
    assert len(sentinel.series()["t"]) == 7


def test_what_others_wrote_among_the_parts_is_left_out(node: Node) -> None:
    sentinel = Sentinel(node, round(now_s()) - 100.0)
    for _ in range(2):
        sentinel.second()
    key, sealed = f"hf:parts:{pending_name(node.id)}", bus.client().get(f"hf:parts:{pending_name(node.id)}")
    assert isinstance(sealed, bytes)
    own = bus.read_parts(pending_name(node.id))
    foreign = seal("parts", "pending:another", own[0])
    bus.client().append(key, len(foreign).to_bytes(4, "big") + foreign)
    bus.client().append(key, sealed)
    bus.client().append(
        key, b"\xff\xff\xff\xff" + bytes(np.random.default_rng(1).integers(0, 256, 200, dtype=np.uint8))
    )
    assert sentinel.series()["t"] == [sentinel.began_s + 1, sentinel.began_s + 2]


def test_of_what_others_wrote_among_the_parts_no_more_is_read_than_the_first_and_old_parts_hide_no_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(bus.tally, "note", lambda reason, detail: noted.append(detail))
    with monkeypatch.context() as before:
        before.setattr("controlplane.runtime.seal.now_s", lambda: now_s() - bus.PARTS_AGE_S - 60.0)
        bus.write_parts([("a", [b"old"], True)])
    bus.write_parts([("a", [b"first", b"second"], False)])
    bus.client().append("hf:parts:a", bytes(100_000))
    assert bus.read_parts("a") == [b"first", b"second"]
    assert noted == ["a: late", "a: unsealed"]


@pytest.mark.django_db(transaction=True)
def test_a_node_that_is_in_no_table_any_more_costs_no_other_its_chunk(node: Node) -> None:
    part = Part(t_ms=np.array([1_700_000_000_000]), devices=[0], whole=np.zeros((len(METRICS), 1, 1), dtype=np.int32))
    assert store_chunks({"node_gone": part, node.id: part}) == 1
    TelemetryChunk.objects.all().delete()
    with events.unit_of_work():
        assert store_chunks({"node_gone": part, node.id: part}) == 1, "where its write is one of a larger unit, too"
    assert store_chunks({node.id: part}) == 1, "the same one again is the one that is there"
    assert TelemetryChunk.objects.get().node_id == node.id
    assert store_chunks({}) == 0


@pytest.mark.django_db(transaction=True)
def test_a_chunk_is_packed_before_its_transaction_begins(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the lease is held in it."""
    part = Part(t_ms=np.array([1_700_000_000_000]), devices=[0], whole=np.zeros((len(METRICS), 1, 1), dtype=np.int32))
    inside: list[bool] = []

    def pack(whole: Part) -> bytes:
        inside.append(connection.in_atomic_block)
        return pack_whole(whole)

    monkeypatch.setattr(services, "pack_whole", pack)
    assert store_chunks({node.id: part}, events.unit_of_work) == 1
    assert inside == [False]
