"""A policy beside the live one, over the API: started, looked at, promoted over its bar and no sooner, and stopped."""

from typing import Any

import msgspec
import pytest

from controlplane.jobs.models import Job
from controlplane.policies import selectors, shadows
from controlplane.policy.document import DEFAULT
from controlplane.protocol import rest
from controlplane.recovery import shadowing
from tests.integration.backend.builders import job_that_lost_a_rank

pytestmark = pytest.mark.django_db
TEXT = "stop_grace_s: 11\n"
EASY = {"min_decisions": 1, "min_days": 0.0}


def body(text: str = TEXT, **bar: Any) -> dict[str, Any]:
    return {"text": text, "reason": "shorter at night", "bar": bar}


@pytest.fixture
def lost(db: None, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that lost a replica, with the decisions that were really made."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)
    monkeypatch.setattr(shadowing, "SETTLED_S", -60.0)
    return job_that_lost_a_rank()[1]


def compared() -> None:
    """What is recorded so far counts as if it had come since."""
    run = shadows.running()
    assert run is not None
    run.after = ""
    shadowing.compare(run)


def test_none_has_run_yet(caller: Any) -> None:
    assert caller("read").get("/policy/shadow").json()["shadow"] is None
    assert caller("read").get("/policy/shadow?run=7").status_code == 404


def test_a_shadow_is_started_with_its_bar_and_seen_by_everybody(caller: Any) -> None:
    made = caller("admin").post("/policy/shadow:start", body(min_decisions=7))
    assert made.status_code == 201, made.content
    row = caller("read").get("/policy/shadow").json()["shadow"]
    assert (row["role"], row["state"], row["text"], row["live_number"]) == ("candidate", "running", TEXT, 0)
    assert row["bar"] == {"min_decisions": 7, "min_days": 1.0, "max_unpriced": 0.1, "tolerance": 0.02}
    assert len(row["below"]) == 2 and "the bar asks for 7" in row["below"][0]
    assert selectors.of_fleet() == DEFAULT, "it acts on nothing"
    msgspec.convert(row, rest.Shadow)


@pytest.mark.parametrize(
    "bar", [{"min_decisions": 0}, {"min_days": -1}, {"max_unpriced": 1.1}, {"tolerance": -0.1}, {"leniency": 1}]
)
def test_a_bar_outside_its_range_is_refused(caller: Any, bar: dict[str, Any]) -> None:
    assert caller("admin").post("/policy/shadow:start", body(**bar)).status_code == 422
    assert shadows.newest() is None


def test_a_faulty_document_is_refused_and_a_second_shadow_too(caller: Any) -> None:
    admin = caller("admin")
    refused = admin.post("/policy/shadow:start", body("leese_s: 3\n"))
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/leese_s"
    assert admin.post("/policy/shadow:start", body()).status_code == 201
    assert admin.post("/policy/shadow:start", body("max_acts: 9\n")).status_code == 409


@pytest.mark.parametrize("act", ["start", "promote", "stop"])
def test_an_operator_starts_promotes_and_stops_none(caller: Any, act: str) -> None:
    bodies = {"start": body(), "promote": {"run": 1, "parent": 0, "reason": "x"}, "stop": {"run": 1, "reason": "x"}}
    assert caller("operate").post(f"/policy/shadow:{act}", bodies[act]).status_code == 403


def test_below_the_bar_it_is_not_promoted_and_every_reason_is_told(caller: Any, lost: Job) -> None:
    admin = caller("admin")
    run = admin.post("/policy/shadow:start", body()).json()["run"]
    compared()
    refused = admin.post("/policy/shadow:promote", {"run": run, "parent": 0, "reason": "now"})
    assert refused.status_code == 409
    reasons = [each["message"] for each in refused.json()["errors"]]
    assert ["the bar asks for 50" in reasons[0], "the bar asks for 1" in reasons[1], len(reasons)] == [True, True, 2]
    assert selectors.of_fleet() == DEFAULT


def test_over_the_bar_it_becomes_the_policy_and_the_one_before_it_watches(caller: Any, lost: Job) -> None:
    admin = caller("admin")
    run = admin.post("/policy/shadow:start", body(**EASY)).json()["run"]
    compared()
    row = admin.get("/policy/shadow").json()["shadow"]
    assert row["below"] == [] and row["score"]["decisions"] > 0
    assert {each["rule"]: each["alike"] for each in row["matrix"]}["replica_failure"] == 1
    late = admin.post("/policy/shadow:promote", {"run": run, "parent": 3, "reason": "now"})
    assert late.status_code == 409 and shadows.one(run).state == "running"
    watch = admin.post("/policy/shadow:promote", {"run": run, "parent": 0, "reason": "now"}).json()
    assert (watch["role"], watch["live_number"], watch["document"]) == ("watch", 1, {})
    assert selectors.of_fleet().stop_grace_s == 11.0
    assert admin.get(f"/policy/shadow?run={run}").json()["shadow"]["state"] == "promoted"
    again = admin.post("/policy/shadow:promote", {"run": watch["run"], "parent": 1, "reason": "now"})
    assert again.status_code == 409, "a watch is no candidate"


def test_a_stopped_shadow_stays_to_be_read(caller: Any) -> None:
    admin = caller("admin")
    run = admin.post("/policy/shadow:start", body()).json()["run"]
    assert admin.post("/policy/shadow:stop", {"run": run, "reason": "enough"}).json()["state"] == "stopped"
    row = admin.get("/policy/shadow").json()["shadow"]
    assert row["run"] == run and "enough" in row["ended_why"]
    assert admin.post("/policy/shadow:stop", {"run": run, "reason": "enough"}).status_code == 409


def test_what_differs_is_listed_with_what_each_would_do(caller: Any, lost: Job) -> None:
    admin = caller("admin")
    admin.post("/policy/shadow:start", body("rule_modes:\n  replica_failure: observe\n"))
    compared()
    row = admin.get("/policy/shadow").json()["shadow"]
    (found,) = row["newest"]
    assert (found["rule"], found["agreement"], found["live_choice"]) == (
        "replica_failure",
        "holds",
        "evict_and_replace",
    )
    assert (found["priced_by"], found["change_gpu_s"]) == ("", None)
    assert "a person is asked" in found["why"] and row["score"]["unpriced"] == 1
