"""Mean times of failures on API and in Prometheus, held against a plain count of what was put there."""

from datetime import timedelta

import pytest

from controlplane.jobs.numbers import numbers_of
from controlplane.protocol.states import IncidentState
from controlplane.recovery import ledger_gauges, ledger_pass
from controlplane.recovery.models import Incident
from controlplane.runtime import metrics
from controlplane.runtime.clock import ago, iso
from controlplane.runtime.ids import new_id
from tests.integration.backend.test_gpu_ledger import Past, read

pytestmark = pytest.mark.django_db


def incident(past: Past, *phases: tuple[str, float], after_s: float = 10.0, first: str = "fault") -> Incident:
    """One that began so long after its job, with the seconds of its phases since then."""
    at = past.began + timedelta(seconds=after_s)
    rows = [{"name": name, "at": iso(at), "since_fault_s": s} for name, s in ((first, 0.0), *phases)]
    return Incident.objects.create(
        id=new_id("inc"), job=past.job, title="It fails.", state=IncidentState.RESOLVED, opened_at=at, phases=rows,
        resolved_at=at,
    )  # fmt: skip


@pytest.fixture
def past() -> Past:
    """A job that trained for 100 s, stood still for 40, and trained for 60."""
    found = Past(age_s=3000.0)
    found.steps(100, 1.0)
    found.stall(40.0)
    found.steps(60, 1.0)
    found.end()
    ledger_pass.build()
    return found


def test_the_means_are_those_of_the_phases_of_each_incident(past: Past) -> None:
    incident(past, ("detected", 2.0), ("decided", 2.5), ("full_strength", 30.0))
    incident(past, ("detected", 4.0), ("smaller_strength", 50.0), after_s=60.0)
    incident(past, after_s=150.0)
    found = read(past)["failures"]
    assert (found["failures"], found["detected"], found["recovered"]) == (3, 2, 2)
    assert (found["mttd_s"], found["mttr_s"]) == (3.0, 40.0)
    wall = numbers_of(past.end()).wall
    assert wall is not None
    trained_s = wall.productive_s + wall.degraded_s
    assert found["up_s"] == pytest.approx(trained_s, rel=1e-6), "the effective time has the same seconds"
    assert found["up_s"] == pytest.approx(160.0, abs=3.0) and found["mttf_s"] == pytest.approx(found["up_s"] / 3)


def test_what_a_person_ordered_and_what_lies_outside_is_no_failure_and_nothing_is_not_observed(past: Past) -> None:
    incident(past, ("detected", 2.0), first="ordered")
    incident(past, ("detected", 2.0), after_s=-100.0)
    incident(past, ("detected", 2.0), after_s=4000.0)
    Incident.objects.create(id=new_id("inc"), title="Of the fleet.", opened_at=past.began, state=IncidentState.OPEN)
    found = read(past)["failures"]
    assert found["failures"] == 0 and {found[name] for name in ("mttf_s", "mttd_s", "mttr_s")} == {None}


def test_failures_are_of_the_jobs_that_are_asked_for_and_of_no_node(past: Past) -> None:
    incident(past, ("detected", 2.0))
    assert read(past, job=past.job.id)["failures"]["failures"] == 1
    assert read(past, project="nobody")["failures"]["failures"] == 0
    assert read(past, node="node_1")["failures"] is None


def test_prometheus_has_the_means_of_the_newest_hour_and_none_where_nothing_was_observed() -> None:
    past = Past(age_s=300.0)
    past.steps(100, 1.0)
    past.end()
    ledger_pass.build()
    ledger_gauges.refresh()
    assert figures() == {}
    incident(past, ("detected", 2.0), ("full_strength", 30.0))
    assert Incident.objects.filter(opened_at__gt=ago(3600.0)).count() == 1
    ledger_gauges.refresh()
    found = figures()
    assert (found["mttd"], found["mttr"]) == (2.0, 30.0) and found["mttf"] > 0.0


def figures() -> dict[str, float]:
    return {
        sample.labels["mean"]: sample.value for metric in metrics.FAILURE_MEANS.collect() for sample in metric.samples
    }
