"""What a sentinel does when one part of its work fails, or is long: the rest goes on, in time."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from pytest_django.fixtures import Settings

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import ago, from_s, now_s
from controlplane.runtime.models import ClockStep, EventStream, FrameCounter, ProcessBeat
from controlplane.sentinel import history, seeds
from controlplane.sentinel.leadership import Leadership
from controlplane.sentinel.shard import LATE_S, Shard, Turn
from controlplane.telemetry.models import TelemetryChunk
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, run_job
from tests.integration.backend.sentinels import BROKEN, Redis, Scene

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    return Redis(monkeypatch)


@pytest.fixture(autouse=True)
def fleet() -> Fleet:
    return make_fleet(4)


@contextmanager
def unfenced() -> Iterator[tuple[set[str], list[str]]]:
    """(tables that were written, writes before which their transaction had not asked for the lease)."""
    tables, found, asked = set[str](), list[str](), list[bool]()
    lease = f'FROM "{ProcessBeat._meta.db_table}" WHERE "'

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if "term" in sql.partition("FROM")[0] and lease in sql and connection.in_atomic_block:
            asked.append(True)
            transaction.on_commit(asked.clear)
        if write := re.match(r'(?:INSERT\b.*? INTO|UPDATE|DELETE FROM) "(\w+)"', sql):
            tables.add(write[1])
            if not asked:
                found.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield tables, found


def test_each_write_of_a_turn_is_behind_its_lease(redis: Redis, fleet: Fleet) -> None:
    """A finding, one of silence, a wake-up for a replica that holds up the others, what was dropped, and history."""
    run_job(fleet)
    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    shard = scene.sentinels["a"].shards[0]
    silent, broken = (live_ranks(Job.objects.get())[place].node_id for place in (0, -1))
    shard.live_state.last_seen_s[shard.live_state.nodes[silent].row] -= 60.0
    shard.live_state.dropped["?", "unknown_node"] += 3
    shard.history.nodes[broken].first_s -= 1e6
    assert shard.scanner.alone, "a replica holds up the others"
    shard.scanner.alone = frozenset()
    with unfenced() as (tables, found):
        mine = [each for each in scene.frames({(broken, 0): BROKEN}) if each.node_id != silent]
        scene.turn("a", mine)
    assert found == []
    models = (Signal, Job, FrameCounter, TelemetryChunk, EventStream)
    assert {model._meta.db_table for model in models} <= tables
    assert set(Signal.objects.values_list("kind", flat=True)) == {"device_reading", "node_silent"}


def test_history_of_a_shard_that_is_given_is_stored_some_a_turn_and_ends_though_its_nodes_say_more(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FORCED_AT_ONCE", 1)
    scene, given = Scene(1, "a"), []
    scene.lead("a", 0, term=1)
    shard, nodes = scene.sentinels["a"].shards[0], Node.objects.count()
    scene.turn("a", scene.frames())
    scene.sentinels["a"].leadership.giving = {0: "b"}
    monkeypatch.setattr(scene.sentinels["a"].leadership, "hand_over", lambda *which: given.append(which))
    for turn in range(1, nodes + 1):
        assert given == []
        scene.turn("a", scene.frames())
        assert TelemetryChunk.objects.count() == turn
    assert nodes > 1 and given == [(0, 1, "b")] and shard.history.waiting() > 0, "the other one has heard the rest"


def test_a_shard_whose_turn_fails_keeps_no_other_from_being_led(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.SENTINEL_SHARDS = 2
    scene, served = Scene(2, "a"), []
    real = Shard.lead

    def lead(self: Shard, turn: Turn, *, paused: bool) -> bool:
        if self.number == 0:
            raise KeyError("a bug of ours")
        served.append(self.number)
        return real(self, turn, paused=paused)

    monkeypatch.setattr(Shard, "lead", lead)
    scene.lead("a", 0, 1, term=1)
    scene.turn("a", scene.frames())
    assert served == [1]
    assert scene.sentinels["a"].blind_until > time.monotonic(), "its silence is no evidence"


def test_a_step_of_the_clock_that_another_leader_found_is_none_of_ours_any_more(redis: Redis) -> None:
    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    sentinel = scene.sentinels["a"]
    ProcessBeat.objects.filter(name="lease:sentinel").update(term=2)
    sentinel._steps.append((3600.0, now_s(), 5.0))
    sentinel._move_due()
    assert not sentinel._steps
    assert not ClockStep.objects.exists()


def test_what_a_chunk_of_hours_has_is_not_stored_again_by_who_leads_next(redis: Redis) -> None:
    """One that was stored after an outage of the database began long before."""
    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    for _ in range(2):
        scene.turn("a", scene.frames())
    shard = scene.sentinels["a"].shards[0]
    node_id, pending = next(iter(shard.history.nodes.items()))
    until_s, last_s = pending.t_s[0] if pending.t_s else pending.spans[0][0], pending.last_s
    span = {"t0": ago(36_000.0), "t1": from_s(until_s), "samples": 7200, "codec": "q3", "payload": b""}
    TelemetryChunk.objects.create(node_id=node_id, **span)
    shard.begin(1)
    assert shard.history.nodes[node_id].whole().t_ms.tolist() == [round(last_s * 1000.0)]


def test_which_shards_another_one_leads_is_known_by_their_leases() -> None:
    """Only of these history is kept for no longer than the other's next chunks."""
    a, b = Leadership("a", 2), Leadership("b", 2)
    a.turn()
    assert a.elsewhere == frozenset()
    b.turn()
    assert b.elsewhere == {0, 1}
    a.leave()
    b.turn()
    b.turn()
    assert b.elsewhere == frozenset()


