"""The undisturbed run's losses, made by the trainer itself, in the sandbox.

The configuration is that of a job, and so somebody's text: paths in it are opened by the server
only as far as a run may see them (the pinned checkpoint, and data below the roots of the settings).
"""

import hashlib
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.checkpoints.places import Outside
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Parallelism
from controlplane.recovery import training_data
from controlplane.recovery.row_facts import config_of
from controlplane.runtime.errors import Conflict
from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.plan import LOG
from controlplane.runtime.sandbox.service import Task

RUN_TIMEOUT_S = 1800.0
LOG_TAIL_CHARS = 2000
LOSSES = "losses.json"
MAX_LOSSES_BYTES = 16 << 20
MODULE = "trainer.reference"
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
        with reference_path(job).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_LOSSES_BYTES), type=Losses)
    except (OSError, msgspec.DecodeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """A run trains up to `steps` committed steps (None: the job's) for `train_s` seconds (None: as
    long as it takes) and tells what it has come to; it is ended after `wall_s`."""

    wall_s: float
    steps: int | None = None
    train_s: float | None = None


def task_of(config: TrainerConfig, place: Path, held: ExitStack, *, length: Length) -> Task:
    """A run of `config` that leaves its losses in `place`. What it may see is open for as long as `held`
    holds. Raises Outside where the server does not open its data; OSError."""
    inputs: list[int] = []
    links: dict[str, str] = {}

    def show(descriptor: int) -> str:
        inputs.append(descriptor)
        return f"{{in{len(inputs) - 1}}}"

    if config.resume is not None:
        folder = os.open(config.resume.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        held.callback(os.close, folder)
        pinned = show(folder)
        config = msgspec.structs.replace(config, resume=msgspec.structs.replace(config.resume, path=pinned))
    if config.training.data is not None:
        for suffix, descriptor in training_data.open_data(config.training.data, held).items():
            links["data" + suffix] = show(descriptor)
        training = msgspec.structs.replace(config.training, data="{scratch}/data")
        config = msgspec.structs.replace(config, training=training)
    return Task(
        module=MODULE,
        arguments=[
            "--config", "{scratch}/config.json", "--out", f"{{out}}/{LOSSES}",
            *(() if length.steps is None else ("--steps", str(length.steps))),
            *(() if length.train_s is None else ("--seconds", str(length.train_s))),
        ],
        place=place,
        inputs=inputs,
        files={"config.json": msgspec.json.encode(config).decode()},
        links=links,
        outputs=[LOSSES],
        limits=service.default_limits(wall_s=length.wall_s),
        nice=settings.REFERENCE_NICE,
    )  # fmt: skip


def make_reference(job: Job) -> Made:
    """Run `trainer.reference` for the job's first layout; minutes. Raises Conflict when the
    job was never placed or the run fails."""
    attempt = job.attempts.order_by("number").first()
    if spec_of(job).spec.entrypoint is not None:
        raise Conflict("the job runs its own program, which the server neither runs nor loads anything of")
    if attempt is None:
        raise Conflict("the job was never placed, so its layout is not known")
    out = reference_path(job)
    out.parent.mkdir(parents=True, exist_ok=True)
    config = config_of(job, attempt)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder, ExitStack() as held:
        place = Path(folder)
        try:
            code = service.run(task_of(config, place, held, length=Length(wall_s=RUN_TIMEOUT_S)))
        except (OSError, Outside) as error:
            raise Conflict(f"the reference run cannot be started: {error}") from error
        if code != 0:
            tail = (place / LOG).read_text(errors="replace")[-LOG_TAIL_CHARS:] if (place / LOG).exists() else ""
            raise Conflict(f"the reference run failed: {service.ended(code)}; {tail}")
        with (place / LOSSES).open("rb") as file:
            losses = msgspec.json.decode(file.read(MAX_LOSSES_BYTES), type=Losses)
        os.replace(place / LOSSES, out)
    return Made(path=out, steps=len(losses.losses))
