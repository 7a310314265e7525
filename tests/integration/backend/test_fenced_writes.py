"""A shard's leader writes under its term: what is written under an old one, found twice, or stored twice.

What two processes do to each other is in `test_two_sentinels`, who leads what in `tests/unit/backend/test_leading.py`.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.db import DatabaseError, connection, transaction
from pytest_django.fixtures import Settings

from controlplane.fleet.models import Device
from controlplane.jobs.models import Job
from controlplane.recovery.models import Signal
from controlplane.runtime import metrics
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.errors import LostLead
from controlplane.runtime.isolate import isolated
from controlplane.runtime.models import FrameCounter, ProcessBeat
from controlplane.runtime.outages import is_outage
from controlplane.sentinel import seeds
from controlplane.sentinel.fence import Fence
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.leading import HUNG_S
from controlplane.sentinel.scan import RAISED_S
from controlplane.sentinel.shard import LATE_S, Turn
from controlplane.telemetry.codec import unpack
from controlplane.telemetry.models import TelemetryChunk
from tests.integration.backend.builders import make_fleet, make_job
from tests.integration.backend.sentinels import ALL, BROKEN, Redis, Scene

GIVE_UP_S = 60.0
"""A guard against waiting for ever: how soon it is, is measured elsewhere."""
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    return Redis(monkeypatch)


@pytest.fixture
def hot() -> Device:
    """A device of a fleet of one node."""
    make_fleet(1)
    return Device.objects.select_related("node").get(index=1)


def raised() -> list[str]:
    return list(Signal.objects.filter(kind="device_reading").values_list("key", flat=True))


def test_what_stood_by_raises_once_what_the_leader_before_had_no_time_for(redis: Redis, hot: Device) -> None:
    scene = Scene(1, "a", "b")
    scene.lead("a", 0, term=1)
    sick = {(hot.node_id, 1): BROKEN}
    for name in ("a", "b"):
        scene.turn(name, scene.frames())
    assert raised() == []
    for name in ("b", "a"):
        scene.turn(name, scene.frames(sick))
    assert len(raised()) == 1
    # It is dealt with, and the device is back in service: neither is a reason to raise it again.
    Signal.objects.update(settled_at=Signal.objects.get().created_at)
    Device.objects.update(healthy=True, health_reason="")
    other = {(hot.node_id, 0): BROKEN, **sick}
    scene.turn("b", scene.frames(other))
    scene.lead("b", 0, term=2)
    scene.turn("b", scene.frames(other))
    assert len(raised()) == 2
    assert Signal.objects.filter(device_index=1).count() == 1
    for _ in range(2):
        scene.turn("b", scene.frames(other))
    assert len(raised()) == 2


def test_a_flag_that_a_leader_before_has_raised_lately_is_no_news_of_one_that_never_heard_the_device(
    redis: Redis, hot: Device
) -> None:
    sick, scene = {(hot.node_id, 1): BROKEN}, Scene(1, "a", "b", "c")
    for name in ("a", "b"):
        scene.lead(name, 0, term=ord(name))
        scene.turn(name, scene.frames())
        scene.turn(name, scene.frames(sick if name == "a" else {}))
        # Dealt with, by a rule that left the device in service.
        Signal.objects.update(settled_at=ago(60.0))
        Device.objects.update(healthy=True, health_reason="")
    assert len(raised()) == 1
    scene.turn("b", scene.frames(sick))
    assert len(raised()) == 2, "it has begun before its eyes"
    Signal.objects.update(settled_at=ago(60.0))
    Device.objects.update(healthy=True, health_reason="")
    scene.lead("c", 0, term=ord("c"))
    for _ in range(2):
        scene.turn("c", scene.frames(sick))
    assert len(raised()) == 2
    Signal.objects.update(created_at=ago(2 * RAISED_S))
    later = Scene(1, "d")
    later.lead("d", 0, term=200)
    for _ in range(2):
        later.turn("d", later.frames(sick))
    assert len(raised()) == 3, "hours later a person is told again"


def test_what_was_found_long_before_is_none_of_the_next_leaders(redis: Redis, hot: Device) -> None:
    scene = Scene(1, "b")
    scene.turn("b", scene.frames({(hot.node_id, 1): BROKEN}))
    shard = scene.sentinels["b"].shards[0]
    assert len(shard._late) == 1
    shard._late[0] = (time.monotonic() - LATE_S - 1.0, shard._late[0][1])
    scene.sentinels["b"].leadership.elsewhere = frozenset({0})
    scene.turn("b", scene.frames())
    assert not shard._late


def test_counters_that_rose_before_it_stood_by_are_not_compared_when_it_takes_over(
    redis: Redis, hot: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of that time has done it, and what it found may have been dealt with since."""
    compared: list[str] = []
    monkeypatch.setattr(seeds, "newest_totals", lambda node_id, *_, **__: compared.append(node_id) or {})
    scene = Scene(1, "a", "b")
    scene.sentinels["b"].leadership.elsewhere = frozenset({0})
    for name, age_s in (("a", 0.0), ("b", LATE_S + 1.0)):
        scene.turn(name, scene.frames())
        begun = scene.sentinels[name].shards[0].live_state.watch.begun
        assert begun.keys() == {hot.node_id}
        begun[hot.node_id] -= age_s
        scene.turn(name, scene.frames())
        scene.lead(name, 0, term=1)
        scene.turn(name, scene.frames())
    assert compared == [hot.node_id], "by the one that had just begun"


