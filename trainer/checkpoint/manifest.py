"""What makes a directory a checkpoint: `COMMITTED.json`, written last, names every file.

Standard library and msgspec only, so that a process without torch can verify, list and
choose. A directory without the marker is not a checkpoint, whatever it holds.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

MARKER = "COMMITTED.json"
FORMAT = 1
CHUNK_BYTES = 4 << 20
DIGEST_BYTES = 16
MAX_MARKER_BYTES = 16 << 20
_NAME = re.compile(r"^step_(\d{8,})-e(\d+)$")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` relative to the checkpoint's directory; `blake2b` hex."""

    name: str
    bytes: int
    blake2b: str


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layout that wrote it; any other may load it."""

    tp: int
    pp: int
    replicas: int
    vp: int = 1
    cp: int = 1
    ep: int = 1
    replica_dp: int = 1


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """State after `step` committed steps. `consumed_samples` of the global order."""

    format: int = FORMAT
    job_id: str
    attempt: int
    epoch: int
    step: int
    kind: str
    layout: Layout
    consumed_samples: int
    files: tuple[FileEntry, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, the marker not counted."""
        return sum(entry.bytes for entry in self.files)

    @property
    def digest(self) -> str:
        """Stands for the whole checkpoint: blake2b of the canonical manifest, hex."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of `verify`. `faults` say which file and what; empty means unharmed."""

    manifest: Manifest | None
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when every file is there and unharmed."""
        return self.manifest is not None and not self.faults


def directory_name(step: int, epoch: int) -> str:
    """`step_00000120-e7`."""
    return f"step_{step:08d}-e{epoch}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(step, epoch) of a checkpoint directory's name, None for any other."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


def describe_files(directory: Path) -> tuple[FileEntry, ...]:
    """Size and digest of every file under `directory` but the marker. Raises OSError."""
    return tuple(
        FileEntry(str(path.relative_to(directory)), path.stat().st_size, _digest(path))
        for path in sorted(_files(directory))
    )


def write_marker(directory: Path, manifest: Manifest) -> None:
    """Commit: durable, and all or nothing. Raises OSError."""
    temporary = directory / f"{MARKER}.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MARKER)
    _sync_directory(directory)


def read_marker(directory: Path) -> Manifest | None:
    """None when there is no marker or it cannot be read as one."""
    try:
        with (directory / MARKER).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_MARKER_BYTES), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def verify(directory: Path | str) -> Verdict:
    """Read every file and compare it with the marker. Never raises for a broken checkpoint."""
    directory = Path(directory)
    manifest = read_marker(directory)
    if manifest is None:
        return Verdict(None, (f"{MARKER} is absent or unreadable",))
    if manifest.format != FORMAT:
        return Verdict(manifest, (f"format {manifest.format} is not {FORMAT}",))
    return Verdict(manifest, tuple(fault for entry in manifest.files for fault in _check(directory, entry)))


def list_complete(root: Path | str) -> list[tuple[Path, Manifest]]:
    """Committed checkpoints under `root`, newest (step, then epoch) first. Nothing is read but markers."""
    found = []
    for path in _directories(Path(root)):
        manifest = read_marker(path)
        if manifest is not None:
            found.append((path, manifest))
    return sorted(found, key=lambda item: (item[1].step, item[1].epoch), reverse=True)


def newest_complete(root: Path | str) -> tuple[Path, Manifest] | None:
    """The one to resume from, before any verification; None when there is none."""
    complete = list_complete(root)
    return complete[0] if complete else None


def _check(directory: Path, entry: FileEntry) -> Iterator[str]:
    path = directory / entry.name
    if ".." in Path(entry.name).parts or (path.is_absolute() and not path.is_relative_to(directory)):
        yield f"{entry.name}: outside the checkpoint"
        return
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            yield f"{entry.name}: {size} bytes, not {entry.bytes}"
        elif _digest(path) != entry.blake2b:
            yield f"{entry.name}: content differs"
    except OSError as error:
        yield f"{entry.name}: {error.strerror}"


def _directories(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    for path in root.iterdir():
        if parse_name(path.name) and path.is_dir():
            yield path


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith(MARKER):
            yield path


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
