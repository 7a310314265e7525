"""A row of a kind that this release does not know is told, once, and stops nothing."""

import pytest

from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Signal
from controlplane.recovery.phases import began_before_s
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.sweep import report_unknown, sweep
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import make_fleet, run_job

TOMORROW = "fan_stopped"


@pytest.mark.django_db
def test_a_kind_of_a_newer_release_is_told_once_and_no_rule_sees_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = Signal.objects.create(
        id="sig_new", kind=TOMORROW, key="fan_stopped:1", job=job, node=fleet.nodes["n1"], evidence={"fan": 3},
        seen_at=now(),
    )  # fmt: skip
    for _ in range(2):
        sweep()
        reconcile_job(job.id)
    told = Event.objects.filter(kind=f"signal.{TOMORROW}").exclude(sentence="")
    assert [event.sentence for event in told] == [
        f"This release knows no finding of the kind {TOMORROW}: nothing is decided about it. Upgrade."
    ]
    row.refresh_from_db()
    assert row.evidence == {"fan": 3, "not_known_here": True}
    assert row.settled_at is None, "who knows it may still decide"
    assert TOMORROW not in {signal.kind for signal in load_snapshot(job).signals}
    assert began_before_s(row) == 0.0


@pytest.mark.django_db
def test_what_is_known_is_not_told_so() -> None:
    fleet = make_fleet()
    Signal.objects.create(id="sig_1", kind="xid", key="x", node=fleet.nodes["n1"], value=48.0, seen_at=now())
    report_unknown()
    assert not Signal.objects.filter(evidence__has_key="not_known_here").exists()
