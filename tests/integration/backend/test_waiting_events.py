"""What waits before it is written is told of the moment when it happened, not of that of the writing."""

import threading
import time

import pytest

from controlplane.jobs.models import Job
from controlplane.jobs.numbers import numbers_of, pace_of
from controlplane.live.writer import Item, Writer, _join
from controlplane.protocol import frames
from controlplane.protocol.rank import StepReport
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import ingest
from controlplane.recovery.models import Signal
from controlplane.recovery.signals import fact_of
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
STEP_S = 0.1
SHARE = tuple(range(12))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The writer waits for a node's lock while this is not set."""
    free, real = threading.Event(), ingest._own
    free.set()

    def slow(*args: object, **more: object) -> object:
        free.wait(30.0)
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest, "_own", slow)
    return free


def test_a_writer_that_waited_for_a_lock_leaves_the_steps_as_long_as_they_were(held: threading.Event) -> None:
    fleet = make_fleet(5)
    job = run_job(fleet, steps=0)
    rank = live_ranks(job)[0]
    name = rank.node.name
    writer = Writer(lambda *_: None)
    writer.start()
    for step in range(48):
        if step in (20, 38):
            (held.clear if step == 20 else held.set)()
        fleet.seqs[name] += 1
        body = frames.RankSaid(ref_of(rank), StepReport(step, job.epoch, STEP_S, 64, SHARE, 4.0))
        event = frames.AgentEvent(fleet.seqs[name], 0.0, body)
        writer.put(Item(node_id=rank.node_id, session_id=f"web.{name}", callback=lambda *_: None, events=(event,)))
        time.sleep(STEP_S)
    writer.stop()
    pace = pace_of(Job.objects.get(pk=job.pk))
    assert pace is not None and pace.step == 47
    assert pace.refused <= 3, "of 17 that were written together"
    assert pace.best_s is not None and pace.best_s > 0.8 * STEP_S
    undisturbed_s = numbers_of(Job.objects.get(pk=job.pk)).undisturbed_step_s
    assert undisturbed_s is not None and undisturbed_s > 0.8 * STEP_S


def test_an_event_that_waited_happened_when_it_came() -> None:
    fleet: Fleet = make_fleet(2)
    node = fleet.nodes["n1"]
    came_s = time.time() - 40.0
    fleet.seqs["n1"] += 1
    event = frames.AgentEvent(fleet.seqs["n1"], 5.0, frames.XidSeen(XidEvent(index=0, xid=79)))
    ingest.apply_events(node.id, "web.n1", (event,), received_s=time.monotonic() - 40.0)
    found = fact_of(Signal.objects.get(node=node, kind="xid"))
    assert found.seen_s == pytest.approx(came_s - 5.0, abs=5.0)
    assert found.came_s == pytest.approx(time.time(), abs=5.0), "whatever age its node gave it"


def test_two_frames_that_are_written_at_once_keep_their_own_moments() -> None:
    def item(seq: int, received_s: float) -> Item:
        event = frames.AgentEvent(seq, 1.0, frames.XidSeen(XidEvent(index=0, xid=79)))
        return Item(node_id="n", session_id="s", callback=lambda *_: None, events=(event,), received_s=received_s)

    (joined,) = _join([item(1, 100.0), item(2, 107.0)])
    happened_s = [joined.received_s - event.age_s for event in joined.events]
    assert happened_s == [99.0, 106.0]