def test_a_lease_that_a_long_write_held_is_renewed_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    a, real, held = Leadership("a", 2), Leadership._renew, {1}
    a.turn()
    a._renewed_at -= 60.0

    def renew(self: Leadership, terms: dict[int, int], *, unwatched: bool) -> tuple[set[int], set[int]]:
        renewed, ours = real(self, terms, unwatched=unwatched)
        return renewed - held, ours

    monkeypatch.setattr(Leadership, "_renew", renew)
    a.turn()
    kept_s = a.held[1].kept_s
    held.clear()
    a.turn()
    assert a.held[1].kept_s > kept_s


def test_who_ends_in_an_outage_of_the_database_ends_all_the_same(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("the connection is lost")

    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    sentinel = scene.sentinels["a"]
    sentinel.net.start()
    sentinel.leadership.start()
    monkeypatch.setattr(Shard, "store", away)
    monkeypatch.setattr(Leadership, "leave", away)
    sentinel._leave()
    assert not sentinel.leadership._thread.is_alive()


def test_what_came_while_nobody_led_is_compared_and_raised_however_long_that_was(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an outage of the database: whoever leads next is the first who can."""
    compared: list[str] = []
    monkeypatch.setattr(seeds, "newest_totals", lambda node_id, *_, **__: compared.append(node_id) or {})
    scene, hot = Scene(1, "a"), Device.objects.order_by("pk")[0]
    scene.turn("a", scene.frames())
    scene.turn("a", scene.frames({(hot.node_id, hot.index): BROKEN}))
    shard = scene.sentinels["a"].shards[0]
    shard.live_state.watch.begun[hot.node_id] -= LATE_S + 1.0
    shard._late = type(shard._late)([(at - LATE_S - 1.0, finding) for at, finding in shard._late])
    assert shard._late, "it found something"
    scene.turn("a", scene.frames({(hot.node_id, hot.index): BROKEN}))
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames({(hot.node_id, hot.index): BROKEN}))
    assert hot.node_id in compared
    assert Signal.objects.filter(kind="device_reading", node_id=hot.node_id, device_index=hot.index).exists()