def test_a_leader_that_comes_back_writes_nothing_under_its_old_term(redis: Redis, hot: Device) -> None:
    scene = Scene(1, "a", "b")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    shard = scene.sentinels["a"].shards[0]
    # It was about to scan, to store and to count when it was stopped; another one took the lease since.
    shard.take(scene.frames({(hot.node_id, 1): BROKEN}))
    shard.live_state.dropped["?", "unknown_node"] += 3
    ProcessBeat.objects.filter(name="lease:sentinel").update(term=2)
    refused = metrics.FENCED._value.get()
    turn = Turn(moment=time.monotonic(), now_s=now_s(), due=frozenset(ALL), health={}, unheard_s=lambda web: 0.0)
    for part in ("scan", "dropped"):
        # What it found stays for its next scan, or for when it leads again.
        with pytest.raises(LostLead):
            shard.lead(replace(turn, due=frozenset({part})), paused=False)
    with pytest.raises(LostLead):
        shard.store()
    assert raised() == []
    assert not TelemetryChunk.objects.exists()
    assert not FrameCounter.objects.exists()
    assert metrics.FENCED._value.get() == refused + 3
    # What its thread of leases believes is older than what its loop was told.
    scene.turn("a", scene.frames({(hot.node_id, 1): BROKEN}))
    assert shard.term is None
    assert shard.ended == 1
    assert raised() == []


def test_one_that_lost_sight_of_the_database_leads_on_under_its_term_with_a_new_grace(
    redis: Redis, hot: Device, settings: Settings
) -> None:
    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    sentinel = scene.sentinels["a"]
    held, sentinel.leadership.held = sentinel.leadership.held, {}
    scene.turn("a", scene.frames())
    assert sentinel.shards[0].term is None
    settings.GRACE_S = 60.0
    redis.live.clear()
    sentinel.leadership.held = held
    scene.turn("a", scene.frames())
    assert sentinel.shards[0].term == 1
    assert redis.live["sight"]["blind"]
    scene.turn("a", scene.frames({(hot.node_id, 1): BROKEN}))
    assert len(raised()) == 1


def test_one_whose_loop_stands_still_gives_its_leases_back_while_another_one_lives() -> None:
    a, b = Leadership("a", 2), Leadership("b", 2)
    a.turn()
    a.turned_at -= HUNG_S + 1.0
    a._beat_at = -1e9
    a.turn()
    assert set(a.held) == {0, 1}, "there is nobody else"
    b.turn()
    a._beat_at = -1e9
    a.turn()
    assert a.held == {}
    assert ProcessBeat.objects.get(name="a").detail["why"] == "its loop stands still"
    b.turn()
    assert set(b.held) == {0, 1}, "it is no member, whatever it was ready for"
    a.turned_at = time.monotonic()
    a._beat_at = -1e9
    a.turn()
    assert a.follow, "it turns again, and stands by"
    assert "left" not in ProcessBeat.objects.get(name="a").detail


def test_a_lease_that_cannot_be_taken_keeps_no_other_from_being_led(monkeypatch: pytest.MonkeyPatch) -> None:
    a, real = Leadership("a", 2), Leadership._raise

    def wrong(self: Leadership, name: str, seen: ProcessBeat | None) -> int | None:
        if name == "lease:sentinel":
            raise KeyError("a bug of ours")
        return real(self, name, seen)

    monkeypatch.setattr(Leadership, "_raise", wrong)
    a.turn()
    assert set(a.held) == {1}


def test_that_somebody_else_leads_is_no_fault_of_a_subject() -> None:
    def lost() -> None:
        raise LostLead("shard 0 is led under term 2")

    with pytest.raises(LostLead):
        isolated("reading", "node_1", lost)


def test_a_lease_that_is_not_renewed_in_time_shows_nothing(redis: Redis, hot: Device) -> None:
    scene = Scene(1, "a")
    scene.lead("a", 0, term=1)
    scene.turn("a", scene.frames())
    redis.live.clear()
    leadership = scene.sentinels["a"].leadership
    leadership.held = {0: Held(term=1, kept_s=time.monotonic() - 60.0)}
    scene.turn("a", scene.frames())
    assert redis.live == {}
    leadership.held = {0: Held(term=1, kept_s=time.monotonic())}
    scene.turn("a", scene.frames())
    assert redis.live["sight"]["blind"] is False, "it was its own all the time"


