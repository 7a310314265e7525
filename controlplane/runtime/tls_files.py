"""The certificate files of HOLDFAST_TLS_CERTIFICATE, read at the start and whenever they change.

Called by the settings, which refuse to start with a file that is none, and once a session in a
thread. Never reads a private key: what follows the first certificate of a file is not looked at.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.runtime import channel
from controlplane.runtime.logs import get

MAX_BYTES = 1 << 20
_log = get(__name__)
Stamp = tuple[int, int, int]


def parse_paths(text: str) -> tuple[Path, ...]:
    """The value of HOLDFAST_TLS_CERTIFICATE: files separated by os.pathsep (a colon), each read once
    to see that it can be. Raises ValueError naming the one that cannot."""
    if not text:
        return ()
    paths = tuple(Path(part).absolute() for part in map(str.strip, text.split(os.pathsep)) if part)
    if not paths:
        raise ValueError(f"{channel.SETTING}: {text!r} names no file; leave it empty to require no TLS certificate")
    for path in paths:
        read(path)
    return paths


def read(path: Path) -> str:
    """The fingerprint of the first certificate in it. Raises ValueError that says what to do."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as error:
        raise ValueError(
            f"{channel.SETTING}: {path} cannot be read ({error.strerror}). A certificate is no secret: put a copy"
            " where the user of the services may read it, or set it to nothing to require none"
        ) from error
    try:
        return channel.fingerprint(data)
    except ValueError as error:
        raise ValueError(
            f"{channel.SETTING}: {path} has no certificate in PEM; name the file that the proxy shows, its own"
            " certificate first"
        ) from error


class ShownCertificates:
    """What the proxy in front of this process shows, as far as the files tell. Of several threads."""

    def __init__(self, paths: Sequence[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.required = bool(paths)
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[Path, channel.Held] = {}
        self._stamps: dict[Path, Stamp] = {}
        self._faults: dict[Path, str] = {}
        for path in paths:
            self._stamps[path] = _stamp(path)
            self._held[path] = channel.renewed(None, read(path), clock())

    def good(self) -> frozenset[str]:
        """The fingerprints that a proof may have now. A stat for each file; reads those that changed.
        One that cannot be read (it is being written, it was moved) stays as it was last read, and is
        tried again with the next session. Blocking."""
        with self._lock:
            for path in self._held:
                self._look(path)
            return channel.good(self._held.values(), self._clock())

    def _look(self, path: Path) -> None:
        try:
            stamp = _stamp(path)
            if stamp == self._stamps[path]:
                return
            held = channel.renewed(self._held[path], read(path), self._clock())
        except (OSError, ValueError) as error:
            if self._faults.get(path) != str(error):
                self._faults[path] = str(error)
                _log.warning("the file of the TLS certificate cannot be read: its last one stays", error=str(error))
            return
        # The stamp is from before the reading: what was written in between is seen the next time.
        self._stamps[path] = stamp
        self._faults.pop(path, None)
        if held is not self._held[path]:
            self._held[path] = held
            _log.info("the TLS certificate was renewed", path=str(path), sha256=held.current)


def _stamp(path: Path) -> Stamp:
    """Changes when the file does. Raises OSError."""
    now = os.stat(path)
    return now.st_mtime_ns, now.st_size, now.st_ino
