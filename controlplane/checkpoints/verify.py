"""Is what lies on disk what was committed? Reads COMMITTED.json and every file it names.

`python -m controlplane.checkpoints.verify --path P --name N --job-id J --step S --epoch E --out FILE`
is run by the server in its sandbox (`readback`), and the same code by agents (`reading`); without
Django. The manifest is JSON: {"job_id", "attempt", "step", "epoch", "files": [{"name", "bytes",
"digest"}], ...}; it is the trainer's commit marker, so a directory without it was broken off. Nothing
that it reads is loaded, and no link is followed.
"""

import argparse
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path, PurePosixPath

import msgspec

from controlplane.protocol import digests
from controlplane.protocol.readback import Verdict

MARKER = "COMMITTED.json"
MAX_MARKER_BYTES = 16 << 20
MAX_FILES = 100_000
MAX_DETAIL_CHARS = 500
CHUNK_BYTES = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    """One file of the marker: `name` relative to the checkpoint."""

    name: str
    bytes: int
    digest: str = ""
    blake2b: str = ""


class Marker(msgspec.Struct, frozen=True):
    """What of the marker is compared here."""

    job_id: str
    step: int
    epoch: int
    files: tuple[Entry, ...]


class Absent(ValueError):
    """The marker, or a file that it names, is not there; the text says which."""


def _nobody(read_bytes: int) -> None:
    """Hears how far it is."""


def verify_directory(
    path: str, *, name: str, job_id: str, step: int, epoch: int, tell: Callable[[int], None] = _nobody
) -> Verdict:
    """Of the checkpoint at `path`, called `name` for people. `tell` hears after each chunk how many
    bytes were read. Never raises: what is missing or differs is a fault of the checkpoint, what the
    disk does not give is not."""
    directory = Path(path)
    try:
        if not directory.is_dir():
            return Verdict(ok=None, detail=f"{name} is not visible from here")
        marker = _read(directory)
        fault = _identity(marker, job_id, step, epoch) or _files(directory, marker.files, tell)
    except digests.UnknownDigest as error:
        return Verdict(ok=None, detail=str(error))
    except Absent as error:
        return Verdict(ok=False, detail=str(error), absent=True)
    except OSError as error:
        return Verdict(ok=None, detail=f"it cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return Verdict(ok=False, detail=f"the marker cannot be read: {error}")
    if fault:
        return Verdict(ok=False, detail=fault)
    return Verdict(ok=True, detail=f"{len(marker.files)} files read back equal")


def _read(directory: Path) -> Marker:
    try:
        descriptor = _open(directory, MARKER)
    except FileNotFoundError as error:
        raise Absent("the marker cannot be read: there is none, the save was broken off") from error
    with open(descriptor, "rb") as file:
        content = file.read(MAX_MARKER_BYTES + 1)
    if len(content) > MAX_MARKER_BYTES:
        raise ValueError(f"it has more than {MAX_MARKER_BYTES} bytes")
    marker = msgspec.json.decode(content, type=Marker)
    if not 0 < len(marker.files) <= MAX_FILES:
        raise ValueError(f"it names {len(marker.files)} files")
    return marker


def _open(directory: Path, name: str) -> int:
    """A plain file at or below `directory`, no link on the way. Raises OSError, ValueError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ValueError(f"{name!r} lies outside of the checkpoint")
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, part in enumerate(path.parts, start=1):
            # Without O_NONBLOCK a named pipe would be waited for.
            kind = os.O_NONBLOCK if number == len(path.parts) else os.O_DIRECTORY
            try:
                below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise ValueError(f"{name} is a link, and is not followed") from error
            os.close(folder)
            folder = below
        if not stat.S_ISREG(os.fstat(folder).st_mode):
            raise ValueError(f"{name} is no plain file")
    except BaseException:
        os.close(folder)
        raise
    return folder


def _identity(marker: Marker, job_id: str, step: int, epoch: int) -> str:
    wanted = {"job_id": job_id, "step": step, "epoch": epoch}
    for name, value in wanted.items():
        if (said := getattr(marker, name)) != value:
            return f"the marker says {name} {said!r}, {value!r} was reported"
    return ""


def _files(directory: Path, files: tuple[Entry, ...], tell: Callable[[int], None]) -> str:
    """The first fault found, or nothing. Raises Absent."""
    before = 0
    for expected in files:
        try:
            descriptor = _open(directory, expected.name)
        except FileNotFoundError as error:
            raise Absent(f"{expected.name} is missing") from error
        except ValueError as error:
            return str(error)
        with open(descriptor, "rb", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            if size != expected.bytes:
                return f"{expected.name} has {size} bytes, {expected.bytes} were committed"
            if not digests.matches(digests.committed(expected.digest, expected.blake2b), _chunks(file, before, tell)):
                return f"{expected.name} has another digest than was committed"
        before += size
    return ""


def _chunks(file: FileIO, before: int, tell: Callable[[int], None]) -> Iterator[bytes]:
    """`before`: bytes read of other files."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
        before += len(chunk)
        tell(before)


def main() -> None:
    """Writes the verdict as JSON."""
    parser = argparse.ArgumentParser(description="Reads a checkpoint's files back and compares their digests.")
    for option in ("--path", "--name", "--job-id", "--out"):
        parser.add_argument(option, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    began_s = time.monotonic()
    verdict = verify_directory(
        options.path, name=options.name, job_id=options.job_id, step=options.step, epoch=options.epoch
    )
    timed = msgspec.structs.replace(verdict, took_s=time.monotonic() - began_s)
    Path(options.out).write_bytes(msgspec.json.encode(timed))


if __name__ == "__main__":
    main()
