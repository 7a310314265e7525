"""What a guest does about a server and agents that do not answer; a real Slurm: tests/slurm."""

import argparse
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.slurm import guest
from controlplane.slurm.guest import Guest


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Orders to `scancel` are kept here, and carried out for nobody."""
    (tmp_path / "bin").mkdir()
    program, orders = tmp_path / "bin" / "scancel", tmp_path / "orders"
    program.write_text(f'#!/bin/sh\necho "$@" >> "{orders}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.defpath}")
    for name, value in (("SLURM_JOB_ID", "9"), ("SLURMD_NODENAME", "n1"), ("SLURM_NODEID", "0")):
        monkeypatch.setenv(name, value)
    return orders


@pytest.fixture
def run(slurm: Path, tmp_path: Path) -> Iterator[Guest]:
    """Of job 9."""
    options = argparse.Namespace(
        nodes=2, spares=0, devices=4, probe="simulated", grace_s=0.2, server="", join_token_file=None, continues="",
        chained=False, directory=tmp_path / "9",
    )  # fmt: skip
    made = Guest(options)
    yield made
    if made._agents is not None and made._agents.poll() is None:
        made._agents.kill()
        made._agents.wait()


@pytest.mark.parametrize(
    ("agents", "end"),
    [(("sleep", "60"), signal.SIGTERM), (("sh", "-c", "trap '' TERM; exec sleep 60"), signal.SIGKILL)],
)
def test_agents_that_do_not_end_are_killed_by_srun_and_the_guest_outlives_them(
    run: Guest, slurm: Path, monkeypatch: pytest.MonkeyPatch, agents: tuple[str, ...], end: signal.Signals
) -> None:
    monkeypatch.setattr(guest, "LEAVE_S", 0.3)
    run._agents = subprocess.Popen(agents)
    run._leave()
    assert run._agents.returncode == -end
    assert slurm.read_text().splitlines() == ["--signal=TERM 9"], "SIGKILL of scancel reaches the batch script too"
