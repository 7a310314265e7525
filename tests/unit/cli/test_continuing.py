"""Differences of a replay, continued on the reader's machine: what is summed, what is said, and where it stops."""

from typing import Any

import pytest

from controlplane.cli.commands import continuing
from controlplane.policy.document import DEFAULT, config_of

SHORT = config_of({"lease_s": 3})
CASE: dict[str, Any] = {
    "rule": "leave_out", "choice": "leave_out", "then_rule": "leave_out", "then_choice": "leave_out",
    "failed": {"1": "silent"}, "silent_s": 2.5, "replicas": 2, "ranks": 1, "places": 1, "spares_kept": False,
    "needed": 1, "share": 1, "step_s": 1.0, "start_s": 30.0, "catch_up_s": 10.0, "measured": True, "gap_steps": 5,
    "interval_steps": 10, "steps_left": 10_000, "budget_spent": False, "fleet_devices": 100, "acts": 0,
}  # fmt: skip


def difference(number: int, *, case: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    side = {"rule": "leave_out", "choice": "leave_out", "mode": "enforce", "sentence": "", "cost_gpu_s": None}
    known = {
        "decision_id": f"dec_{number}", "incident_id": None, "before": side, "after": side, "case": case,
        "no_case": "" if case else "steps shorter than 0.1 s", "own": DEFAULT.version, "other": SHORT.version,
    }  # fmt: skip
    return known | fields


def whole(*differences: dict[str, Any]) -> dict[str, Any]:
    policies = {config.version: config.content for config in (DEFAULT, SHORT)}
    return {"differences": list(differences), "policies": policies}


def found(change_gpu_s: float, spread_gpu_s: float | None = 3.0, missed: int = 0) -> dict[str, Any]:
    return {"change_gpu_s": change_gpu_s, "spread_gpu_s": spread_gpu_s, "seeds": 2, "missed": missed}


def test_a_case_is_played_by_both_policies_and_what_is_none_keeps_its_reason() -> None:
    made = continuing.continued(whole(difference(1, case=CASE), difference(2)), seeds=2, within_s=300.0)
    first, second = made["differences"]
    assert len(first["continued"]["own_gpu_s"]) == 2 and first["no_case"] == ""
    assert (second["continued"], second["no_case"]) == (None, "steps shorter than 0.1 s")
    assert made["continued"]["not_continued"] == {"steps shorter than 0.1 s": 1}
    assert made["continued"]["change_gpu_s"] == first["continued"]["change_gpu_s"]
    assert "policies" not in made


@pytest.mark.parametrize(("seeds", "why"), [(0, continuing.NOT_ASKED), (2, continuing.NO_TIME)])
def test_who_asks_for_none_or_has_no_time_gets_no_figure(seeds: int, why: str) -> None:
    made = continuing.continued(whole(difference(1, case=CASE)), seeds=seeds, within_s=0.0)
    assert (made["differences"][0]["continued"], made["differences"][0]["no_case"]) == (None, why)
    assert made["continued"]["change_gpu_s"] is None
    assert continuing.words(made) == [f"Cannot be continued: 1, {why}."]


def test_of_an_incident_the_first_that_is_continued_is_summed() -> None:
    rows = [
        difference(1, incident_id="inc_1", continued=None),
        difference(2, incident_id="inc_1", continued=found(10.0)),
        difference(3, incident_id="inc_1", continued=found(500.0)),
        difference(4, continued=found(-2.0, 4.0)),
    ]
    summed = continuing.summed(rows)
    assert (summed["decisions"], summed["incidents"]) == (3, 2)
    assert (summed["change_gpu_s"], summed["spread_gpu_s"]) == (8.0, 5.0)
    assert continuing.words({"continued": summed})[0] == (
        "Continued in the simulator from 2 recorded states, the candidate would have wasted 8 GPU-seconds more"
        " (+/- 5 by what nobody can know)."
    )


def test_a_line_says_the_change_its_spread_and_what_was_missed() -> None:
    assert continuing.line(difference(1, continued=found(-7.0, None, 2))) == (
        "Continued: -7 GPU-seconds over 2 seeds; 2 more came to another state."
    )
    assert continuing.line(difference(1, continued=found(7.0))) == "Continued: +7 +/- 3 GPU-seconds over 2 seeds."
    assert continuing.line(difference(1, continued=None)) == "Cannot be continued: steps shorter than 0.1 s."
