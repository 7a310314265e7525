"""Reading a checkpoint on a file system back, here and now: `controlplane.checkpoints.verify`
in the sandbox, which sees that one directory. Blocks its caller for as long as that takes."""

import tempfile
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.checkpoints import places
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.verify import MAX_DETAIL_CHARS, Verdict
from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.service import Task

LIMIT_S = 600.0
MAX_VERDICT_BYTES = 1 << 16
VERDICT = "verdict.json"


def read_back(row: Checkpoint) -> Verdict:
    """Never raises: what this machine cannot do is no fault of the checkpoint. One that lies
    where the job has no business is, and nothing of it is read."""
    folder = Path(settings.REFERENCE_DIR) / "readings"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with places.opened(row) as descriptor, tempfile.TemporaryDirectory(dir=folder) as place:
            code = service.run(
                Task(
                    module="controlplane.checkpoints.verify",
                    arguments=["--path", "{in0}", "--name", row.path, *identity(row), "--out", f"{{out}}/{VERDICT}"],
                    place=Path(place),
                    inputs=[descriptor],
                    outputs=[VERDICT],
                    limits=service.default_limits(wall_s=LIMIT_S),
                )
            )
            return decoded(Path(place)) or Verdict(ok=None, detail=why_silent(Path(place), code))
    except places.Outside as error:
        return Verdict(ok=False, detail=str(error))
    except FileNotFoundError:
        return Verdict(ok=None, detail=f"{row.path} is not visible from the control plane")
    except OSError as error:
        return Verdict(ok=None, detail=f"it cannot be read: {error.strerror or error}")


def identity(row: Checkpoint) -> list[str]:
    """Whose it is, as options."""
    return ["--job-id", row.job_id, "--step", str(row.step), "--epoch", str(row.epoch)]


def decoded(place: Path) -> Verdict | None:
    """The verdict of a program that has seen a job's files: so much text, and no more."""
    try:
        with (place / VERDICT).open("rb") as file:
            said = msgspec.json.decode(file.read(MAX_VERDICT_BYTES), type=Verdict)
    except (OSError, msgspec.DecodeError):
        return None
    detail = "".join(sign if sign.isprintable() else "?" for sign in said.detail[:MAX_DETAIL_CHARS])
    return Verdict(ok=said.ok, detail=detail, loaded=said.loaded and said.ok is True)


def why_silent(place: Path, code: int) -> str:
    """There is no verdict; for people."""
    return service.why_not_run(place) or f"no verdict: {service.ended(code)}; see the server's log"
