"""Debian's Prometheus with the shipped configuration beside a real installation: a rank is killed, series move, its
alert fires and resolves, and no panel is empty. Every other alert: `tests/alerts`."""

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from controlplane.demo.driver import Driver
from tests.prometheus import DEPLOY, NEEDED, WAIT_S, Prometheus, beside
from tests.scenes.conftest import Ring
from tests.scenes.helpers import cancel, pids, scene_job, submit_and_train, wait_resolved

pytestmark = [pytest.mark.scenes, pytest.mark.timeout(420), NEEDED]


def eventually(driver: Driver, what: str, check: Callable[[], Any]) -> Any:
    return driver.wait(what, check, timeout_s=WAIT_S)


@pytest.fixture(scope="module")
def prometheus(ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It scrapes each second, and alerts have no patience; all else is as shipped."""
    with beside(ring.installation, ring.driver, tmp_path_factory.mktemp("prometheus")) as made:
        assert made.number("count(up)") == 10
        yield made


@pytest.fixture(scope="module")
def job_id(ring: Ring, prometheus: Prometheus) -> Iterator[str]:
    """Submitted once every counter was scraped at zero."""
    spec = scene_job(name="watched", interval_steps=10)
    found = submit_and_train(ring.driver, spec, until_step=15)
    yield found
    cancel(ring.driver, found)


def test_a_killed_rank_moves_the_series_and_the_alert_fires_until_it_has_recovered(
    ring: Ring, prometheus: Prometheus, job_id: str
) -> None:
    decided = "sum(holdfast_decisions_total)"
    resolved = 'sum(holdfast_recovery_seconds_count{phase="detected"})'
    before = prometheus.number(decided)
    assert before > 0, "the placement of the job was a decision of worker or sentinel"
    assert prometheus.number(resolved) == 0
    assert "HoldfastIncidentOpen" not in prometheus.firing()

    # Nothing new is placed meanwhile: else it has recovered before two scrapes.
    for node in ring.driver.items("/nodes"):
        ring.driver.post(f"/nodes/{node['id']}:cordon", {"reason": "the recovery is to be seen"})
    os.kill(pids(ring.driver, job_id)[1, 0], signal.SIGKILL)

    eventually(ring.driver, "HoldfastIncidentOpen fires", lambda: "HoldfastIncidentOpen" in prometheus.firing())
    for node in ring.driver.items("/nodes"):
        ring.driver.post(f"/nodes/{node['id']}:uncordon", {"reason": "it was seen"})
    eventually(ring.driver, "full strength", lambda: ring.driver.get(f"/jobs/{job_id}")["replicas_active"] == 3)
    wait_resolved(ring.driver, job_id)
    eventually(ring.driver, "it resolves", lambda: "HoldfastIncidentOpen" not in prometheus.firing())
    eventually(ring.driver, "the recovery is counted", lambda: prometheus.number(resolved) >= 1)
    assert prometheus.number(decided) > before
    assert prometheus.number("sum(holdfast_detection_seconds_count)") >= 1
    assert prometheus.number("sum(holdfast_decision_latency_seconds_count)") >= 1
    assert prometheus.number("sum(holdfast_leader)") == 1
    assert prometheus.number('sum(holdfast_tasks_sent_total{job="holdfast-beat"})') > 0


def test_the_worker_counts_what_its_processes_decide(ring: Ring, prometheus: Prometheus, job_id: str) -> None:
    by_job = {labels["job"]: value for labels, value in prometheus.values("sum by (job) (holdfast_decisions_total)")}
    decisions = len(ring.driver.items(f"/jobs/{job_id}/decisions?limit=500"))
    assert by_job["holdfast-worker"] > 0
    assert sum(by_job.values()) >= decisions > 0


def panels() -> list[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana" / "fleet.json").read_text(encoding="ascii"))
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_no_panel_and_no_recorded_figure_is_empty_or_no_number(ring: Ring, prometheus: Prometheus, job_id: str) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text(encoding="ascii"))
    recorded = [(rule["record"], rule["record"]) for group in rules["groups"] for rule in group["rules"]]
    for title, expression in panels() + recorded:
        found = eventually(ring.driver, f"{title}: {expression}", lambda e=expression: prometheus.values(e))
        assert not any(math.isnan(value) for _, value in found), title
