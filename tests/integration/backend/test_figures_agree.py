"""What Prometheus, the page and the rows say of one thing is one figure, whatever clocks are set to."""

import time

import pytest

from controlplane.policy.signals.base import Finding
from controlplane.policy.signals.devices import XidError
from controlplane.policy.signals.nodes import NodeSilent, SignatureRejected
from controlplane.policy.signals.ranks import RankOverdue
from controlplane.recovery import gauges, phases, signals, sweep
from controlplane.recovery.models import Signal
from controlplane.runtime import metrics
from controlplane.runtime.clock import ago
from tests.findings import finding
from tests.integration.backend.builders import make_fleet
from tests.integration.backend.test_figures import value


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("found", "began_s"),
    [
        (finding(RankOverdue, age_s=25.0, timeout_s=20.0), 25.0),
        (finding(NodeSilent, silent_s=3.1, limit_s=3.0), 3.0),
        (finding(XidError, xid=79), 0.0),
    ],
)
def test_detection_is_counted_from_the_last_progress_as_in_the_phases(found: Finding, began_s: float) -> None:
    took = value("holdfast_detection_seconds_sum")
    row = signals.raise_signal(found, seen_at=ago(1.0))
    assert row is not None
    shown_s = (row.created_at - row.seen_at).total_seconds() + phases.began_before_s(row)
    assert value("holdfast_detection_seconds_sum") - took == pytest.approx(shown_s)
    assert shown_s == pytest.approx(began_s + 1.0, abs=0.9)


@pytest.mark.django_db
def test_what_people_are_told_of_lasts_an_hour_from_the_time_at_which_it_was_last_repeated() -> None:
    told = finding(SignatureRejected, node_id=make_fleet().nodes["n1"].id)
    row = signals.raise_signal(told, seen_at=ago(7000.0))
    assert row is not None
    assert signals.raise_signal(told, seen_at=ago(1800.0)) is None
    sweep.settle_old()
    row.refresh_from_db()
    assert row.settled_at is None, "it was repeated half an hour ago"
    Signal.objects.update(seen_at=ago(3700.0))
    sweep.settle_old()
    row.refresh_from_db()
    assert row.settled_at is not None


@pytest.mark.django_db
def test_how_old_the_figures_are_follows_no_clock_that_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead_s in (-4000.0, 4000.0):
        monkeypatch.setattr(gauges, "now_s", lambda ahead_s=ahead_s: time.time() + ahead_s)
        gauges.refresh()
        assert 0.0 <= value("holdfast_fleet_refreshed_age_seconds") < 30.0
    began_s = time.monotonic()
    monkeypatch.setattr(metrics.time, "monotonic", lambda: began_s + 90.0)
    assert value("holdfast_fleet_refreshed_age_seconds") == pytest.approx(90.0, abs=30.0)
