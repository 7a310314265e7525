"""GET /ledger and /jobs/{id}/ledger: of what is there, and what is refused."""

from typing import Any

import pytest

from controlplane.recovery import ledger_pass
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


def test_it_answers_for_the_fleet_a_job_and_a_node(caller: Any) -> None:
    node = make_node("node-1")
    job = running_job([node, make_node("node-2")], SPEC | {"metadata": {"name": "running"}})
    ledger_pass.build()
    ada = caller("read")
    found = ada.get("/ledger").json()
    assert found["known_gpu_s"] == pytest.approx(sum(each["gpu_s"] for each in found["classes"]))
    assert {each["of"] for each in found["classes"]} >= {"productive", "idle", "not_observed"}
    assert ada.get(f"/ledger?job={job.id}&by=cause").status_code == 200
    assert ada.get(f"/jobs/{job.id}/ledger?by=node").json()["by"] == "node"
    assert ada.get(f"/ledger?node={node.id}&window_s=3600").json()["known_gpu_s"] <= found["known_gpu_s"] + 1e-6


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("by=colour", 422),
        ("window_s=0", 422),
        ("window_s=1e12", 422),
        ("since=2026-01-01T00:00:00", 422),
        ("since=2026-03-02T00:00:00Z&until=2026-03-01T00:00:00Z", 422),
        ("since=2020-01-01T00:00:00Z", 422),
        ("since=2026-03-01T00:00:00Z&window_s=60", 422),
        ("until=1970-01-01T00:00:00Z", 422),
        ("limit=501", 422),
        ("job=nobody", 404),
        ("node=nobody", 404),
        ("colour=red", 400),
    ],
)
def test_what_makes_no_sense_is_refused(caller: Any, query: str, status: int) -> None:
    assert caller("read").get(f"/ledger?{query}").status_code == status


def test_before_the_first_pass_nothing_is_known_and_that_is_said(caller: Any) -> None:
    found = caller("read").get("/ledger").json()
    assert (found["judged_until"], found["known_since"], found["known_gpu_s"]) == (None, None, 0.0)
    assert found["ettr"] is None
