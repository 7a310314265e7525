"""One API for where checkpoints lie: a directory, or a prefix of an object store.

`storage_at` takes a path or an s3://, gs:// (any fsspec) address and gives a `Storage`;
manifest, fence, retention, saver and loader know nothing else. Names are relative, with
`/`. A directory renames into place and syncs; an object store's PUT is atomic by itself.
All methods raise OSError; a missing name is FileNotFoundError.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

SCHEME = "://"


class Reader(Protocol):
    """One file, front to back."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, all that are left where `size` is negative."""
        ...


class Storage(Protocol):
    """A place with named files in it."""

    @property
    def name(self) -> str:
        """Last part of the address."""
        ...

    def child(self, name: str) -> "Storage":
        """The place below this one."""
        ...

    def folders(self) -> list[str]:
        """Names of the places right below, [] where nothing is."""
        ...

    def files(self) -> dict[str, int]:
        """Relative name -> bytes of every file below, {} where nothing is."""
        ...

    def size(self, name: str) -> int:
        """Bytes of one file."""
        ...

    def open(self, name: str) -> contextlib.AbstractContextManager[Reader]:
        """One file, to be read in chunks."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes of one file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """All or nothing, and durable; makes what lies above."""
        ...

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file here."""
        ...

    def download(self, name: str, target: Path) -> None:
        """Copy one file to a local path whose directory exists."""
        ...

    def remove(self, name: str) -> None:
        """One file; nothing where it is gone already."""
        ...

    def remove_all(self) -> None:
        """Everything below, best effort."""
        ...


Place = Path | str | Storage
"""What callers may say: a path, an address, or a storage."""


def storage_at(place: Place) -> Storage:
    """Raises ValueError for an address whose driver is not installed."""
    if isinstance(place, Path) or (isinstance(place, str) and SCHEME not in place):
        return LocalStorage(Path(place))
    if isinstance(place, str):
        # Imported late: a job on a file system needs no object store's driver.
        from trainer.checkpoint.objects import ObjectStorage

        return ObjectStorage(place)
    return place


def is_remote(place: str) -> bool:
    """True for an object store's address."""
    return SCHEME in place


@dataclass(frozen=True)
class LocalStorage:
    """A directory."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def child(self, name: str) -> "LocalStorage":
        return LocalStorage(self.path / name)

    def folders(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir() if path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> dict[str, int]:
        found = {}
        for path in sorted(self.path.rglob("*")):
            with contextlib.suppress(FileNotFoundError):  # Gone since it was listed.
                if path.is_file():
                    found[str(path.relative_to(self.path))] = path.stat().st_size
        return found

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def open(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def read(self, name: str, limit: int) -> bytes:
        with self.open(name) as file:
            return file.read(limit)

    def write(self, name: str, data: bytes) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync(target.parent)

    def upload(self, source: Path, name: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def download(self, name: str, target: Path) -> None:
        shutil.copyfile(self.path / name, target)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
