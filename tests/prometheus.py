"""Debian's Prometheus with the shipped files beside an installation of a test; used by scenes and alerts."""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.driver import Driver
from controlplane.demo.installation import Installation
from controlplane.demo.ports import free_port
from scripts.prometheus_drill import drill

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
NEEDED = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian's package prometheus)"
)
WAIT_S = 90.0
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

    def fires(self, alert: str) -> list[dict[str, str]]:
        """The labels of each alert of that name that fires now."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return [a["labels"] for a in alerts if a["state"] == "firing" and a["labels"]["alertname"] == alert]

    def firing(self) -> dict[str, dict[str, str]]:
        """Alerts that fire now, by name: labels of one of each."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}


def targets(installation: Installation, driver: Driver) -> dict[str, list[str]]:
    """Where health says that processes serve their figures, the web process, and what agents logged."""
    told = driver.wait(
        "every process tells its address",
        lambda: (found := driver.get("/overview")["health"]["metrics"]) and all(found.values()) and found,
        timeout_s=WAIT_S,
    )
    logs = sorted(installation.config.logs.glob("agent-*.log"))
    agents = [AGENT_LINE.findall(log.read_text(errors="replace"))[-1] for log in logs]
    assert len(agents) == len(installation.config.node_names)
    web = installation.addresses.web.removeprefix("http://")
    return {"holdfast-web": [web], "holdfast-agent": agents} | {f"holdfast-{role}": at for role, at in told.items()}


@contextlib.contextmanager
def beside(installation: Installation, driver: Driver, out: Path, *, for_s: int = 0) -> Iterator[Prometheus]:
    """It scrapes all of the installation each second and alerts wait `for_s`; all else is as shipped."""
    asked = targets(installation, driver)
    config = drill(out, asked, interval_s=1, for_s=for_s)
    listen = f"127.0.0.1:{free_port('127.0.0.1')}"
    with (out / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={out / 'data'}",
                f"--web.listen-address={listen}",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    made, count = Prometheus(f"http://{listen}"), sum(map(len, asked.values()))
    try:
        driver.wait(f"it scrapes all {count}", lambda: made.number("sum(up)") == count, timeout_s=WAIT_S)
        yield made
    finally:
        process.terminate()
        process.wait(timeout=30)
