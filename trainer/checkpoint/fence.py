"""The checkpoint fence: an older epoch may not commit.

`<dir>/FENCE/` holds one small file per (attempt, epoch) that was installed; the fence is
the greatest of them. Creating a file is atomic and two writers cannot lower it, which a
file holding one number could be. A rank raises it while it enters an epoch, and waits for that
before it commits a step there; the committer compares just before it writes the marker. The
same on an object store.
"""

import re
import sys
import threading
import time

from trainer.checkpoint.storage import Place, storage_at

FENCE = "FENCE"
RAISE_TIMEOUT_S = 0.5
_NAME = re.compile(r"^a(\d+)-e(\d+)$")


class Fence:
    """Fence of one checkpoint directory."""

    def __init__(self, root: Place) -> None:
        self._root = root
        self._folder = storage_at(root).child(FENCE)
        self._raiser: threading.Thread | None = None
        self._until_s = 0.0
        self._writing = threading.Lock()

    def raise_to(self, attempt: int, epoch: int) -> None:
        """Begin to raise it to at least (attempt, epoch); a view change does not wait for a disk."""
        self._until_s = time.monotonic() + RAISE_TIMEOUT_S
        self._raiser = threading.Thread(target=self._raise, args=(attempt, epoch), name="fence", daemon=True)
        self._raiser.start()

    def wait_raised(self) -> None:
        """Until what was begun last is done; a hung file system holds up nobody for more than
        `RAISE_TIMEOUT_S`."""
        if self._raiser is not None:
            self._raiser.join(max(0.0, self._until_s - time.monotonic()))
            self._raiser = None

    def current(self) -> tuple[int, int]:
        """(attempt, epoch); (0, 0) when never raised. Raises OSError."""
        return max((number for name in self._folder.files() if (number := _parse(name))), default=(0, 0))

    def allows(self, attempt: int, epoch: int) -> bool:
        """True when nothing newer was installed. Raises OSError."""
        return (attempt, epoch) >= self.current()

    def raise_now(self, attempt: int, epoch: int) -> None:
        """At least (attempt, epoch), here and now. Raises OSError."""
        with self._writing:  # Two writers of one process would share a temporary file.
            if self.current() >= (attempt, epoch):
                return
            self._folder.write(f"a{attempt}-e{epoch}", b"fence")
            for name in self._folder.files():
                number = _parse(name)
                if number and number < (attempt, epoch):
                    self._folder.remove(name)

    def _raise(self, attempt: int, epoch: int) -> None:
        try:
            self.raise_now(attempt, epoch)
        except OSError as error:
            # Training goes on; a save meets the same file system and fails by itself.
            print(f"no checkpoint fence at {self._root}: {error}", file=sys.stderr, flush=True)


def _parse(name: str) -> tuple[int, int] | None:
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None
