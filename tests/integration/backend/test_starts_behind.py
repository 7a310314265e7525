"""The eviction is committed first, and the start in the slot that it empties behind it (docs/adr/0040)."""

from collections.abc import Callable

import pytest
from django.db import transaction

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Replica
from controlplane.jobs.services import cancel_job
from controlplane.recovery import apply, commit, reconcile
from controlplane.recovery.apply import Behind, start_behind
from controlplane.recovery.ledger import job_budget
from controlplane.recovery.models import Decision, Incident, Restart, Signal, ViewRow
from controlplane.recovery.reconcile import is_due, reconcile_job
from controlplane.runtime.models import Event
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job
from tests.integration.backend.test_reconcile import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


class Killed(BaseException):
    """The process ends: nothing of it is caught."""


def evicting() -> tuple[Job, int]:
    """A job of which a rank was killed, and the index of its replica; there are devices for its successor."""
    fleet = make_fleet(4)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    kill_rank(fleet, row)
    return job, row.replica.index


def lives(job: Job, index: int) -> list[tuple[int, str]]:
    """(incarnation, state) of the slot's, oldest first."""
    rows = Replica.objects.filter(attempt__job=job, index=index).order_by("incarnation")
    return list(rows.values_list("incarnation", "state"))


def at(monkeypatch: pytest.MonkeyPatch, deed: Callable[[Behind], None]) -> None:
    """Does this once between the two transactions."""
    done: list[int] = []

    def between(behind: Behind) -> int:
        if not done:
            done.append(1)
            assert not transaction.get_connection().in_atomic_block, "what decides is committed"
            deed(behind)
        return start_behind(behind)

    monkeypatch.setattr(reconcile, "start_behind", between)


def kill(_: Behind) -> None:
    raise Killed


def starts(job: Job, incarnation: int) -> int:
    rows = Command.objects.filter(job=job, kind="start_ranks", body__launch__incarnation=incarnation)
    return rows.values("node_id").distinct().count()


def test_view_stop_decision_and_incident_are_committed_before_anything_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, index = evicting()
    seen: dict[str, object] = {}

    def look(behind: Behind) -> None:
        epoch = Job.objects.get(pk=job.pk).epoch
        seen["view"] = ViewRow.objects.filter(job=job, epoch=epoch).exists()
        seen["sent"] = set(Command.objects.filter(decision_id=behind.row.id).values_list("kind", flat=True))
        seen["decided"] = Decision.objects.get(pk=behind.row.pk).choice
        seen["incident"] = Incident.objects.filter(job=job).count()
        seen["open"] = Signal.objects.filter(job=job, settled_at=None).count()
        seen["lives"] = lives(job, index)
        seen["due"] = is_due(job.id)

    at(monkeypatch, look)
    reconcile_job(job.id, sure=True)
    assert seen == {
        "view": True,
        "sent": {"deliver_view", "stop_ranks"},
        "decided": "evict_and_replace",
        "incident": 1,
        "open": 0,
        "lives": [(1, "evicted")],
        "due": True,
    }
    assert [incarnation for incarnation, _ in lives(job, index)] == [1, 2]
    made = Decision.objects.get(job=job, choice="evict_and_replace")
    assert set(Command.objects.filter(decision_id=made.id).values_list("kind", flat=True)) >= {"start_ranks"}
    assert not Decision.objects.filter(job=job, rule="replace").exists()
    told = list(Event.objects.filter(kind__in=("decision.made", "replica.started")).order_by("seq"))
    assert [event.kind for event in told[-2:]] == ["decision.made", "replica.started"]


