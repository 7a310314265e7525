"""The undisturbed run's losses, made by the trainer itself in a process of its own."""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.jobs.models import Job
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.spec import Parallelism
from controlplane.recovery.orders import trainer_config
from controlplane.runtime.errors import Conflict

RUN_TIMEOUT_S = 1800.0
STDERR_MAX = 2000
LIMIT_MAX = 1e-3


class Losses(msgspec.Struct, frozen=True):
    """`losses[i]` of step `first_step + i`; `tolerance` absolute."""

    losses: list[float]
    tolerance: float
    first_step: int = 0

    def limit(self, step: int) -> float:
        """How far a loss may be off. Both runs sum the same fp32 gradients in another order,
        and each optimizer step adds its rounding to those before it; a sample that is lost
        or doubled moves the loss by far more than `LIMIT_MAX`."""
        return min(max(self.tolerance, LIMIT_MAX), self.tolerance * (1 + step - self.first_step))

    def of(self, step: int) -> float | None:
        """The undisturbed loss of that step, None outside the run."""
        index = step - self.first_step
        return self.losses[index] if 0 <= index < len(self.losses) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Where a reference run was written."""

    path: Path
    steps: int


def reference_path(job: Job) -> Path:
    """One file for all jobs that would train alike: same model, training and inner layout."""
    spec = spec_of(job).spec
    first = job.attempts.order_by("number").first()
    layout = msgspec.convert(first.layout, Parallelism) if first else spec.parallelism
    content = msgspec.json.encode(
        {"model": spec.model, "training": spec.training, "layout": msgspec.structs.replace(layout, dp=1)},
        order="deterministic",
    )
    return Path(settings.REFERENCE_DIR) / f"{hashlib.sha256(content).hexdigest()[:24]}.json"


def read_reference(job: Job) -> Losses | None:
    """None when there is none, or it cannot be read as one."""
    try:
        return msgspec.json.decode(reference_path(job).read_bytes(), type=Losses)
    except (OSError, msgspec.DecodeError):
        return None


def make_reference(job: Job) -> Made:
    """Run `trainer.reference` for the job's first layout; minutes. Raises Conflict when the
    job was never placed or the run fails."""
    attempt = job.attempts.order_by("number").first()
    if attempt is None:
        raise Conflict("the job was never placed, so its layout is not known")
    out = reference_path(job)
    out.parent.mkdir(parents=True, exist_ok=True)
    config = msgspec.structs.replace(trainer_config(job, attempt), resume=None)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        config_path, partial = Path(folder) / "config.json", Path(folder) / "losses.json"
        config_path.write_bytes(msgspec.json.encode(config))
        argv = [sys.executable, "-m", "trainer.reference", "--config", str(config_path), "--out", str(partial)]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=RUN_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Conflict(f"the reference run took more than {RUN_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise Conflict(f"the reference run failed: {done.stderr.decode(errors='replace')[-STDERR_MAX:]}")
        os.replace(partial, out)
    losses = msgspec.json.decode(out.read_bytes(), type=Losses)
    return Made(path=out, steps=len(losses.losses))
