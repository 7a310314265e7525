"""The storage of checkpoints stands still under a real job: one cause, nobody's fault, and it goes on.

The file system of the checkpoints is one of its own and is frozen (fsfreeze), so that writers really hang
in the kernel. One replica saves for all; its ranks are late in their save, the others wait for it.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compound_faults import own_file_system
from controlplane.demo.config import DemoConfig
from tests.scenes.conftest import Ring, ring_of
from tests.scenes.helpers import (
    all_steps,
    assert_no_step_missing,
    cancel,
    incidents,
    pids,
    scene_job,
    submit_and_train,
    wait_for_step,
)

pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(480),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]
SAVE_LIMIT_S = 12.0
HELD_S = 15.0
"""So much longer than the policy waits for others to be late too."""
THAW_AFTER_S = 240
"""By a process of its own, whatever becomes of this one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the checkpoints lie."""
    with own_file_system(tmp_path_factory.mktemp("stall")) as found:
        if found is None:
            pytest.skip("no file system may be mounted and frozen here: it takes root, mkfs.ext4 and fsfreeze")
        yield found


@pytest.fixture(scope="module")
def stalling(folder: Path, request: pytest.FixtureRequest) -> Iterator[Ring]:
    """Three nodes whose checkpoints lie there."""
    config = DemoConfig(directory=folder.parent, port=0, nodes=3, spare_nodes=1, reference_runs="off")
    yield from ring_of(config, request.module.__name__)


def test_a_storage_that_stalls_for_a_while_costs_nobody_his_place(stalling: Ring, folder: Path) -> None:
    driver = stalling.driver
    job_id = submit_and_train(driver, _blocking_saves(), until_step=25)
    driver.wait("a checkpoint that a node has read back", lambda: _read_by_a_node(driver, job_id), timeout_s=90)
    before, incarnations = pids(driver, job_id), _incarnations(driver, job_id)

    frozen_s = time.monotonic()
    with _frozen(folder):
        told = driver.wait("the common cause", lambda: _stalls(driver, job_id), timeout_s=120)
        step = driver.get(f"/jobs/{job_id}")["committed_step"]
        until_s = time.monotonic() + HELD_S
        while time.monotonic() < until_s:
            assert pids(driver, job_id) == before
            time.sleep(0.5)
    print(f"stalled for {time.monotonic() - frozen_s:.0f} s, told: {told[0]['sentence']}")

    # Past the next save, on a crowded machine too.
    wait_for_step(driver, job_id, step + 25, timeout_s=200)
    assert pids(driver, job_id) == before, "somebody was ended for it"
    assert _incarnations(driver, job_id) == incarnations
    assert driver.get(f"/jobs/{job_id}")["attempt"] == 1, "it was restarted"
    decisions = driver.items(f"/jobs/{job_id}/decisions?routine=false")
    assert not {d["rule"] for d in decisions} & {"replica_failure", "restart", "leave_out"}
    (stall,) = _stalls(driver, job_id)
    assert (stall["reason_code"], stall["choice"]) == ("storage_stall", "hold")
    assert "are late in saving at once: the storage that they save to has stalled" in stall["sentence"]
    assert all(incident["state"] in ("resolved", "mitigated") for incident in incidents(driver, job_id))
    saved = driver.wait("the save that stalled", lambda: _saved_since(driver, job_id, step), timeout_s=60)
    assert saved
    assert_no_step_missing(all_steps(driver, job_id))
    cancel(driver, job_id)


def _blocking_saves() -> dict[str, Any]:
    spec = scene_job(name="stalled", interval_steps=20, spare_gpus=0)
    spec["spec"]["checkpoint"] |= {"async": False}
    spec["spec"]["checkpoint"]["emergency"]["deadline_s"] = SAVE_LIMIT_S
    spec["spec"]["resiliency"]["timeouts"]["checkpoint_s"] = SAVE_LIMIT_S
    return spec


@contextlib.contextmanager
def _frozen(folder: Path) -> Iterator[None]:
    """Nothing can be written there meanwhile."""
    subprocess.run(["fsfreeze", "-f", folder], check=True)
    line = f'sleep {THAW_AFTER_S}; fsfreeze -u "$0"'
    later = subprocess.Popen(["sh", "-c", line, folder], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(later.pid, signal.SIGKILL)
        later.wait()
        subprocess.run(["fsfreeze", "-u", folder], check=True)


def _stalls(driver: Any, job_id: str) -> list[dict[str, Any]]:
    return [d for d in driver.items(f"/jobs/{job_id}/decisions?routine=false") if d["rule"] == "common_stall"]


def _incarnations(driver: Any, job_id: str) -> dict[int, int]:
    return {replica["index"]: replica["incarnation"] for replica in driver.current_replicas(job_id)}


def _read_by_a_node(driver: Any, job_id: str) -> list[dict[str, Any]]:
    rows = driver.items(f"/jobs/{job_id}/checkpoints")
    return [row for row in rows if row["state"] == "verified" and "on node node-" in row["state_reason"]]


def _saved_since(driver: Any, job_id: str, step: int) -> list[dict[str, Any]]:
    rows = driver.items(f"/jobs/{job_id}/checkpoints")
    return [row for row in rows if row["step"] >= step and row["state"] in ("complete", "verified")]
