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

from trainer.exits import ExitCode
from trainer.hooks.run import Run
from trainer.hooks.tracker import Tracker


class Framework:
    """A `with` around a framework's `pretrain`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.entered = self.began = False
        self._tracker: Tracker | None = None

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """It came to its end, or leaves: tell its last save and how it ended. SystemExit without
        a code becomes 15, or 14 without a save; before the first step of a life that resumes it
        becomes 74, as the frameworks end so when they cannot load. Any other end speaks for itself."""
        if error is not None and not isinstance(error, SystemExit):
            return
        code = error.code if error is not None else None
        left = error is not None and not code
        if left and not self.began:
            if self.run.resume is not None:
                say(f"it ended before its first step: it did not load {self.run.resume.path}")
                raise SystemExit(int(ExitCode.RESUME_FAILED)) from None
            return
        if left:
            self.run.leave()
        self.tell_of_save()
        if code:  # The framework's own.
            self.run.settle()
            return
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


def at_interval(save_interval: int | None, step: int) -> bool:
    """The framework saves by itself at `step`, which answers an order too: two asynchronous
    saves may not write one directory."""
    return save_interval is not None and save_interval > 0 and step % save_interval == 0


def say(text: str) -> None:
    """Into the rank's log."""
    print(f"holdfast hooks: {text}", file=sys.stderr, flush=True)
