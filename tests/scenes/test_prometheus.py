"""Debian's Prometheus with the shipped configuration beside a real installation: a rank and then a
sentinel are killed, series move, alerts fire and resolve, and no panel is empty."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.demo.driver import Driver
from controlplane.demo.ports import free_port
from scripts.prometheus_drill import drill
from tests.scenes.conftest import Ring
from tests.scenes.helpers import cancel, pids, scene_job, submit_and_train, wait_resolved

pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian's package prometheus)"
    ),
]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
WAIT_S = 90.0
SENTINEL_DOWN_S = 20.0
AGENT_LINE = re.compile(r"metrics exported.*?(127\.0\.0\.1:\d+)")


class Prometheus:
    """A running one; answers of its HTTP API."""

    def __init__(self, base: str) -> None:
        self.base = base

    def ask(self, path: str, **query: str) -> Any:
        """`data` of an answer; None while it does not answer."""
        url = f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of each series that an expression gives now."""
        found = self.ask("query", query=expression)
        return [(series["metric"], float(series["value"][1])) for series in found["result"]] if found else []

    def number(self, expression: str) -> float:
        """Of an expression with one series; 0 where there is none."""
        return sum(value for _, value in self.values(expression))

    def firing(self) -> dict[str, dict[str, str]]:
        """Alerts that fire now, by name: labels of one of each."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}


def eventually(driver: Driver, what: str, check: Callable[[], Any]) -> Any:
    return driver.wait(what, check, timeout_s=WAIT_S)


def targets(ring: Ring) -> dict[str, list[str]]:
    """Where health says that processes serve their figures, the web process, and what agents logged."""
    told = eventually(
        ring.driver,
        "every process tells its address",
        lambda: (found := ring.driver.get("/overview")["health"]["metrics"]) and all(found.values()) and found,
    )
    logs = sorted((ring.installation.config.logs).glob("agent-*.log"))
    agents = [AGENT_LINE.findall(log.read_text(errors="replace"))[-1] for log in logs]
    assert len(agents) == 5
    web = ring.installation.addresses.web.removeprefix("http://")
    return {"holdfast-web": [web], "holdfast-agent": agents} | {f"holdfast-{role}": at for role, at in told.items()}


@pytest.fixture(scope="module")
def prometheus(ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It scrapes each second, and alerts have no patience; all else is as shipped."""
    out = tmp_path_factory.mktemp("prometheus")
    config = drill(out, targets(ring), interval_s=1, for_s=0)
    listen = f"127.0.0.1:{free_port('127.0.0.1')}"
    with (out / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={out / 'data'}",
                f"--web.listen-address={listen}",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    made = Prometheus(f"http://{listen}")
    try:
        eventually(ring.driver, "it scrapes all ten processes", lambda: made.number("sum(up)") == 10)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=30)


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


def test_a_killed_sentinel_fires_and_resolves(ring: Ring, prometheus: Prometheus, job_id: str) -> None:
    assert ring.installation.supervisor.kill("sentinel", down_s=SENTINEL_DOWN_S)

    fired = eventually(
        ring.driver,
        "process and leader are missed",
        lambda: (now := prometheus.firing()) and {"HoldfastProcessDown", "HoldfastNoLeader"} <= now.keys() and now,
    )
    assert fired["HoldfastProcessDown"]["job"] == "holdfast-sentinel"
    eventually(
        ring.driver,
        "both resolve once it is back",
        lambda: not {"HoldfastProcessDown", "HoldfastNoLeader"} & prometheus.firing().keys(),
    )
