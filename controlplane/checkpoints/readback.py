"""What a program that has read a checkpoint in the sandbox says of it: decoded by strict types and
up to a size, as it has seen a job's files."""

from pathlib import Path

import msgspec

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.verify import MAX_DETAIL_CHARS
from controlplane.protocol.readback import Verdict
from controlplane.runtime.sandbox import service

MAX_VERDICT_BYTES = 1 << 16
LONGEST_S = 86_400
"""Of one look, whatever size a rank has told."""
VERDICT = "verdict.json"


def identity(row: Checkpoint) -> list[str]:
    """Whose it is, as options."""
    return ["--job-id", row.job_id, "--step", str(row.step), "--epoch", str(row.epoch)]


def decoded(place: Path) -> Verdict | None:
    """The verdict of a program that has seen a job's files: so much text, and no more."""
    try:
        with (place / VERDICT).open("rb") as file:
            return verdict_of(file.read(MAX_VERDICT_BYTES))
    except OSError:
        return None


def verdict_of(text: bytes | str) -> Verdict | None:
    """Of a program that has seen a job's files, here or on a node; None where it is none."""
    try:
        said = msgspec.json.decode(text, type=Verdict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    detail = "".join(sign if sign.isprintable() else "?" for sign in said.detail[:MAX_DETAIL_CHARS])
    took_s = said.took_s if said.took_s is not None and 0.0 <= said.took_s <= LONGEST_S else None
    loaded = said.loaded and said.ok is True
    return Verdict(ok=said.ok, detail=detail, loaded=loaded, absent=said.absent, took_s=took_s)


def why_silent(place: Path, code: int) -> str:
    """There is no verdict; for people."""
    return service.why_not_run(place) or f"no verdict: {service.ended(code)}; see the server's log"
