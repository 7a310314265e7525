"""Logs of ranks and hosts: where they are, their tails, and their cap.

Names are built from checked parts alone; what is inside is untrusted text and is
stripped of control characters before it travels.
"""

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from controlplane.protocol.launch import RankRef
from controlplane.protocol.store_keys import without_tokens

TAIL_BYTES = 4_000
MAX_LOG_BYTES = 64 * 1024 * 1024
_KEPT_BYTES = 1024 * 1024
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class LogFiles:
    """Paths under `<state>/logs/<job>/`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def rank(self, ref: RankRef) -> Path:
        """One file per life of a rank."""
        name = f"a{ref.attempt}-r{ref.replica}-i{ref.incarnation}-k{ref.rank}.log"
        return self._job(ref.job_id) / name

    def host(self, job_id: str) -> Path:
        """One file per job, appended to by every host of it."""
        return self._job(job_id) / "host.log"

    def cap(self, max_bytes: int = MAX_LOG_BYTES) -> list[Path]:
        """Cut every longer file down to its tail (writers append, so they go on); the cut ones."""
        cut = []
        for path in sorted(self._directory.glob("*/*.log")):
            with contextlib.suppress(OSError):
                if path.lstat().st_size > max_bytes:
                    kept = read_tail_bytes(path, min(_KEPT_BYTES, max_bytes // 2))
                    with open_log(path, os.O_RDWR) as file:
                        file.truncate(0)
                        file.write(b"[earlier lines were cut: the log had reached its limit]\n" + kept)
                    cut.append(path)
        return cut

    def append(self, ref: RankRef, line: str) -> None:
        """A line of the agent's own for whoever reads the rank's log; without one, nothing."""
        with contextlib.suppress(OSError), open_log(self.rank(ref), os.O_WRONLY | os.O_APPEND) as file:
            file.write(f"[{printable(line)}]\n".encode("utf-8", "replace"))

    def _job(self, job_id: str) -> Path:
        directory = self._directory / _UNSAFE.sub("_", job_id).lstrip(".")[:100]
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return directory


def open_log(path: Path, flags: int) -> BinaryIO:
    """A file that ranks write, or could have put something else in the place of: opened only if
    it is a file, never through a link, and never waiting for anybody. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return os.fdopen(descriptor, "rb+" if flags & os.O_RDWR else "ab" if flags & os.O_APPEND else "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_tail_bytes(path: Path, count: int) -> bytes:
    """The last bytes of a file; empty if it cannot be read."""
    try:
        with open_log(path, os.O_RDONLY) as file:
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