def test_the_history_of_the_next_leader_begins_where_that_of_the_one_before_ends(redis: Redis, hot: Device) -> None:
    scene = Scene(1, "a", "b")
    scene.lead("a", 0, term=1)
    moments = []
    for second in range(8):
        heard = scene.frames()
        moments.append(round(heard[0].at_s + second, 3))
        for item in heard:
            item.at_s = moments[-1]
        for name in ("a", "b"):
            scene.sentinels[name]._follow(0.0)
            scene.sentinels[name].follower.turn()
            scene.sentinels[name].shards[0].expect(None)
            scene.sentinels[name].shards[0].take(
                [Heard(node_id=x.node_id, session_id=x.session_id, at_s=x.at_s, frame=x.frame) for x in heard]
            )
        if second == 4:
            shard = scene.sentinels["a"].shards[0]
            shard.begin(1)
            shard.store()
    ProcessBeat.objects.update(term=2)
    after = scene.sentinels["b"].shards[0]
    after.begin(2)
    after.store()
    chunks = [unpack(bytes(row.payload)) for row in TelemetryChunk.objects.order_by("t0")]
    assert len(chunks) == 2
    stored = [round(float(t), 3) for chunk in chunks for t in chunk.t_s]
    assert stored == moments, "each once"


def test_who_leaves_gives_back_and_is_no_member_any_more() -> None:
    a, b = Leadership("a", 4), Leadership("b", 4)
    a.turn()
    b.turn()
    assert (set(a.held), set(b.held)) == ({0, 1, 2, 3}, set())
    a.leave()
    b.turn()
    assert set(b.held) == {0, 1, 2, 3}
    assert {row.term for row in ProcessBeat.objects.filter(role="lease")} == {2}
    a._terms.clear()
    a.turn()
    assert a.held == {}


def test_a_shard_is_given_with_what_is_stored_of_it_and_its_next_term(redis: Redis, hot: Device) -> None:
    a, b = Scene(1, "a"), Leadership("b", 1)
    a.lead("a", 0, term=1)
    a.turn("a", a.frames())
    a.sentinels["a"].leadership.giving = {0: "b"}
    a.turn("a", a.frames())
    assert TelemetryChunk.objects.count() == 1
    assert a.sentinels["a"].shards[0].term is None
    b.turn()
    assert b.held[0].handed
    assert b.term() == 2
    assert "handed" not in ProcessBeat.objects.get(name="lease:sentinel").detail
    # It gave it: that its leases thread has not seen that yet changes nothing.
    redis.live.clear()
    a.turn("a", a.frames())
    assert a.sentinels["a"].shards[0].term is None
    assert redis.live == {}


needs_rows_locked = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")


@pytest.fixture
def other_thread() -> Iterator[list[threading.Thread]]:
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(20.0)


@needs_rows_locked
def test_who_takes_the_lease_waits_for_a_write_under_the_term_before_and_not_for_one_that_stands_still(
    other_thread: list[threading.Thread],
) -> None:
    Leadership("a", 1).turn()
    began, end, failed = threading.Event(), threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with Fence(0, 1).unit_of_work():
                make_job()
                began.set()
                end.wait(20.0)
        except DatabaseError as error:
            failed.append(error)
        finally:
            connection.close()

    other_thread.append(threading.Thread(target=write))
    other_thread[0].start()
    assert began.wait(10.0)
    b, since = Leadership("b", 1), time.monotonic()
    ProcessBeat.objects.filter(name="a").delete()
    seen = ProcessBeat.objects.get(name="lease:sentinel")
    b._take(0, seen, since)
    assert b.term() is None, "it is locked"
    while b.term() is None:
        b._take(0, seen, since)
        assert time.monotonic() - since < GIVE_UP_S, "it is never taken"
        time.sleep(0.05)
    end.set()
    other_thread[0].join(20.0)
    assert [is_outage(error) for error in failed] == [True], "PostgreSQL has cut it off: it may be repeated"
    assert not Job.objects.exists()


@needs_rows_locked
def test_a_write_that_began_first_is_committed_before_the_lease_is_taken() -> None:
    Leadership("a", 1).turn()
    with Fence(0, 1).unit_of_work():
        make_job()
    with pytest.raises(LostLead), transaction.atomic():
        ProcessBeat.objects.filter(name="lease:sentinel").update(term=2)
        with Fence(0, 1).unit_of_work():
            make_job()
    assert Job.objects.count() == 1


@needs_rows_locked
def test_a_long_write_of_ours_makes_no_other_lease_late(other_thread: list[threading.Thread]) -> None:
    leads = Leadership("a", 3)
    leads.turn()
    began, end = threading.Event(), threading.Event()

    def write() -> None:
        with Fence(1, 1).unit_of_work():
            began.set()
            end.wait(20.0)
        connection.close()

    other_thread.append(threading.Thread(target=write))
    other_thread[0].start()
    assert began.wait(10.0)
    kept = {shard: held.kept_s for shard, held in leads.held.items()}
    leads._renewed_at = -1e9
    leads.turn()
    end.set()
    assert set(leads.held) == {0, 1, 2}, "it is ours, as nobody can take it"
    assert {shard for shard, held in leads.held.items() if held.kept_s > kept[shard]} == {0, 2}
