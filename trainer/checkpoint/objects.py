"""A prefix of an object store as a `Storage`, through fsspec (s3fs, gcsfs).

Credentials come from the driver's own chain (environment, profile, role, process). Those
that know their end are asked again while they still have `EXPIRES_SOON_S`; a request that
the store refuses as expired is made once more with credentials read anew.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fsspec

EXPIRES_SOON_S = 300
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "400"})
"""The answer to a HEAD has no body that could say which: it is a bare 400."""
CHUNK_BYTES = 8 << 20
# One attempt by botocore: s3fs makes five of its own, with pauses between.
S3_OPTIONS: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 1, "mode": "standard"}}
}
Result = TypeVar("Result")


class ObjectStorage:
    """`address` is scheme://bucket/prefix. Raises ValueError when the driver is missing."""

    def __init__(self, address: str) -> None:
        self._scheme, _, self._prefix = address.rstrip("/").partition("://")
        self._fs = self._connect()

    def __str__(self) -> str:
        return f"{self._scheme}://{self._prefix}"

    @property
    def name(self) -> str:
        return self._prefix.rpartition("/")[2]

    def child(self, name: str) -> "ObjectStorage":
        below = object.__new__(ObjectStorage)
        below._scheme, below._prefix, below._fs = self._scheme, self._path(name), self._fs
        return below

    def folders(self) -> list[str]:
        try:
            entries = self._call(lambda fs: fs.ls(self._prefix, detail=True, refresh=True))
        except FileNotFoundError:
            return []
        return [str(entry["name"]).rpartition("/")[2] for entry in entries if entry["type"] == "directory"]

    def files(self) -> dict[str, int]:
        try:
            found = self._call(lambda fs: fs.find(self._prefix, detail=True, refresh=True))
        except FileNotFoundError:
            return {}
        return {name.removeprefix(f"{self._prefix}/"): int(entry["size"]) for name, entry in sorted(found.items())}

    def size(self, name: str) -> int:
        return int(self._call(lambda fs: fs.info(self._path(name), refresh=True)["size"]))

    def open(self, name: str) -> "_Reader":
        return _Reader(self._call, self._path(name))

    def read(self, name: str, limit: int) -> bytes:
        with self.open(name) as file:
            return file.read(limit)

    def write(self, name: str, data: bytes) -> None:
        self._call(lambda fs: fs.pipe_file(self._path(name), data))

    def upload(self, source: Path, name: str) -> None:
        self._call(lambda fs: fs.put_file(str(source), self._path(name)))

    def download(self, name: str, target: Path) -> None:
        self._call(lambda fs: fs.get_file(self._path(name), str(target)))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(lambda fs: fs.rm_file(self._path(name)))

    def remove_all(self) -> None:
        with contextlib.suppress(OSError):
            self._call(lambda fs: fs.rm(self._prefix, recursive=True))

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _call(self, operation: Callable[[Any], Result]) -> Result:
        """One operation; once more with fresh credentials when they have expired. Raises OSError."""
        if _expires_soon(self._fs):
            self._fs = self._connect()
        try:
            return operation(self._fs)
        except Exception as error:  # Drivers raise their client's own types; what is no OSError becomes one.
            if not is_expired(error):
                raise _as_os_error(error) from error
        self._fs = self._connect()
        try:
            return operation(self._fs)
        except Exception as error:
            raise _as_os_error(error) from error

    def _connect(self) -> Any:
        """A filesystem of its own, not fsspec's cached one: it reads the credentials when it is made."""
        options = S3_OPTIONS if self._scheme == "s3" else {}
        try:
            return fsspec.filesystem(self._scheme, skip_instance_cache=True, use_listings_cache=False, **options)
        except (ImportError, ValueError) as error:
            raise ValueError(f"{self._scheme}:// cannot be used here: {error}") from error


class _Reader:
    """One object, front to back; a request that is refused as expired is made once more from
    where it stood. `call` is its storage's."""

    def __init__(self, call: Callable[[Callable[[Any], Any]], Any], path: str) -> None:
        self._call, self._path = call, path
        self._fs: Any = None
        self._file: Any = None
        self._position = 0

    def __enter__(self) -> "_Reader":
        self._call(self._on)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._call(lambda fs: self._on(fs).read(size))
        self._position += len(data)
        return data

    def _on(self, fs: Any) -> Any:
        """The object as `fs` has it open, at the same place in it."""
        if fs is not self._fs:
            self._file = fs.open(self._path, "rb", block_size=CHUNK_BYTES, cache_type="readahead")
            self._file.seek(self._position)
            self._fs = fs
        return self._file


def is_expired(error: BaseException | None) -> bool:
    """The store's own error code, wherever in the chain of causes the driver has put it."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and response.get("Error", {}).get("Code") in EXPIRED:
            return True
        error = error.__cause__ or error.__context__
    return False


def _expires_soon(filesystem: Any) -> bool:
    """True when the credentials in use end within EXPIRES_SOON_S. Static ones do not say when."""
    client = getattr(filesystem, "_s3", None)
    signer = getattr(client, "_request_signer", None)
    needed = getattr(getattr(signer, "_credentials", None), "refresh_needed", None)
    return bool(needed(EXPIRES_SOON_S)) if needed is not None else False


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
