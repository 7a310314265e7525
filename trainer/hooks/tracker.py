"""Which checkpoint Megatron-LM and Megatron-Bridge wrote last, by the file they keep of it.

Both write `latest_checkpointed_iteration.txt` beside `iter_0000120` and its like on rank 0,
when all ranks have written; for an asynchronous save, when it is durable.
"""

import os
from dataclasses import dataclass
from pathlib import Path

NAME = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True)
class Written:
    """A whole checkpoint of `step` committed steps in directory `path`."""

    path: Path
    step: int


class Tracker:
    """Of the checkpoints under `folder`; what is there already is no news."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._seen = self._read()

    def news(self) -> Written | None:
        """The newest checkpoint, if one was written since the last call or the beginning."""
        now, before = self._read(), self._seen
        if now is None or now == before:
            return None
        self._seen = now
        try:
            step = int(now[0])
        except ValueError:  # "release": converted weights, which no training wrote.
            return None
        return Written(self._folder / f"iter_{step:07d}", step)

    def _read(self) -> tuple[str, int] | None:
        """What it says, and when that was written: the same step may be saved twice. Opened
        each time, because a shared file system answers anew only then."""
        try:
            with open(self._folder / NAME) as file:
                return file.read().strip(), os.fstat(file.fileno()).st_mtime_ns
        except (OSError, ValueError):
            return None