def test_what_was_killed_before_the_start_leaves_an_empty_slot_that_the_next_pass_fills_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, index = evicting()
    at(monkeypatch, kill)
    with pytest.raises(Killed):
        reconcile_job(job.id, sure=True)
    assert lives(job, index) == [(1, "evicted")] and is_due(job.id)
    charged = Restart.objects.filter(job=job, charged=True)
    assert not charged.exists(), "no rung is charged that was not taken"
    for _ in range(3):
        reconcile_job(job.id)
    assert [incarnation for incarnation, _ in lives(job, index)] == [1, 2]
    assert Decision.objects.get(job=job, rule="replace").choice == "start"
    assert (job_budget(job)["restarts_total"], charged.get().rung) in ((1, "replica"), (1, "rank"))


@pytest.mark.parametrize("statement", ["create", "commit", "write"])
def test_a_kill_within_the_start_undoes_all_of_it_and_nothing_of_the_eviction(
    monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    job, index = evicting()

    def killed(*args: object, **named: object) -> None:
        raise Killed

    def from_now_on(_: Behind) -> None:
        where = {"create": apply.holding, "commit": commit.dispatch, "write": apply.ledger}[statement]
        monkeypatch.setattr(where, {"commit": "enqueue_each"}.get(statement, statement), killed)

    at(monkeypatch, from_now_on)
    with pytest.raises(Killed):
        reconcile_job(job.id, sure=True)
    monkeypatch.undo()
    assert lives(job, index) == [(1, "evicted")] and starts(job, 2) == 0
    reconcile_job(job.id)
    assert [incarnation for incarnation, _ in lives(job, index)] == [1, 2]


def test_a_second_pass_that_comes_in_between_starts_it_and_nothing_is_started_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, index = evicting()
    at(monkeypatch, lambda _: assert_none(in_threads(lambda: reconcile_job(job.id))))
    reconcile_job(job.id, sure=True)
    reconcile_job(job.id)
    assert [incarnation for incarnation, _ in lives(job, index)] == [1, 2]
    assert Decision.objects.filter(job=job, rule="replace", choice="start").count() == 1
    assert Restart.objects.filter(job=job, replica=index).count() == 1


def live_attempt(job: Job) -> bool:
    return job.attempts.filter(state__in=("starting", "running")).exists()


def assert_none(errors: list[BaseException]) -> None:
    assert errors == []


def test_a_newer_view_in_between_is_respected_and_the_start_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    job, index = evicting()
    at(monkeypatch, lambda _: Job.objects.filter(pk=job.pk).update(epoch=Job.objects.get(pk=job.pk).epoch + 1) and None)
    started: list[int] = []
    between = reconcile.start_behind
    monkeypatch.setattr(reconcile, "start_behind", lambda behind: started.append(between(behind)) or started[-1])
    reconcile_job(job.id, sure=True)
    assert started == [0]
    for _ in range(2):
        reconcile_job(job.id)
    assert [incarnation for incarnation, _ in lives(job, index)] == [1, 2]


def test_a_job_that_is_cancelled_in_between_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job, index = evicting()

    def cancel(_: Behind) -> None:
        cancel_job(job.id, reason="enough", actor="ada")
        assert_none(in_threads(lambda: reconcile_job(job.id)))

    at(monkeypatch, cancel)
    reconcile_job(job.id, sure=True)
    assert Job.objects.get(pk=job.pk).state in ("cancelling", "cancelled") or not live_attempt(job)
    assert lives(job, index) == [(1, "evicted")] and starts(job, 2) == 0


def test_a_node_that_leaves_service_in_between_costs_the_start_and_not_the_eviction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, index = evicting()

    def drain(behind: Behind) -> None:
        wanted = {place.node_id for start in apply.starts_behind(behind.decision) for place in start.placements}
        Node.objects.filter(pk__in=wanted).update(state="draining")

    at(monkeypatch, drain)
    reconcile_job(job.id, sure=True)
    made = Decision.objects.get(job=job, choice="evict_and_replace")
    sent = set(Command.objects.filter(decision_id=made.id).values_list("kind", flat=True))
    assert sent == {"deliver_view", "stop_ranks"}
    assert lives(job, index)[0] == (1, "evicted")
    assert not Replica.objects.filter(attempt__job=job, ranks__node__state="draining", incarnation=2).exists()
