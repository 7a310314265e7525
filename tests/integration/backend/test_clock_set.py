"""The server's clock is set by an hour, ahead and back: what is due stays due when it was."""

from datetime import timedelta
from types import SimpleNamespace

import msgspec
import pytest
from django.apps import apps
from django.db import models

from agents.errors import SignatureRejected
from agents.link.pins import Pins
from controlplane.access.models import SignInGate
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import services, statements
from controlplane.dispatch.models import Command, Unmade
from controlplane.engines.models import EnginePoll, Intent
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.commands import Body
from controlplane.recovery import clock_set, sweep
from controlplane.recovery.models import Incident, KeptCheckpoint, MarkedLines, Recomputation, Request
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime import beats, clock, keys
from controlplane.runtime.clock import after, ago, now, now_s
from controlplane.runtime.models import ProcessBeat
from controlplane.sentinel import leadership
from controlplane.sentinel.leadership import LEASE_S, Leadership
from tests.integration.backend.builders import make_fleet, make_job, run_job

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
BOTH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S], ids=["ahead", "back"])


def by_old_clock(step_s: float, in_s: float):
    """What was written as `in_s` from now before the clock was set by `step_s`."""
    return now() + timedelta(seconds=in_s - step_s)


def rows() -> dict[type[models.Model], models.Model]:
    """One row of each kind."""
    fleet = make_fleet()
    job = make_job()
    incident = Incident.objects.create(id="inc_1", job=job, title="t", opened_at=now())
    checkpoint = Checkpoint.objects.create(
        id="ck_1", job=job, attempt=1, step=1, epoch=1, path="/ck/1", kind="interval", layout={}, started_at=now()
    )
    return {
        Job: job,
        Checkpoint: checkpoint,
        Resumption: Resumption.objects.create(id="res_1", job=job, yielded=1, opened_at=now(), began={}),
        Incident: incident,
        KeptCheckpoint: KeptCheckpoint.objects.create(
            incident=incident, job=job, checkpoint=checkpoint, since=now(), due_at=now()
        ),
        Recomputation: Recomputation.objects.create(
            id="rec_1", incident=incident, job=job, attempt=1, ranks=2, path="/ck/1", from_step=1
        ),
        Node: fleet.nodes["n1"],
        Request: Request.objects.create(
            id="ask_1", kind="checkpoint", job=job, who="ada", reason="r", asked_at=now(), valid_until=now()
        ),
        SignInGate: SignInGate.objects.create(key="k", last_at=now()),
        MarkedLines: MarkedLines.objects.create(job=job, marker="m", last={}),
        EnginePoll: EnginePoll.objects.create(engine="slurm", due_at=now()),
        Intent: Intent.objects.create(id="int_1", engine="slurm", kind="resize", pool="9", made_at=now(), due_at=now()),
    }


@BOTH
def test_each_column_that_is_compared_with_the_clock_is_moved_with_it(step_s: float) -> None:
    made = rows()
    for model, column in clock_set.MOVED:
        model._default_manager.filter(pk=made[model].pk).update(**{column: by_old_clock(step_s, 20.0)})
    assert clock_set.move(step_s, set_s=now_s()) >= len(clock_set.MOVED)
    for model, column in clock_set.MOVED:
        row = model._default_manager.get(pk=made[model].pk)
        left_s = (getattr(row, column) - now()).total_seconds()
        assert left_s == pytest.approx(20.0, abs=15.0), f"{model.__name__}.{column}"


def test_every_due_column_is_moved_or_said_to_be_of_the_calendar() -> None:
    """A new column with such a name has to be thought of."""
    calendar = {"expires_at", "known_until"}
    due = {
        (model, field.name)
        for model in apps.get_models()
        for field in model._meta.fields
        if model.__module__.startswith("controlplane.") and field.name.endswith(("due_at", "_until", "expires_at"))
    }
    known = {*clock_set.MOVED, (Command, "due_at"), (Command, "send_due_at"), (Unmade, "due_at")}
    assert {f"{model.__name__}.{name}" for model, name in due - known if name not in calendar} == set()


def old_order(step_s: float) -> Command:
    """An order that went out before the step, signed with the time of then."""
    run_job(make_fleet())
    row = Command.objects.filter(kind="start_ranks").first()
    assert row is not None
    row.state, row.finished_at = "queued", None
    row.created_at, row.due_at = by_old_clock(step_s, -5.0), by_old_clock(step_s, row.ttl_s - 5.0)
    statements.sign(row, msgspec.convert(row.body, Body))
    row.save()
    return row


