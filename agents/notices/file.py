"""A notice in a file that a provider's hook writes: `--notices file --notice-file PATH`.

The file is one JSON object: `{"leaves_in_s": 30, "reason": "..."}`, counted from when the file was written, or
`{"leaves_at": "2026-03-01T12:00:00Z", "reason": "..."}`. No file, an empty one, or `{}`: nothing is said. Write it
beside and rename it into place, so that nobody reads half of it. It is at most 4 KiB, a regular file and no link.
"""

import json
import os
import stat
from pathlib import Path

from agents.notices.base import MAX_BYTES, MAX_REASON_CHARS, Notice, NoticeError, moment

KEYS = frozenset({"leaves_in_s", "leaves_at", "reason"})


class FileNotices:
    """Looks at one path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, now_unix_s: float) -> Notice | None:
        """See the module. Raises NoticeError."""
        found = self._text()
        if found is None or not found[0].strip():
            return None
        text, written_s = found
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NoticeError(f"{self._path} is no JSON") from error
        if not isinstance(said, dict) or not said.keys() <= KEYS:
            raise NoticeError(f"{self._path} is no object with {', '.join(sorted(KEYS))} alone")
        if not said:
            return None
        reason = said.get("reason", "a file of its provider's hook")
        if not isinstance(reason, str) or not 0 < len(reason) <= MAX_REASON_CHARS or not reason.isprintable():
            raise NoticeError(f"the reason in {self._path} is no line of at most {MAX_REASON_CHARS} characters")
        if ("leaves_in_s" in said) is ("leaves_at" in said):
            raise NoticeError(f"{self._path} says leaves_in_s or leaves_at, one of them")
        if "leaves_at" in said:
            return Notice(at_unix_s=moment(said["leaves_at"]), reason=reason)
        left_s = said["leaves_in_s"]
        if isinstance(left_s, bool) or not isinstance(left_s, int | float) or not 0.0 <= left_s < float("inf"):
            raise NoticeError(f"leaves_in_s in {self._path} is no number of seconds")
        try:
            return Notice(at_unix_s=written_s + float(left_s), reason=reason)
        except OverflowError as error:
            raise NoticeError(f"leaves_in_s in {self._path} is no number of seconds") from error

    def _text(self) -> tuple[str, float] | None:
        """(what stands there, when it was written); None: there is no file."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NoticeError(f"{self._path} cannot be read: {error.strerror}") from error
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise NoticeError(f"{self._path} is no regular file")
            data = os.read(descriptor, MAX_BYTES + 1)
        except OSError as error:
            raise NoticeError(f"{self._path} cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)
        if len(data) > MAX_BYTES:
            raise NoticeError(f"{self._path} is over {MAX_BYTES} bytes")
        try:
            return data.decode("utf-8"), about.st_mtime
        except UnicodeDecodeError as error:
            raise NoticeError(f"{self._path} is no UTF-8") from error
