"""What Megatron-LM and Megatron-Bridge have in common: they save and leave by themselves.

Both end with sys.exit(0) when they leave early, and return when they have trained to the
end; so the program's end is told by a `with` around it. Saves are read off the tracker file
(`trainer.hooks.tracker`). One is told of when the next step begins or the program ends:
until then the framework may write the same directory a second time.
"""

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from trainer.hooks.run import Run
from trainer.hooks.tracker import Tracker


class Framework:
    """A `with` around a framework's `pretrain`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.entered = False
        self._tracker: Tracker | None = None

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """It came to its end, or leaves early: tell its last save and how it ended, which in
        the second case is SystemExit 15, or 14 without a save. Any other end speaks for itself."""
        left = isinstance(error, SystemExit) and not error.code
        if error is not None and not left:
            return
        if left:
            self.run.leave()
        self.tell_of_save()
        code = self.run.finish()
        if left and code:
            raise SystemExit(int(code)) from None

    def watch_saves(self, folder: Path | str | None) -> None:
        """From now on, what is written under `folder`; None: it does not save."""
        if folder and self.run.active:
            self._tracker = Tracker(folder)

    @property
    def watching(self) -> bool:
        """Saves are looked for."""
        return self._tracker is not None

    def tell_of_save(self) -> None:
        """Report the newest save, if there is one that was not told before."""
        news = self._tracker.news() if self._tracker is not None else None
        if news is not None:
            self.run.saved(news.path, step=news.step)


def say(text: str) -> None:
    """Into the rank's log."""
    print(f"holdfast hooks: {text}", file=sys.stderr, flush=True)
