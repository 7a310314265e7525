"""An overheating device, and a fleet that runs out of spares: scenes 3 and 4."""

from typing import Any

import pytest

from tests.scenes.conftest import Ring
from tests.scenes.helpers import (
    all_steps,
    assert_no_step_missing,
    cancel,
    incidents,
    kill_all,
    live_ranks,
    pids,
    scene_job,
    submit_and_train,
    wait_for_step,
    wait_resolved,
)

pytestmark = [pytest.mark.scenes, pytest.mark.timeout(420)]


def test_an_overheating_device_causes_one_emergency_checkpoint_and_nothing_else(ring: Ring) -> None:
    driver = ring.driver
    job_id = submit_and_train(driver, scene_job(name="hot", interval_steps=150), until_step=12)
    epoch = driver.get(f"/jobs/{job_id}")["epoch"]
    rank = live_ranks(driver, job_id)[0, 0]

    fault = {"kind": "overheat_device", "node_id": rank["node_id"], "device_index": rank["device_index"], "value": 97}
    driver.post("/demo/faults", fault)

    saved = driver.wait(
        "emergency checkpoint", lambda: _emergency(driver.items(f"/jobs/{job_id}/checkpoints")), timeout_s=90
    )
    wait_for_step(driver, job_id, saved[0]["step"] + 40, timeout_s=90)
    assert len(_emergency(driver.items(f"/jobs/{job_id}/checkpoints"))) == 1, "the alarm saved more than once"
    decisions = driver.items(f"/jobs/{job_id}/decisions?routine=false")
    asked = [d for d in decisions if any(a["action"] == "request_checkpoint" for a in d["actions"])]
    assert len(asked) == 1, "cooldown and deduplication did not hold"
    assert driver.get(f"/jobs/{job_id}")["epoch"] == epoch, "heat alone evicted a replica"
    device = next(d for d in driver.get(f"/nodes/{rank['node_id']}")["devices"] if d["index"] == rank["device_index"])
    assert device["risk"] is not None
    assert device["risk"] > 0.2
    driver.post("/demo/faults", {**fault, "kind": "heal_device"})
    cancel(driver, job_id)


def test_without_a_spare_the_job_shrinks_and_grows_back_when_there_is_one(ring: Ring) -> None:
    driver = ring.driver
    spec = scene_job(name="narrow", interval_steps=20)
    spec["spec"]["checkpoint"]["local"] = {"medium": "memory", "interval_steps": 4}
    job_id = submit_and_train(driver, spec, until_step=25)
    driver.post("/demo/faults", {"kind": "no_spares"})
    rank = live_ranks(driver, job_id)[1, 0]

    driver.post(
        "/demo/faults",
        {"kind": "xid", "node_id": rank["node_id"], "device_index": rank["device_index"], "value": 79},
    )

    def shrunk() -> dict[str, Any] | None:
        job = driver.get(f"/jobs/{job_id}")
        return job if job["replicas_active"] == 2 else None

    step = driver.wait("shrunk to two replicas", shrunk, timeout_s=60)["committed_step"]
    wait_for_step(driver, job_id, step + 10)
    codes = {d["reason_code"] for d in driver.items(f"/jobs/{job_id}/decisions?routine=false")}
    assert any("spare" in code or "capacity" in code for code in codes), codes

    driver.post("/demo/faults", {"kind": "restore_spares"})
    driver.wait("grown back", lambda: driver.get(f"/jobs/{job_id}")["replicas_active"] == 3, timeout_s=90)
    wait_resolved(driver, job_id, count=1)
    assert_no_step_missing(all_steps(driver, job_id))


def test_when_the_last_replica_dies_the_job_restarts_from_the_newest_trusted_checkpoint(ring: Ring) -> None:
    driver = ring.driver
    job_id = driver.job("narrow")["id"]
    known = len(incidents(driver, job_id))

    def newer_in_memory() -> int | None:
        held = _trusted(driver.items(f"/jobs/{job_id}/checkpoints"))
        local = max((c["step"] for c in held if c["kind"] == "local"), default=0)
        return local if local > max(c["step"] for c in held if c["kind"] != "local") else None

    step_in_memory = driver.wait("a newer step in the nodes' memory than in the store", newer_in_memory, timeout_s=60)
    attempt = driver.get(f"/jobs/{job_id}")["attempt"]

    kill_all(pids(driver, job_id).values())

    def restarted() -> dict[str, Any] | None:
        job = driver.get(f"/jobs/{job_id}")
        return job if job["attempt"] > attempt and job["replicas_active"] >= 1 else None

    job = driver.wait("a new attempt", restarted, timeout_s=120)
    detail = driver.get(f"/jobs/{job_id}")
    newest = max(detail["attempts"], key=lambda a: a["number"])
    assert newest["resume_step"] >= step_in_memory, "what the nodes hold in memory was not used"
    wait_for_step(driver, job_id, newest["resume_step"] + 10, timeout_s=90)
    wait_resolved(driver, job_id, count=known + 1)
    steps = [s for s in all_steps(driver, job_id) if s["attempt"] == job["attempt"]]
    assert steps[0]["step"] == newest["resume_step"], "it did not go on where the checkpoint stands"


def test_with_too_few_devices_it_restarts_with_another_layout(ring: Ring) -> None:
    driver = ring.driver
    for job in driver.items("/jobs"):
        if job["state"] == "running":
            cancel(driver, job["id"])
    spec = scene_job(name="relaid", nodes=2, tp=2, pp=2, interval_steps=10, global_batch=4, spare_gpus=0)
    job_id = submit_and_train(driver, spec, until_step=14)
    driver.wait(
        "a trusted checkpoint",
        lambda: _trusted(driver.items(f"/jobs/{job_id}/checkpoints")),
        timeout_s=60,
    )
    keep = live_ranks(driver, job_id)[0, 0]["node_id"]
    for node in driver.items("/nodes"):
        if node["id"] != keep and node["state"] == "ready":
            driver.post(f"/nodes/{node['id']}:cordon", {"reason": "only one node may be used"})
    kill_all(pids(driver, job_id).values())

    def relaid() -> dict[str, Any] | None:
        newest = max(driver.get(f"/jobs/{job_id}")["attempts"], key=lambda a: a["number"])
        return newest if newest["number"] == 2 else None

    attempt = driver.wait("a second attempt", relaid, timeout_s=120)
    assert attempt["layout"]["tp"] * attempt["layout"]["pp"] == 2, attempt["layout"]
    assert attempt["resume_step"] >= 10
    wait_for_step(driver, job_id, attempt["resume_step"] + 5, timeout_s=120)
    kept = [s for s in all_steps(driver, job_id, 1, 2) if s["attempt"] == 2 or s["step"] < attempt["resume_step"]]
    assert [s["step"] for s in kept] == list(range(len(kept))), "a step is missing, or counts twice"
    assert_no_step_missing(kept)
    driver.post("/demo/faults", {"kind": "restore_spares"})
    cancel(driver, job_id)


def _emergency(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [c for c in _trusted(checkpoints) if c["kind"] == "emergency"]


def _trusted(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [c for c in checkpoints if c["state"] not in ("writing", "corrupt", "pruned")]
