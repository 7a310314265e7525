"""Rules, alerts and dashboards speak of metrics that the server exports."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from controlplane.runtime import metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULE_FILES = ("rules.yml", "alerts.yml")
_METRIC = re.compile(r"\bholdfast_[a-z_]+\b")
_RECORDED = re.compile(r"\bfleet:[a-z_]+:\w+\b")


def exported() -> set[str]:
    """Series names of every metric in controlplane/runtime/metrics.py."""
    names: set[str] = set()
    for metric in vars(metrics).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        name = metric._name
        if isinstance(metric, Counter):
            names.add(f"{name}_total")
        elif isinstance(metric, Histogram):
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        else:
            names.add(name)
    return names


def labels() -> set[str]:
    found = {label for m in vars(metrics).values() if isinstance(m, MetricWrapperBase) for label in m._labelnames}
    return found | {"le", "instance", "job"}


def rules(file: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / file).read_text(encoding="ascii"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [
        panel
        for path in sorted((DEPLOY / "grafana").glob("*.json"))
        for panel in json.loads(path.read_text(encoding="ascii"))["panels"]
    ]


def expressions() -> dict[str, str]:
    found = {rule.get("record") or rule["alert"]: rule["expr"] for file in RULE_FILES for rule in rules(file)}
    found |= {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel["targets"]
    }
    return found


@pytest.mark.parametrize("name", sorted(expressions()))
def test_an_expression_uses_what_is_exported_or_recorded(name: str) -> None:
    expression = expressions()[name]
    recorded = {rule["record"] for rule in rules("rules.yml")}
    assert set(_RECORDED.findall(expression)) <= recorded
    assert set(_METRIC.findall(_RECORDED.sub("", expression))) <= exported()
    for clause in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in clause.split(",")} <= labels()
    assert expression.count("(") == expression.count(")")


def test_every_alert_says_what_to_do() -> None:
    for alert in rules("alerts.yml"):
        assert alert["labels"]["severity"] in ("warning", "critical"), alert["alert"]
        assert alert["annotations"]["summary"], alert["alert"]
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^##+ (.+)$", (DEPLOY.parent / page).read_text(encoding="ascii"), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, alert["alert"]


def test_every_recorded_figure_is_used() -> None:
    used = " ".join(expressions().values())
    assert [rule["record"] for rule in rules("rules.yml") if rule["record"] not in used] == []


def test_the_scraper_asks_every_web_process() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="ascii"))
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="ascii"))
    targets = [
        target for job in scrape["scrape_configs"] for entry in job["static_configs"] for target in entry["targets"]
    ]
    assert targets == [f"{name}:8000" for name in compose["services"] if name.startswith("web-")]
    for file in scrape["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places))
