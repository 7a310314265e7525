"""Logs of ranks and hosts: where they are, their tails, and their cap.

Names are built from checked parts alone; what is inside is untrusted text and is
stripped of control characters before it travels. A log is made by the agent, in a directory
of its own, and given to the job's user: no link can stand in its place.
"""

import contextlib
import os
import re
from pathlib import Path

from agents.errors import LaunchError
from agents.ranks.files import open_regular
from agents.ranks.places import Place
from controlplane.protocol.launch import RankRef
from controlplane.protocol.store_keys import without_tokens

TAIL_BYTES = 4_000
MAX_LOG_BYTES = 64 * 1024 * 1024
_KEPT_BYTES = 1024 * 1024
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class LogFiles:
    """Paths under `<jobs>/logs/<job>/`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def rank(self, ref: RankRef) -> Path:
        """One file per life of a rank."""
        name = f"a{ref.attempt}-r{ref.replica}-i{ref.incarnation}-k{ref.rank}.log"
        return self._job(ref.job_id) / name

    def host(self, job_id: str) -> Path:
        """One file per job, appended to by every host of it."""
        return self._job(job_id) / "host.log"

    def create(self, path: Path, place: Place) -> int:
        """The log, open for appending, as a file of the job's user; the caller closes it. Raises
        LaunchError."""
        try:
            if place.separate:
                # Everybody may pass through; the log itself is its user's alone.
                path.parent.chmod(0o711)
            descriptor = open_regular(path, flags=os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            if place.separate:
                os.fchown(descriptor, place.uid, place.gid)
        except OSError as error:
            raise LaunchError(f"cannot open the log {path}: {error.strerror or error}") from error
        return descriptor

    def cap(self, max_bytes: int = MAX_LOG_BYTES) -> list[Path]:
        """Cut every longer file down to its tail (writers append, so they go on); the cut ones."""
        cut = []
        for path in sorted(self._directory.glob("*/*.log")):
            with contextlib.suppress(OSError):
                if path.stat(follow_symlinks=False).st_size > max_bytes:
                    _cut(path, max_bytes)
                    cut.append(path)
        return cut

    def append(self, ref: RankRef, line: str) -> None:
        """A line of the agent's own for whoever reads the rank's log; without one, nothing."""
        flags = os.O_WRONLY | os.O_APPEND
        with contextlib.suppress(OSError), open(open_regular(self.rank(ref), flags=flags), "ab") as file:
            file.write(f"[{printable(line)}]\n".encode("utf-8", "replace"))

    def _job(self, job_id: str) -> Path:
        directory = self._directory / _UNSAFE.sub("_", job_id).lstrip(".")[:100]
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return directory


def _cut(path: Path, max_bytes: int) -> None:
    kept = read_tail_bytes(path, min(_KEPT_BYTES, max_bytes // 2))
    with open(open_regular(path, flags=os.O_RDWR), "r+b") as file:
        file.truncate(0)
        file.write(b"[earlier lines were cut: the log had reached its limit]\n" + kept)


def read_tail_bytes(path: Path, count: int) -> bytes:
    """The last bytes of a file; empty if it cannot be read."""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - count, 0))
            return file.read(count)
    except OSError:
        return b""


def tail(path: Path, count: int = TAIL_BYTES) -> str:
    """The last lines as printable text, whole lines only where there is more than one."""
    data = read_tail_bytes(path, count)
    if len(data) == count and b"\n" in data:
        data = data.partition(b"\n")[2]
    return printable(data.decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Without terminal escapes, control characters and the job's secret at the store; newlines
    and tabs stay."""
    return without_tokens(_CONTROL.sub("", text))
