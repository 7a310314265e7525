"""The return of a fleet, measured small: every step lets everybody in, and says what it asked and took."""

import pytest

from benchmarks.report import Report
from benchmarks.returns import ALONE, FIRST, GOAL_MS, WELCOME, measure
from controlplane.fleet.models import Node

pytestmark = pytest.mark.django_db


def test_a_small_fleet_comes_back_twice_in_each_turn_and_is_closed_between() -> None:
    report = Report(goal_id="returns", title="small")
    nodes, turns = 6, 2
    assert measure(nodes, turns, report) > 0.0
    steps = [f"{step}, {why}" for why in ("unnoticed", "after a close", FIRST) for step in WELCOME]
    size = f"{nodes:6d} nodes"
    found = {row.name: len(row.values) for row in report.rows}
    assert {name: number for name, number in found.items() if "one by one" not in name} == {
        f"{size}: {step}": turns * (1 + (step == "close")) for step in [*steps, "close"]
    }
    assert found[f"{size}: one by one: enrol"] == ALONE
    assert {found[f"{size}: one by one: {step}"] for step in ("admit", "open", "close")} == {nodes}
    for step in [*steps, "close"]:
        asked = report.facts[f"{size}: statements a batch, {step}"]
        assert 1 <= int(asked.split()[0]) <= 30
    assert f"goal <= {GOAL_MS}" in report.facts[f"{size}: a hello, unnoticed, all steps"]
    assert Node.objects.count() == nodes + ALONE
    assert not Node.objects.filter(connected=True).exists(), "each was closed, also those that came one by one"
