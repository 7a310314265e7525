"""V2: one event that cannot be stored silenced a node for good. Now it is put aside."""

import asyncio
from io import StringIO
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import DataError, OperationalError, connection, transaction

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol import frames
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StepReport
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import deadletter, ingest
from controlplane.recovery.models import Signal
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import Fleet, hello, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

NO_COLUMN_HOLDS = 2**63 + 5


def step(number: int) -> StepReport:
    """A rank's report of a step with any number."""
    return StepReport(number, 2, 0.05, 64, (0,), 4.0, 1.0, "hash")


def xid(number: int, *, index: int = 0) -> frames.XidSeen:
    """A finding that makes one row."""
    return frames.XidSeen(XidEvent(index=index, xid=number))


def counted(reason: str) -> int:
    """How often that was counted."""
    return sum(FrameCounter.objects.filter(reason=reason).values_list("count", flat=True))


def poison(fleet: Fleet, job: Job, *, steps: int = 1) -> tuple[Rank, list[frames.EventBody]]:
    """A rank of the job and steps of it that no column holds."""
    row = live_ranks(job)[0]
    return row, [frames.RankSaid(ref_of(row), step(NO_COLUMN_HOLDS + n)) for n in range(steps)]


def test_a_step_that_no_column_holds_delays_no_event_behind_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row, bad = poison(fleet, job)
    outcome = fleet.tell(row.node.name, xid(79), *bad, frames.RankExited(ref_of(row), None, 9, False))
    assert (outcome.acked_seq, outcome.resend) == (fleet.seqs[row.node.name], False)
    assert Rank.objects.get(pk=row.pk).released_at is not None or Rank.objects.get(pk=row.pk).state == "exited"
    assert Signal.objects.filter(kind="xid").count() == 1
    letter = row.node.dead_letters.get()
    assert (letter.seq, letter.kind, letter.state) == (fleet.seqs[row.node.name] - 1, "rank_said step", "waiting")
    kept = msgspec.msgpack.decode(bytes(letter.raw))
    assert kept["body"] == msgspec.msgpack.decode(msgspec.msgpack.encode(bad[0]))
    assert counted("dead_letter") == 1
    assert row.node.name in Event.objects.get(kind="node.dead_letter").sentence


def test_a_nul_in_a_text_delays_no_event_behind_it_and_is_kept_as_it_came() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    marked = frames.LogMarked(ref_of(row), "nccl_error", "NCCL\x00error", 1)
    outcome = fleet.tell(row.node.name, marked, xid(48))
    assert outcome.acked_seq == fleet.seqs[row.node.name]
    assert Signal.objects.filter(kind="xid").count() == 1
    if connection.vendor == "postgresql":
        letter = row.node.dead_letters.get()
        assert b"NCCL\x00error" in bytes(letter.raw)
        assert "\x00" not in letter.reason


def test_a_nul_in_the_name_of_a_job_harms_nobody() -> None:
    fleet = make_fleet(2)
    bad = frames.HostExited("job_\x00", 1)
    assert fleet.tell("n1", bad, xid(48)).acked_seq == 2
    assert Signal.objects.count() == 1
    assert fleet.nodes["n1"].dead_letters.count() == 1


def test_an_age_that_no_calendar_holds_harms_nobody() -> None:
    fleet = make_fleet(1)
    batch = (frames.AgentEvent(1, 1e300, xid(48)), frames.AgentEvent(2, float("nan"), xid(79)))
    assert ingest.apply_events(fleet.nodes["n1"].id, "web.n1", batch).acked_seq == 2
    assert Signal.objects.filter(value=79.0).exists()


def test_five_hundred_bad_events_are_taken_in_turns_so_that_another_node_is_heard_between_them() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row, bad = poison(fleet, job, steps=100)
    name = row.node.name
    other = next(n for n in fleet.nodes if n != name)
    first = fleet.seqs[name] + 1
    batch = tuple(frames.AgentEvent(first + n, 0.0, body) for n, body in enumerate(bad))
    outcome = ingest.apply_events(fleet.nodes[name].id, f"web.{name}", batch)
    assert outcome.resend
    assert outcome.acked_seq == first + ingest.MAX_ASIDE_A_TURN - 1
    fleet.tell(other, xid(79))
    assert Signal.objects.filter(kind="xid").count() == 1
    while outcome.resend:
        rest = tuple(event for event in batch if event.seq > outcome.acked_seq)
        outcome = ingest.apply_events(fleet.nodes[name].id, f"web.{name}", rest)
    assert outcome.acked_seq == batch[-1].seq
    assert counted("dead_letter") == 100
    assert Event.objects.filter(kind="node.dead_letter").count() == 1, "told once a minute, counted always"


