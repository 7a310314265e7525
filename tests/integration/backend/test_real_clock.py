"""A sentinel's clock is really set: its own process reads another wall clock, its monotonic one goes on."""

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.jobs.models import Job
from controlplane.runtime.clock import now
from controlplane.runtime.models import ClockStep, ProcessBeat
from tests.integration.backend.builders import make_job
from tests.integration.backend.servers import ROOT, Process, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

HOUR_S = 3600.0
WAIT_S = 60.0


class Clock:
    """Added to the wall clock of each process that was started with `env`."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        library, source = directory / "stepped_clock.so", ROOT / "benchmarks" / "stepped_clock.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        self.path = directory / "clock"
        self.path.write_bytes(struct.pack("=q", 0))
        self.env = {"LD_PRELOAD": str(library), "HOLDFAST_BENCH_CLOCK": str(self.path)}

    def set(self, offset_s: float) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("=q", int(offset_s)))


def wait_for(what: str, found: Callable[[], bool], process: Process) -> None:
    end = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < end, f"{what}: {process.tail()}"
        time.sleep(0.1)


def leads() -> bool:
    return ProcessBeat.objects.filter(name="lease:sentinel").exclude(detail__owner="").exists()


def steps_s() -> list[float]:
    return [round(step_s) for step_s in ClockStep.objects.order_by("id").values_list("step_s", flat=True)]


def due_in_s(job: Job) -> float:
    """By this process's clock, which was not set."""
    due_at = Job.objects.values_list("due_at", flat=True).get(pk=job.pk)
    assert due_at is not None
    return (due_at - now()).total_seconds()


def test_what_is_due_is_moved_with_the_clock_whether_a_sentinel_runs_or_not(stack: Stack, tmp_path: Path) -> None:
    stack.sentinel.stop()
    clock = Clock(tmp_path)
    stack.sentinel.env = stack.sentinel.env | clock.env
    assert os.environ.get("LD_PRELOAD") is None
    ProcessBeat.objects.filter(role__in=("lease", "sentinel")).delete()
    stack.sentinel.start()
    wait_for("one leads", leads, stack.sentinel)
    job = make_job()
    Job.objects.filter(pk=job.pk).update(due_at=now() + timedelta(seconds=1000.0))

    stack.sentinel.stop()
    clock.set(HOUR_S)
    stack.sentinel.start()
    wait_for("the step ahead is found", lambda: steps_s() == [HOUR_S], stack.sentinel)
    assert due_in_s(job) == pytest.approx(1000.0 + HOUR_S, abs=90.0), "else it would have been due at once"

    wait_for("it leads again", leads, stack.sentinel)
    time.sleep(2.0)
    clock.set(0.0)
    wait_for("the step back is seen", lambda: steps_s() == [HOUR_S, -HOUR_S], stack.sentinel)
    assert due_in_s(job) == pytest.approx(1000.0, abs=90.0)
