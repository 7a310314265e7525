"""Questions that several scenes ask."""

import contextlib
import itertools
import os
import signal
from collections.abc import Iterable
from typing import Any

from controlplane.demo.driver import Driver
from controlplane.demo.job import demo_job

START_TIMEOUT_S = 120
RECOVERY_TIMEOUT_S = 90
CERTIFICATE_TIMEOUT_S = 300


def scene_job(**changes: Any) -> dict[str, Any]:
    """The demo's job with half the layers and half the micro-batches of a step: its steps come
    as often and take a quarter of the time of a core, here and in a certificate's reference run."""
    spec = demo_job(**({"global_batch": 6, "delay_s": 0.06} | changes))
    spec["spec"]["model"]["layers"] = 2
    return spec


def submit_and_train(driver: Driver, spec: dict[str, Any], *, until_step: int = 12) -> str:
    """Submit, wait until the job has committed `until_step` steps; its id."""
    job_id = driver.post("/jobs", spec)["id"]
    wait_for_step(driver, job_id, until_step, timeout_s=START_TIMEOUT_S)
    return job_id


def wait_for_step(driver: Driver, job_id: str, step: int, *, timeout_s: float = 60) -> dict[str, Any]:
    """The job once it has committed that many steps."""

    def reached() -> dict[str, Any] | None:
        job = driver.get(f"/jobs/{job_id}")
        assert job["state"] not in ("failed", "cancelled"), job["state_reason"]
        return job if job["committed_step"] >= step else None

    return driver.wait(f"step {step}", reached, timeout_s=timeout_s)


def live_ranks(driver: Driver, job_id: str) -> dict[tuple[int, int], dict[str, Any]]:
    """(replica, rank) -> rank of the current incarnations."""
    return {
        (replica["index"], rank["rank"]): rank
        for replica in driver.current_replicas(job_id)
        for rank in replica["ranks"]
    }


def pids(driver: Driver, job_id: str) -> dict[tuple[int, int], int]:
    """(replica, rank) -> pid of the current incarnations."""
    return {key: rank["pid"] for key, rank in live_ranks(driver, job_id).items()}


def kill_all(ranks: Iterable[int]) -> None:
    """SIGKILL for each; the ranks of a replica may be gone as soon as the first of them is."""
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def incidents(driver: Driver, job_id: str) -> list[dict[str, Any]]:
    """Newest first."""
    return sorted(driver.items(f"/jobs/{job_id}/incidents"), key=lambda i: i["opened_at"], reverse=True)


def wait_resolved(
    driver: Driver, job_id: str, *, count: int = 1, timeout_s: float = RECOVERY_TIMEOUT_S
) -> dict[str, Any]:
    """The newest incident, once the job is done with `count` of its own: resolved, or waiting for
    hardware alone."""
    over = ("mitigated", "resolved")

    def resolved() -> dict[str, Any] | None:
        found = incidents(driver, job_id)
        return found[0] if len(found) >= count and all(i["state"] in over for i in found) else None

    return driver.wait(f"{count} incident(s) resolved", resolved, timeout_s=timeout_s)


def wait_certificate(driver: Driver, incident_id: str) -> dict[str, Any]:
    """The incident's detail once its certificate is no longer pending."""

    def judged() -> dict[str, Any] | None:
        incident = driver.get(f"/incidents/{incident_id}")
        certificate = incident["certificate"]
        return incident if certificate and certificate["state"] != "pending" else None

    return driver.wait("certificate", judged, timeout_s=CERTIFICATE_TIMEOUT_S)


def assert_certificate_green(incident: dict[str, Any]) -> None:
    """Every check of the certificate holds, the comparison with the reference included."""
    certificate = incident["certificate"]
    failed = [check for check in certificate["checks"] if check["ok"] is not True]
    assert certificate["state"] == "green", failed
    assert {check["name"] for check in certificate["checks"]} >= {
        "state_hashes_equal",
        "sample_ledger_exact",
        "no_step_lost",
        "loss_matches_reference",
        "old_incarnation_fenced",
    }


def all_steps(driver: Driver, job_id: str, *attempts: int) -> list[dict[str, Any]]:
    """The committed steps of these attempts (none: of the newest), as many as the API gives, in order."""
    asked = [f"&attempt={number}" for number in attempts] or [""]
    found = [step for of in asked for step in driver.items(f"/jobs/{job_id}/steps?limit=2000{of}")]
    return sorted(found, key=lambda s: (s["attempt"], s["step"]))


def assert_no_step_missing(steps: list[dict[str, Any]]) -> None:
    """Within one attempt the committed steps are gap-free and each sample trained once."""
    for earlier, later in itertools.pairwise(steps):
        if earlier["attempt"] == later["attempt"]:
            assert later["step"] == earlier["step"] + 1, (earlier, later)
    assert all(step["samples_exact"] for step in steps[:-3]), [s for s in steps[:-3] if not s["samples_exact"]][:3]


def cancel(driver: Driver, job_id: str) -> None:
    """End the job and wait until its devices are free again."""
    driver.post(f"/jobs/{job_id}:cancel", {"reason": "the scene is over"})
    driver.wait("cancelled", lambda: driver.get(f"/jobs/{job_id}")["state"] == "cancelled", timeout_s=60)
    driver.wait(
        "devices free",
        lambda: all(d["held_by"] is None for n in driver.items("/nodes") for d in n["devices"]),
        timeout_s=60,
    )
