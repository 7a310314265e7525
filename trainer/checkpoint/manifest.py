"""What makes a directory a checkpoint: `COMMITTED.json`, written last, names every file.

No torch, so that a process without it can verify, list and choose; a `Place` is a path
or an object store's address. A directory without the marker is not a checkpoint, whatever it holds.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from controlplane.protocol import digests
from controlplane.protocol.digests import DIGEST_BYTES
from controlplane.protocol.launch import TrainerConfig
from trainer.checkpoint.storage import Place, Storage, storage_at

MARKER = "COMMITTED.json"
LOCAL_SCHEME = "local:"
FORMAT = 2
READABLE = (1, FORMAT)
CHUNK_BYTES = 4 << 20
MAX_MARKER_BYTES = 16 << 20
_NAME = re.compile(r"^step_(\d{8,})-e(\d+)$")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`name` relative to the checkpoint's directory; `digest` as `protocol.digests` names it.
    Format 1 has a bare `blake2b` in its stead."""

    name: str
    bytes: int
    digest: str = ""
    blake2b: str = ""


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layout that wrote it; any other may load it."""

    tp: int
    pp: int
    replicas: int
    vp: int = 1
    cp: int = 1
    ep: int = 1
    replica_dp: int = 1


def layout_of(config: TrainerConfig) -> Layout:
    """Of every replica of the attempt."""
    asked = config.parallelism
    return Layout(
        tp=asked.tp,
        pp=asked.pp,
        replicas=config.replicas,
        vp=asked.vp,
        cp=asked.cp,
        ep=asked.ep,
        replica_dp=asked.replica_dp,
    )


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


def is_local(path: str) -> bool:
    """True for `local:step_00000120-e7`, a checkpoint on the nodes' own disks."""
    return path.startswith(LOCAL_SCHEME)


def describe_files(place: Place, *, only: Callable[[str], bool] = lambda name: True) -> tuple[FileEntry, ...]:
    """Size and digest of the files at `place` that `only` admits, the marker never. Raises OSError."""
    storage = storage_at(place)
    return tuple(
        FileEntry(name, size, digests.digest_of(_chunks(storage, name)))
        for name, size in sorted(storage.files().items())
        if only(name) and not name.startswith(MARKER)
    )


def write_marker(place: Place, manifest: Manifest) -> None:
    """Commit: durable, and all or nothing. Raises OSError."""
    storage_at(place).write(MARKER, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read_marker(place: Place) -> Manifest | None:
    """None when there is no marker, or what is there is none. Raises OSError where the storage
    does not say: that is no word about the checkpoint."""
    try:
        return msgspec.json.decode(storage_at(place).read(MARKER, MAX_MARKER_BYTES), type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def verify(place: Place, *, only: Callable[[int], bool] = lambda number: True) -> Verdict:
    """Read the files and compare them with the marker. `only` admits files by their number, so
    that several may share the work. A broken checkpoint is an answer; raises OSError for a storage
    that cannot be read, UnknownDigest for a digest that cannot be computed here."""
    storage = storage_at(place)
    manifest = read_marker(storage)
    if manifest is None:
        return Verdict(None, (f"{MARKER} is absent or no marker",))
    if manifest.format not in READABLE:
        return Verdict(manifest, (f"format {manifest.format} is none of {READABLE}",))
    mine = [entry for number, entry in enumerate(manifest.files) if only(number)]
    return Verdict(manifest, tuple(fault for entry in mine for fault in _check(storage, entry)))


def list_complete(root: Place) -> list[tuple[Storage, Manifest]]:
    """Committed checkpoints under `root`, newest (step, then epoch) first. Nothing is read but
    markers. Raises OSError."""
    storage = storage_at(root)
    found = []
    for name in storage.folders():
        if parse_name(name):
            manifest = read_marker(storage.child(name))
            if manifest is not None:
                found.append((storage.child(name), manifest))
    return sorted(found, key=lambda item: (item[1].step, item[1].epoch), reverse=True)


def newest_complete(root: Place) -> tuple[Storage, Manifest] | None:
    """The one to resume from, before any verification; None when there is none. Raises OSError."""
    complete = list_complete(root)
    return complete[0] if complete else None


def outside(content: Manifest) -> tuple[str, ...]:
    """A sentence for each name of a file that does not lie in the checkpoint."""
    return tuple(f"{entry.name}: outside the checkpoint" for entry in content.files if not _is_inside(entry.name))


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _check(storage: Storage, entry: FileEntry) -> Iterator[str]:
    if not _is_inside(entry.name):
        yield f"{entry.name}: outside the checkpoint"
        return
    try:
        size = storage.size(entry.name)
        if size != entry.bytes:
            yield f"{entry.name}: {size} bytes, not {entry.bytes}"
        elif not digests.matches(digests.committed(entry.digest, entry.blake2b), _chunks(storage, entry.name)):
            yield f"{entry.name}: content differs"
    except FileNotFoundError:
        yield f"{entry.name}: No such file"


def _chunks(storage: Storage, name: str) -> Iterator[bytes]:
    with storage.open(name) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
