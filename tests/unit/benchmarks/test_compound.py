"""What the compound drill calls wrong: told causes, certificates, steps and figures against what was done."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.compound_faults import CLOCK_STEP_S, leave_clock_set, offset_s, set_clock
from benchmarks.compound_judge import (
    STALLED,
    Injected,
    undisturbed_step_s,
    wrong_causes,
    wrong_certificates,
    wrong_effective_time,
    wrong_steps,
)

KILLED = Injected(what="killed", at_s=100.0, replica=1, incarnation=2, rank=0)
LOST = Injected(what="node lost", at_s=100.0, node="node-3")


def finding(kind: str, **changes: Any) -> dict[str, Any]:
    about = {"replica": None, "incarnation": None, "rank": None, "node_name": "node-1", "device_index": None}
    return {"kind": kind, "value": -9.0, "evidence": {"told": True}} | about | changes


def incident(*signals: dict[str, Any], certificate: Any = None, outcome: str = "recovered") -> dict[str, Any]:
    return {
        "title": "A rank ended",
        "opened_at": "1970-01-01T00:02:00Z",
        "signals": list(signals),
        "certificate": certificate,
        "outcome": outcome,
    }


def certificate(state: str, *checks: tuple[str, bool | None, str]) -> dict[str, Any]:
    return {"state": state, "checks": [{"name": name, "ok": ok, "detail": detail} for name, ok, detail in checks]}


def test_a_kill_that_is_told_of_that_very_life_of_the_rank_is_right() -> None:
    assert wrong_causes([incident(finding("rank_exit", replica=1, incarnation=2, rank=0))], [KILLED]) == []


def test_another_life_of_the_rank_is_another_cause() -> None:
    wrong = wrong_causes([incident(finding("rank_exit", replica=1, incarnation=3, rank=0))], [KILLED])
    assert wrong[0] == "killed: 1.2/0: no incident tells of it; what is told there: nothing"
    assert "nothing of the kind was done" in wrong[1]


def test_a_kill_told_as_another_end_is_wrong() -> None:
    told = incident(finding("rank_exit", replica=1, incarnation=2, rank=0, value=71.0))
    assert wrong_causes([told], [KILLED]) == ["killed: 1.2/0: told as [71.0]"]


def test_a_kill_whose_end_nobody_saw_is_not_told_as_another() -> None:
    told = incident(finding("rank_exit", replica=1, incarnation=2, rank=0, value=0.0, evidence={"told": False}))
    assert wrong_causes([told], [KILLED]) == []


def test_one_that_its_storage_holds_is_told_as_a_hang_and_a_killed_one_is_not() -> None:
    told = incident(finding("rank_overdue", replica=1, incarnation=2, rank=0, value=9.0))
    assert wrong_causes([told], [replace(KILLED, what="killed, and held by its storage")]) == []
    assert "no incident tells of it" in wrong_causes([told], [KILLED])[0]


@pytest.mark.parametrize(("stalled_s", "wrong"), [(100.0, 0), (30.0, 1), (125.0, 1)])
def test_a_job_that_is_late_as_a_whole_is_explained_by_a_storage_that_had_stood_still(
    stalled_s: float, wrong: int
) -> None:
    late = incident() | {"title": "3 of 3 replicas are late in saving at once"}
    assert len(wrong_causes([late], [Injected(what=STALLED, at_s=stalled_s)])) == wrong


@pytest.mark.parametrize(("ago_s", "right"), [(59.0, True), (61.0, False), (-1.0, False)])
def test_automation_is_stopped_rightly_where_as_many_devices_were_hit_in_the_minute_before(
    ago_s: float, right: bool
) -> None:
    stopped = incident() | {"title": "Automation is stopped: 3 of 10 devices look bad at once"}
    done = [replace(KILLED, at_s=119.0), replace(LOST, at_s=120.0 - ago_s, devices=2)]
    told = [line for line in wrong_causes([stopped], done) if "Automation" in line]
    assert (told == []) is right


def test_a_lost_node_is_told_by_its_name() -> None:
    assert wrong_causes([incident(finding("node_silent", node_name="node-3"))], [LOST]) == []
    assert len(wrong_causes([incident(finding("node_silent", node_name="node-2"))], [LOST])) == 2


def test_an_incident_that_nothing_explains_is_wrong() -> None:
    assert wrong_causes([incident(finding("straggler", replica=0, rank=1))], []) == [
        "incident 'A rank ended' (straggler): nothing of the kind was done"
    ]
    wrong = wrong_causes([incident(finding("straggler"))], [], [("store", 100.0), ("two_kills", 130.0)])
    assert "(straggler) in store: nothing" in wrong[0]


def test_a_fault_that_no_incident_tells_of_is_shown_with_its_round_and_what_was_told_instead() -> None:
    told = incident(finding("rank_overdue", replica=1, incarnation=2, rank=1))
    wrong = wrong_causes([told], [replace(KILLED, round="store")])
    assert wrong[0].startswith("killed: 1.2/0, in store: no incident tells of it; what is told there: rank_overdue in")


def test_a_device_that_fell_off_the_bus_is_risky_for_that_and_risk_alone_does_not_tell_of_it() -> None:
    fallen = Injected(what="fell off the bus", at_s=100.0, node="node-1", device=1)
    risk = finding("device_risk", node_name="node-1", device_index=1, seen_at="1970-01-01T00:02:10Z")
    xid = finding("xid", node_name="node-1", device_index=1, seen_at="1970-01-01T00:01:41Z")
    assert wrong_causes([incident(xid), incident(risk)], [fallen]) == []
    assert "no incident tells of it; what is told there: device_risk" in wrong_causes([incident(risk)], [fallen])[0]


def test_a_certificate_is_green_or_incomplete_with_its_reason() -> None:
    green = incident(certificate=certificate("green", ("no_step_lost", True, "")))
    unknown = incident(certificate=certificate("incomplete", ("loss_matches_reference", None, "no checkpoint")))
    silent = incident(certificate=certificate("incomplete", ("loss_matches_reference", None, "")))
    red = incident(certificate=certificate("red", ("state_hashes_equal", False, "step 7")))
    late = incident(certificate=certificate("pending"))
    cut_off, none = incident(certificate=None, outcome="withdrawn"), incident(certificate=None)
    assert wrong_certificates([green, unknown, cut_off]) == []
    assert len(wrong_certificates([silent, red, late, none])) == 4


def test_an_incident_without_a_certificate_is_wrong() -> None:
    assert wrong_certificates([incident()]) == ["'A rank ended': no certificate"]


def test_a_lost_node_whose_ranks_are_told_to_have_ended_otherwise_is_wrong() -> None:
    exits = finding("rank_exit", node_name="node-3", value=71.0)
    assert wrong_causes([incident(exits)], [LOST]) == ["node lost: node-3: told as [71.0]"]


def test_steps_that_are_missing_inexact_or_unequal_are_wrong() -> None:
    def step(number: int, **changes: Any) -> dict[str, Any]:
        return {"attempt": 1, "step": number, "samples_exact": True, "hashes_equal": True} | changes

    assert wrong_steps([step(n) for n in range(5)]) == []
    assert wrong_steps([step(1), step(0), step(2)]) == [], "in whatever order they come"
    assert wrong_steps([step(0), step(2)]) == ["step 2 follows step 0"]
    assert wrong_steps([step(4), step(2, attempt=2)]) == [], "a restart trains steps again"
    assert wrong_steps([step(0, samples_exact=False), step(1, hashes_equal=False), step(2)]) == [
        "step 0: not every sample once",
        "step 1: replicas differ",
    ]


def test_the_undisturbed_step_is_of_full_strength_and_of_views_that_have_settled() -> None:
    def run(epoch: int, contributors: int, *gaps_s: float) -> list[dict[str, Any]]:
        return [{"epoch": epoch, "contributors": contributors, "gap_s": gap_s} for gap_s in gaps_s]

    rows = run(1, 3, 9.0, 9.0, 1.0, 1.2) + run(2, 2, 7.0, 7.0, 0.7) + run(3, 3, 8.0, 8.0, 1.1)
    at_s, steps = 1_700_000_000.0, []
    for number, row in enumerate(rows):
        at_s += row["gap_s"]
        at = datetime.fromtimestamp(at_s, UTC).isoformat()
        steps.append({"attempt": 1, "step": number, "at": at, "step_time_s": 5.0, **row})
    assert undisturbed_step_s(steps[::-1], replicas=3) == pytest.approx(1.1), "from commit to commit, not as told"
    assert undisturbed_step_s(steps, replicas=3, within=[(0, 3), (7, 10)]) == pytest.approx(1.05), "in calm stretches"
    with pytest.raises(AssertionError, match="undisturbed by 4 replicas"):
        undisturbed_step_s(steps, replicas=4)


def test_effective_time_is_wrong_beyond_its_bound_and_when_it_is_not_shown() -> None:
    assert wrong_effective_time("shown", 0.951, 0.9600, 0.01) == []
    assert wrong_effective_time("shown", 0.940, 0.9601, 0.01) == ["effective time shown 0.94, computed 0.9601"]
    assert wrong_effective_time("of the ledger", 0.954, 0.9600, 0.005) != []
    assert wrong_effective_time("shown", None, 0.96, 0.01) != []


@pytest.mark.parametrize("rounds", [0, 1], ids=["it was right", "it was set already"])
def test_the_drill_ends_with_the_clock_still_set(tmp_path: Path, rounds: int) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, -CLOCK_STEP_S * rounds)
    leave_clock_set(SimpleNamespace(clock=clock))
    assert offset_s(clock) == -CLOCK_STEP_S
