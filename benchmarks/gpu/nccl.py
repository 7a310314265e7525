"""Collectives of raw process groups, as replicas use them: NCCL alone on the card, NCCL of two
processes on one card (which it may refuse: then that is said), gloo of two processes with tensors
on the card. Without a card gloo alone.
"""

import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.part import Findings, run
from trainer import device

NUMBERS = 1024 * 1024
TIMEOUT_S = 30.0
MEMBER = "--member"


def member(backend: str, index: int, members: int, store: Path) -> int:
    """All-reduce once as one of `members`; prints what came out."""
    my_device = device.activate(0)
    meeting = dist.FileStore(str(store), members)
    timeout = timedelta(seconds=TIMEOUT_S)
    group: Any
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        group = dist.ProcessGroupNCCL(meeting, index, members, options)
    else:
        group = dist.ProcessGroupGloo(meeting, index, members, timeout)
    tensor = torch.full((NUMBERS,), float(index + 1), device=my_device)
    group.allreduce([tensor]).wait()
    device.synchronize()
    print(f"sum {tensor[0].item():.0f} {tensor[-1].item():.0f}", flush=True)
    return 0


def check(found: Findings, cpu: bool) -> None:
    """Each kind, with the sum that has to come out."""
    if not cpu:
        found.say("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
        said = _together("nccl", 1)
        found.claim("NCCL, one process", said[0], holds=said == ["sum 1 1"])
        said = _together("nccl", 2)
        refused = any("uplicate GPU" in each for each in said)
        note = "refused: two processes share a card" if refused else ""
        holds = refused or said == ["sum 3 3"] * 2
        found.claim("NCCL, two processes on one card", said[0][-80:], holds=holds, note=note)
    said = _together("gloo", 2)
    found.claim("gloo, two processes" + ("" if cpu else " on one card"), said[0][-80:], holds=said == ["sum 3 3"] * 2)


def _together(backend: str, members: int) -> list[str]:
    """What each process said: its sum, or the end of its complaint."""
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-") as folder:
        argv = [sys.executable, "-m", "benchmarks.gpu.nccl", MEMBER, backend]
        processes = [
            subprocess.Popen(
                [*argv, str(index), str(members), f"{folder}/store"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for index in range(members)
        ]  # fmt: skip
        answers = []
        for process in processes:
            try:
                said, _ = process.communicate(timeout=TIMEOUT_S + 10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                said = process.communicate()[0] + "\nno answer in time"
            lines = [line for line in said.splitlines() if line.startswith("sum ")]
            answers.append(lines[0] if lines else said.strip()[-1500:])
        return answers


if __name__ == "__main__":
    if sys.argv[1:2] == [MEMBER]:
        sys.exit(member(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])))
    sys.exit(run(sys.argv[1:], __doc__, check))
