"""Is what lies on disk what was committed? Reads COMMITTED.json and every file it names.

The manifest is JSON: {"job_id", "attempt", "step", "epoch", "files": [{"name", "bytes",
"digest"}], ...}; it is the trainer's commit marker, so a directory without it was broken off.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.protocol import digests

MARKER = "COMMITTED.json"
MAX_MARKER_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`ok` None: nothing can be said, as the directory is not visible from here, its storage
    fails, or the digests' algorithm is not known here. `loaded`: it was loaded into a model
    as well."""

    ok: bool | None
    detail: str
    loaded: bool = False


def verify_directory(path: str, *, job_id: str, step: int, epoch: int) -> Verdict:
    """Never raises: what is missing or differs is a fault of the checkpoint, what the disk does
    not give is not."""
    directory = Path(path)
    try:
        if not directory.is_dir():
            return Verdict(ok=None, detail=f"{path} is not visible from the control plane")
        manifest = _read(directory / MARKER)
        fault = _identity(manifest, job_id, step, epoch) or _files(directory, manifest.get("files"))
    except digests.UnknownDigest as error:
        return Verdict(ok=None, detail=str(error))
    except FileNotFoundError as error:
        return Verdict(ok=False, detail=f"{error.filename} is missing")
    except OSError as error:
        return Verdict(ok=None, detail=f"it cannot be read: {error}")
    except ValueError as error:
        return Verdict(ok=False, detail=f"the marker cannot be read: {error}")
    if fault:
        return Verdict(ok=False, detail=fault)
    return Verdict(ok=True, detail=f"{len(manifest['files'])} files read back equal")


def _read(marker: Path) -> dict[str, Any]:
    if not marker.is_file():
        raise ValueError("there is none, the save was broken off")
    if marker.stat().st_size > MAX_MARKER_BYTES:
        raise ValueError(f"it has more than {MAX_MARKER_BYTES} bytes")
    manifest = json.loads(marker.read_text())
    if not isinstance(manifest, dict):
        raise ValueError("it is no JSON object")
    return manifest


def _identity(manifest: dict[str, Any], job_id: str, step: int, epoch: int) -> str:
    wanted = {"job_id": job_id, "step": step, "epoch": epoch}
    for name, value in wanted.items():
        if manifest.get(name) != value:
            return f"the marker says {name} {manifest.get(name)!r}, {value!r} was reported"
    return ""


def _files(directory: Path, files: Any) -> str:
    """The first fault found, or nothing."""
    if not isinstance(files, list) or not files or not all(isinstance(entry, dict) for entry in files):
        return "the marker names no files"
    for expected in files:
        name = str(expected.get("name"))
        file = directory / name
        if not file.resolve().is_relative_to(directory.resolve()):
            return f"{name} lies outside of the checkpoint"
        if not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != expected.get("bytes"):
            return f"{name} has {size} bytes, {expected.get('bytes')} were committed"
        wanted = digests.committed(str(expected.get("digest", "")), str(expected.get("blake2b")))
        if not digests.matches(wanted, _chunks(file)):
            return f"{name} has another digest than was committed"
    return ""


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