def test_what_is_kept_of_a_node_is_bounded_and_what_was_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.recovery import deadletter

    monkeypatch.setattr(deadletter, "MAX_KEPT_A_NODE", 5)
    fleet = make_fleet(1)
    for _ in range(8):
        fleet.tell("n1", frames.DeviceLost(77, "GPU"))
    rows = fleet.nodes["n1"].dead_letters.order_by("id")
    assert list(rows.values_list("seq", flat=True)) == [4, 5, 6, 7, 8]
    assert (counted("dead_letter"), counted("dead_letter_dropped")) == (8, 3)


def test_a_replay_applies_the_event_as_the_session_would_have_once_its_fault_is_mended() -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", xid(79, index=2), xid(48, index=3), xid(13))
    letters = fleet.nodes["n1"].dead_letters.order_by("id")
    assert list(letters.values_list("seq", flat=True)) == [1, 2]
    with pytest.raises(Exception, match="failed again"):
        call_command("replay_dead_letters", stdout=StringIO())
    assert set(letters.values_list("state", "tries")) == {("waiting", 4)}
    # The devices were not listed; now they are.
    ingest.open_session(fleet.nodes["n1"].id, "web.n1", hello("n1", devices=4))
    out = StringIO()
    call_command("replay_dead_letters", node="n1", stdout=out)
    assert "2 applied, 0 still wait" in out.getvalue()
    found = Signal.objects.filter(kind="xid").order_by("id").values_list("device_index", "value")
    assert list(found) == [(0, 13.0), (2, 79.0), (3, 48.0)]
    assert set(letters.values_list("state", flat=True)) == {"replayed"}
    again = StringIO()
    call_command("replay_dead_letters", stdout=again)
    assert "0 applied" in again.getvalue()


def test_a_letter_that_nobody_wants_is_discarded_with_a_reason() -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", frames.DeviceLost(77, "GPU"), frames.DeviceLost(78, "GPU"))
    first, second = fleet.nodes["n1"].dead_letters.order_by("id")
    call_command("discard_dead_letters", id=first.pk, reason="no such device", stdout=StringIO())
    assert fleet.nodes["n1"].dead_letters.get(state="waiting").pk == second.pk


def test_a_letter_is_discarded_though_others_write_and_never_without_its_line_in_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", frames.DeviceLost(77, "GPU"))
    letter = fleet.nodes["n1"].dead_letters.get()
    audit, tries = deadletter.access.audit, iter([OperationalError("database is locked"), ValueError("no disk")])

    def refuse(*args: Any, **kwargs: Any) -> None:
        error = next(tries, None)
        if error is not None:
            raise error
        audit(*args, **kwargs)

    monkeypatch.setattr(deadletter.access, "audit", refuse)
    with pytest.raises(ValueError, match="no disk"):
        deadletter.discard(letter.pk, actor="console", reason="no such device")
    assert fleet.nodes["n1"].dead_letters.get().state == "waiting"
    deadletter.discard(letter.pk, actor="console", reason="no such device")
    assert fleet.nodes["n1"].dead_letters.get().state == "discarded"


def test_an_outage_of_the_database_puts_nothing_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(1)

    def away(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(ingest, "apply_event", away)
    with pytest.raises(OperationalError):
        fleet.tell("n1", xid(79))
    assert not fleet.nodes["n1"].dead_letters.exists()
    assert Node.objects.get(name="n1").last_event_seq == 0


def test_the_databases_own_codes_tell_an_outage_from_bad_data() -> None:
    from controlplane.runtime.outages import is_outage

    bad = (
        f"SELECT {'(' * 20_000}1"
        if connection.vendor == "sqlite"
        else "SELECT '\\x'::bytea || repeat('x', 2000000000)::bytea"
    )
    with pytest.raises(Exception) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(bad)
    assert not is_outage(caught.value)
    assert not is_outage(DataError("value out of range"))
    assert not is_outage(OverflowError())
    assert is_outage(OperationalError("the connection is lost"))


async def test_over_the_real_socket_the_nodes_next_event_and_another_nodes_are_applied(
    world: World, stack: Stack
) -> None:
    """What passes the door's ranges and is still not to be applied: it speaks for another node's rank."""
    first, second = world.agents[:2]
    first.tell(frames.RankJoined(RankRef("job_x", 1, 0, 1, 0)))
    first.tell(xid(79))
    second.tell(xid(48))
    await eventually("both are heard", lambda: Signal.objects.filter(kind="xid").count() == 2, stack=stack)
    await eventually("all is acknowledged", lambda: not first.unacked and not second.unacked, stack=stack)
    node = await sync_to_async(Node.objects.get)(name=first.name)
    assert await sync_to_async(node.dead_letters.count)() >= 1
    assert first.welcomed.is_set()
    await asyncio.sleep(0)
