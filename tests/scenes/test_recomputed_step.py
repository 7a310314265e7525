"""Where the server makes no undisturbed run, the job itself proves its recovery: another replica
computes a sampled step again when the job has trained, and the certificate is green then."""

import os
import signal
from collections.abc import Iterator

import pytest

from controlplane.demo.config import DemoConfig
from tests.scenes.conftest import Ring, ring_of
from tests.scenes.helpers import pids, scene_job, submit_and_train, wait_certificate, wait_resolved

STEPS, EVERY = 140, 40
pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(420),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ring]:
    """Three nodes of two devices and a spare one."""
    directory = tmp_path_factory.mktemp("ring")
    config = DemoConfig(directory=directory, port=0, nodes=3, spare_nodes=1, reference_runs="off")
    yield from ring_of(config, request.module.__name__)


def test_a_replica_computes_a_step_of_the_recovery_again_at_the_jobs_end(ring: Ring) -> None:
    spec = scene_job(name="proved", nodes=2, steps=STEPS, interval_steps=EVERY)
    spec["spec"]["checkpoint"]["keep"] = 3
    job_id = submit_and_train(ring.driver, spec, until_step=EVERY + 10)
    os.kill(pids(ring.driver, job_id)[1, 0], signal.SIGKILL)
    incident = wait_resolved(ring.driver, job_id)

    detail = wait_certificate(ring.driver, incident["id"])
    checks = {check["name"]: check for check in detail["certificate"]["checks"]}
    assert "step_recomputed" in checks, detail["certificate"]
    told = checks["step_recomputed"]
    assert told["ok"] is True, told
    assert "replica 0 of the job, at its end" in told["detail"], "not the one that was replaced"
    assert "equal bit for bit on 2 of 2 ranks" in told["detail"]
    assert detail["certificate"]["state"] == "green", checks
    job = ring.driver.wait(
        "the job's end", lambda: (found := ring.driver.get(f"/jobs/{job_id}"))["finished_at"] and found, timeout_s=60
    )
    assert (job["state"], job["committed_step"]) == ("succeeded", STEPS)