def agent_takes(row: Command) -> float:
    """The age that its node's agent finds in it. Raises SignatureRejected."""
    return Pins(keys.server_public_keys(), node_id=row.node_id).verify(statements.signed(row), now_s()).age_s


@BOTH
def test_an_order_that_waits_neither_expires_nor_is_refused_by_its_agent(step_s: float) -> None:
    row = old_order(step_s)
    others = Command.objects.exclude(pk=row.pk)
    others.filter(state__in=services.LIVE).update(state="done", finished_at=now())
    if step_s > 0.0:
        assert row.due_at < now(), "it would expire now"
    else:
        with pytest.raises(SignatureRejected, match="set the clocks"):
            agent_takes(row)
    clock_set.move(step_s, set_s=now_s())
    row.refresh_from_db()
    assert services.expire_overdue() == []
    assert statements.is_genuine(row)
    assert agent_takes(row) == pytest.approx(5.0, abs=15.0)
    assert row in services.deliverable([row.node_id])


def test_what_nobody_of_us_had_signed_is_not_signed_because_the_clock_was_set() -> None:
    row = old_order(HOUR_S)
    Command.objects.filter(pk=row.pk).update(ttl_s=row.ttl_s + 1.0)
    clock_set.move(HOUR_S, set_s=now_s())
    row.refresh_from_db()
    assert not statements.is_genuine(row)


@BOTH
def test_sessions_of_web_processes_that_live_are_not_closed(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet()
    ProcessBeat.objects.create(
        name="web:web", role="web", pid=1, started_at=now(), beat_at=by_old_clock(step_s, -1.0), detail={}
    )
    Node.objects.update(connected_at=by_old_clock(step_s, -60.0))
    steps = clock._Steps()
    steps.lately(1e9, 100.0)
    monkeypatch.setattr(sweep, "set_lately", lambda: steps.lately(1e9 + step_s + 1.0, 101.0))
    sweep.sweep()
    assert Node.objects.filter(connected=True).count() == len(fleet.nodes)
    assert not steps.lately(1e9 + step_s + 1.0 + clock.SETTLE_S, 101.0 + clock.SETTLE_S), (
        "five seconds later it sweeps again"
    )


def test_a_beat_from_the_future_is_no_sign_of_life() -> None:
    ProcessBeat.objects.create(name="web:a", role="web", pid=1, started_at=now(), beat_at=after(HOUR_S), detail={})
    ProcessBeat.objects.create(name="worker:b", role="worker", pid=1, started_at=now(), beat_at=after(HOUR_S))
    assert beats.live_web() == set()
    assert not beats.view("worker").ok
    assert beats.view("worker").detail == "its last beat is ahead of the clock, which was set back"
    assert list(beats.live("worker")) == []


def test_what_beat_an_hour_ago_is_silent_and_did_start() -> None:
    for name, age_s in (("old", 8 * HOUR_S), ("last", 2 * HOUR_S)):
        ProcessBeat.objects.create(
            name=f"sentinel:{name}", role="sentinel", pid=1, started_at=now(), beat_at=ago(age_s)
        )
    assert beats.forget_old() == 1, "the newest of a role stays"
    view = beats.view("sentinel")
    assert (view.ok, view.detail, view.beat_age_s) == (
        False,
        "sentinel:last is silent",
        pytest.approx(2 * HOUR_S, abs=9),
    )
    assert beats.view("worker").detail == "never started"


def test_the_lease_of_a_leader_that_died_before_the_clock_was_set_back_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = Leadership("a", 1), Leadership("b", 1)
    a.turn()
    assert a.term() == 1
    ProcessBeat.objects.filter(name="lease:sentinel").update(beat_at=after(HOUR_S))
    assert beats.ahead_s("sentinel") == pytest.approx(HOUR_S, abs=15.0)
    moments = iter([50.0, 52.0, 50.0 + LEASE_S + 0.1])
    monkeypatch.setattr(leadership, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    terms = []
    for _ in range(3):
        b.turn()
        terms.append(b.term())
    assert terms == [None, None, 2]


def test_one_that_is_kept_meanwhile_is_not() -> None:
    a, b = Leadership("a", 1), Leadership("b", 1)
    a.turn()
    ProcessBeat.objects.filter(name="lease:sentinel").update(beat_at=after(HOUR_S))
    b.turn()
    assert b.term() is None
    a._renewed_at = -1e9
    a.turn()
    assert a.term() == 1
    assert ProcessBeat.objects.get(name="lease:sentinel").beat_at <= after(1.0)
    b.turn()
    assert b.term() is None
