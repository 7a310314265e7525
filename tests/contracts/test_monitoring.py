"""Rules, alerts and dashboards speak of metrics that the server exports."""

import ast
import json
import re
import shutil
import subprocess
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from agents.core.state import State
from agents.device_series import DeviceSeries, Series
from agents.exporter import DEFAULT_BIND, parse_bind, readings
from agents.probes.simulated import SimulatedProbe
from controlplane.policy.signals import KINDS, TITLES
from controlplane.protocol.samples import XidEvent
from controlplane.runtime import metrics
from controlplane.runtime.exporter import PORTS
from scripts.prometheus_drill import drill
from trainer.store import exporter as store_exporter
from trainer.store.server import StoreServer

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TIMEOUT_S = 60.0
RULE_FILES = ("rules.yml", "alerts.yml")
_METRIC = re.compile(r"\bholdfast_[a-z_]+\b")
_RECORDED = re.compile(r"\bfleet:[a-z_]+:\w+\b")


def declared() -> dict[str, MetricWrapperBase]:
    """What controlplane/runtime/metrics.py declares, by the name in the code."""
    return {name: metric for name, metric in vars(metrics).items() if isinstance(metric, MetricWrapperBase)}


def series(metric: MetricWrapperBase) -> set[str]:
    """Names under which one metric is scraped."""
    name = metric._name
    if isinstance(metric, Counter):
        return {f"{name}_total"}
    return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if isinstance(metric, Histogram) else {name}


def exported() -> set[str]:
    """Series names of the server's metrics, the agent's and the store's."""
    state = State(started_s=0.0, boot_id="b", journal_id="j")
    own = {name for name, _, _ in readings(state, 0.0)}.union(*map(series, declared().values()))
    own |= {name for name, _, _ in store_exporter.readings(StoreServer(b"k" * 32))}
    own.add(f"{store_exporter.REFUSED}_total")
    return own | {f"{each.name}_total" if each.counts else each.name for each in of_a_device()}


def of_a_device() -> list[Series]:
    """What an agent exports of one throttled device that has met an XID."""
    probe, found = SimulatedProbe(count=1, node_name="n1"), DeviceSeries()
    probe.inject(0, "throttle", 0.0)
    for now_s in (0.0, 1.0):
        found.sampled(now_s, probe.sample(now_s, frozenset({0})), probe.devices())
    found.xid(XidEvent(index=0, xid=79))
    return list(found.read(1.0))


def labels() -> set[str]:
    found = {label for metric in declared().values() for label in metric._labelnames}
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


def headings(page: str) -> set[str]:
    """Anchors of a page's headings."""
    text = (DEPLOY.parent / page).read_text(encoding="ascii")
    return {heading.lower().replace(" ", "-") for heading in re.findall(r"^##+ (.+)$", text, re.MULTILINE)}


