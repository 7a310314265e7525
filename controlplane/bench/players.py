"""The processes of the load generator, as seen by who starts them."""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from controlplane.bench.generator import Line, Task
from controlplane.bench.stack import REPOSITORY
from controlplane.bench.tally import Counted

END_S = 10.0


class GeneratorError(RuntimeError):
    """A process of the generator failed; the text says why."""


class Player:
    """One process. `newest`: what it said last of where it stands."""

    def __init__(self) -> None:
        argv = (sys.executable, "-m", "controlplane.bench.generator")
        # Ctrl-C is for who started it; it ends when its stdin does.
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd=REPOSITORY
        )
        self.newest = Line()
        self._done: queue.Queue[Line] = queue.Queue()
        self._failed = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, task: Task) -> None:
        """What it is to play. Raises GeneratorError."""
        self._write(msgspec.json.encode(task))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def say(self, word: str, at_s: float | None = None) -> None:
        """One word of `generator`. Raises GeneratorError."""
        self._write(word.encode() if at_s is None else f"{word} {at_s:.6f}".encode())

    def wait_done(self, word: str, timeout_s: float) -> Line:
        """Its answer to this word. Raises GeneratorError."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            self.check()
            try:
                line = self._done.get(timeout=0.2)
            except queue.Empty:
                continue
            if line.done == word:
                return line
        raise GeneratorError(f"a generator did not answer {word!r} within {timeout_s:.0f} s")

    def check(self) -> None:
        """Raises GeneratorError where it has failed or ended."""
        if self._failed:
            raise GeneratorError(self._failed)
        if self._process.poll() is not None and not self._reader.is_alive():
            raise GeneratorError(f"a generator ended with {self._process.returncode}")

    def close(self) -> None:
        """The end of its stdin is its end; a kill where it does not take it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None, "opened with a pipe"
        try:
            self._process.stdin.write(data + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise GeneratorError(f"a generator is gone: {error}") from error

    def _read(self) -> None:
        assert self._process.stdout is not None, "opened with a pipe"
        for raw in self._process.stdout:
            line = msgspec.json.decode(raw, type=Line)
            if line.failed:
                self._failed = line.failed
            elif line.done:
                self._done.put(line)
            else:
                self.newest = line


class Players:
    """All of them; a context that ends them."""

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks
        self._players: list[Player] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Players":
        with contextlib.ExitStack() as stack:
            for task in self._tasks:
                player = Player()
                stack.callback(player.close)
                player.begin(task)
                self._players.append(player)
            # Up to here whoever was started is ended where the next one cannot be.
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def pids(self) -> dict[str, int]:
        """By name."""
        return {f"generator-{number}": player.pid for number, player in enumerate(self._players, 1)}

    def say(self, word: str, at_s: float | None = None) -> None:
        """To each."""
        for player in self._players:
            player.say(word, at_s)

    def all_done(self, word: str, timeout_s: float) -> list[Counted]:
        """What all of them counted by then."""
        lines = [player.wait_done(word, timeout_s) for player in self._players]
        return [line.whole for line in lines if line.whole is not None]

    def sum(self, what: Callable[[Line], int]) -> int:
        """Over where they stand."""
        for player in self._players:
            player.check()
        return sum(what(player.newest) for player in self._players)