def test_every_alert_has_its_runbook_and_no_runbook_is_of_an_alert_that_is_gone() -> None:
    anchors = set()
    for alert in rules("alerts.yml"):
        assert alert["labels"]["severity"] in ("warning", "critical"), alert["alert"]
        assert alert["annotations"]["summary"], alert["alert"]
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert (page, anchor) == ("docs/runbooks.md", alert["alert"].lower())
        anchors.add(anchor)
    assert {heading for heading in headings("docs/runbooks.md") if heading.startswith("holdfast")} == anchors


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules("alerts.yml")])
def test_a_runbook_says_what_it_means_where_to_look_what_to_do_and_what_is_done(alert: str) -> None:
    text = (DEPLOY.parent / "docs" / "runbooks.md").read_text(encoding="ascii")
    part = re.split(r"^##? ", text.split(f"## {alert}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    assert re.findall(r"^\*\*(.+?)\*\*:", part, re.MULTILINE) == ["Means", "Look at", "Do", "By itself"]


def constants(argument: ast.expr, path: Path) -> set[str]:
    """The words that an argument may be: written there, or a constant of the module, or of one that it imports."""
    words = {
        leaf.value for leaf in ast.walk(argument) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    }
    module = import_module(".".join(path.relative_to(DEPLOY.parent).with_suffix("").parts))
    for leaf in ast.walk(argument):
        if isinstance(leaf, ast.Name | ast.Attribute):
            value = reduce(lambda at, name: getattr(at, name, None), ast.unparse(leaf).split("."), module)
            words |= {value} if isinstance(value, str) else set()
    return words


def test_every_kind_of_finding_has_its_runbook() -> None:
    assert set(KINDS) - headings("docs/runbooks.md") == set()


def kinds_of_failures() -> set[str]:
    """The `kind` of every `Failure` that the policy makes: what incidents are named after."""
    found: set[str] = set()
    for path in (DEPLOY.parent / "controlplane" / "policy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="ascii"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Failure":
                (kind,) = [word.value for word in node.keywords if word.arg == "kind"]
                # Of a choice between two, what is chosen and not what it is chosen by.
                choices = [kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind]
                found |= set().union(*(constants(choice, path) for choice in choices))
    return found


def test_every_kind_of_failure_that_names_an_incident_has_its_runbook() -> None:
    kinds = kinds_of_failures()
    assert {"hang", "unfit_node", "ordered", "behind", "xid_fatal", "device_lost"} <= kinds
    assert kinds - headings("docs/runbooks.md") == set()
    titled = set(re.findall(r'case "(\w+)":', (DEPLOY.parent / "controlplane/policy/titles.py").read_text()))
    assert titled and titled | set(TITLES) <= kinds


def test_every_metric_is_set_by_something() -> None:
    code = "\n".join(
        path.read_text(encoding="ascii")
        for path in (DEPLOY.parent / "controlplane").rglob("*.py")
        if path.name != "metrics.py"
    )
    touched = set(re.findall(r"\bmetrics\.([A-Z_]+)\.(?:labels|inc|set|observe)\(", code))
    handed_on = set(re.findall(r"\breplace\(metrics\.([A-Z_]+),", code))
    kept = {"LOOP_LAG"} if "metrics.WorstLag(" in code else set()
    kept |= {"REFRESHED_AGE"} if "metrics.SINCE_REFRESH.note(" in code else set()
    assert declared().keys() - touched - handed_on - kept == set()


def test_every_figure_that_a_page_names_exists() -> None:
    pages = [DEPLOY.parent / "docs" / name for name in ("monitoring.md", "runbooks.md", "operations.md", "backup.md")]
    named = {name for page in pages for name in re.findall(r"`(holdfast_[a-z_]+)`", page.read_text(encoding="ascii"))}
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    assert named - bases == set()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_itself_accepts_the_configuration_and_every_rule() -> None:
    files = [str(DEPLOY / "prometheus" / name) for name in RULE_FILES]
    for command in (["check", "rules", *files], ["check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_drill_changes_targets_and_patience_and_nothing_else(tmp_path: Path) -> None:
    targets = {"holdfast-web": ["127.0.0.1:1"], "holdfast-agent": ["127.0.0.1:2", "127.0.0.1:3"]}
    written = drill(tmp_path, targets, interval_s=1, for_s=0)
    config = yaml.safe_load(written.read_text(encoding="ascii"))
    assert {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]} == targets
    for file in RULE_FILES:
        made = yaml.safe_load((tmp_path / file).read_text(encoding="ascii"))
        changed = [{**rule, "for": "0s"} if "alert" in rule else rule for rule in rules(file)]
        assert [rule for group in made["groups"] for rule in group["rules"]] == changed


def test_every_recorded_figure_is_used() -> None:
    used = " ".join(expressions().values())
    assert [rule["record"] for rule in rules("rules.yml") if rule["record"] not in used] == []


def test_the_scraper_asks_every_process_at_its_port() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="ascii"))
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="ascii"))
    targets = {
        target for job in scrape["scrape_configs"] for entry in job["static_configs"] for target in entry["targets"]
    }
    own = (("agent", DEFAULT_BIND), ("store", store_exporter.DEFAULT_BIND))
    ports = {"web": 8000, **PORTS} | {role: parse_bind(bind)[1] for role, bind in own}  # type: ignore[index]
    assert targets == {
        f"{name}:{ports[role]}" for name in compose["services"] if (role := name.partition("-")[0]) in ports
    }
    for file in scrape["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()


def test_an_alert_names_jobs_that_are_scraped() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="ascii"))
    known = {job["job_name"] for job in scrape["scrape_configs"]}
    for name, expression in expressions().items():
        for pattern in re.findall(r'job=~"([^"]+)"', expression):
            assert any(re.fullmatch(pattern, job) for job in known), name


def test_a_limit_on_a_quantile_is_the_bound_of_a_bucket() -> None:
    """Otherwise decisions of 1.1 s, of which the next bound is 2.5, are "2.49 s (p99)" and over a limit of 2."""
    quantiles = {
        rule["record"]: next(m for m in declared().values() if f"{m._name}_bucket" in rule["expr"])
        for rule in rules("rules.yml")
        if "histogram_quantile" in rule["expr"]
    }
    limited = re.findall(r"(fleet:\w+:\w+) > (\S+)", " ".join(rule["expr"] for rule in rules("alerts.yml")))
    limits = [(name, float(limit)) for name, limit in limited if name in quantiles]
    assert limits
    for name, limit in limits:
        assert limit in quantiles[name]._upper_bounds, name


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places))
