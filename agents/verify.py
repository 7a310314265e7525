"""Reads a checkpoint back on this node: one process at a time, with limits, told as it goes.

Called by the runtime for the effects `ReadCheckpoint` and `StopReading`. The program is
`controlplane.checkpoints.reading`, the very code that the server runs where it sees the bytes, and runs
as the job's owner where this agent is root. It is watched from a thread of its own, for a storage may
hold its reader for ever: such a reader is given up at its limit, and no second one is begun beside it.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from agents.core.effects import ReadCheckpoint, StopReading
from agents.core.events import CheckpointProgress, CheckpointRead, Event
from agents.errors import LaunchError
from agents.ranks.launch import Standing, clean_environment, start
from controlplane.protocol.bounds import fitted
from controlplane.protocol.commands import VerifyCheckpoint

MODULE = "controlplane.checkpoints.reading"
TELL_EVERY_S = 15.0
POLL_S = 0.5
REAP_S = 2.0
MAX_LINE_BYTES = 1 << 16
MAX_VERDICT_CHARS = 3_900
MAX_WORDS_CHARS = 300


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """Of the reader: progress, or (`detail` is there) the verdict."""

    read_bytes: int | None = None
    detail: str | None = None


class Verifier:
    """One for the node. `standing` says as whom an owner's processes start."""

    def __init__(
        self,
        dispatch: Callable[[Event], None],
        standing: Callable[[str], Standing],
        *,
        tell_every_s: float = TELL_EVERY_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self._standing = standing
        self._tell_every_s = tell_every_s
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._command_id = ""

    def perform(self, effect: ReadCheckpoint | StopReading) -> None:
        """Begin, or end what was begun. Never waits."""
        if isinstance(effect, StopReading):
            if effect.command_id == self._command_id:
                self._stop.set()
            return
        self._stop = threading.Event()
        self._command_id = effect.command_id
        arguments = (effect.command_id, effect.wanted, self._stop)
        threading.Thread(target=self._run, args=arguments, name="checkpoint-reader", daemon=True).start()

    def close(self) -> None:
        """The agent ends, and what it reads with it."""
        self._stop.set()
        if self._process is not None:
            _kill(self._process)

    def _run(self, command_id: str, wanted: VerifyCheckpoint, stop: threading.Event) -> None:
        verdict = error = ""
        try:
            verdict = self._read(command_id, wanted, stop)
        except (LaunchError, OSError, ValueError) as raised:
            error = str(raised)
        self._tell(CheckpointRead(now_s=time.monotonic(), command_id=command_id, verdict=verdict, error=error))

    def _read(self, command_id: str, wanted: VerifyCheckpoint, stop: threading.Event) -> str:
        """The verdict. Raises LaunchError where there is none, OSError, ValueError."""
        if self._process is not None and self._process.poll() is None:
            raise LaunchError("an earlier reader still hangs in its storage here, and no second one is begun")
        standing = self._standing(wanted.user)
        ours, theirs = os.pipe()
        try:
            environment = clean_environment(os.environ, standing)
            self._process = start(_argv(wanted), environment, standing, stdout=theirs, stderr=theirs, cwd="/")
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            return self._follow(command_id, ours, stop, time.monotonic() + wanted.limit_s)
        finally:
            os.close(ours)
            _kill(self._process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # One that hangs in its storage is reaped by the next `poll`.
                self._process.wait(REAP_S)

    def _follow(self, command_id: str, lines: int, stop: threading.Event, until_s: float) -> str:
        waiting, words, told_s = b"", "", time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= until_s:
                raise LaunchError("no verdict within its limit: its storage gives too little, or nothing")
            if not select.select([lines], [], [], POLL_S)[0]:
                continue
            chunk = os.read(lines, MAX_LINE_BYTES)
            if not chunk:
                raise LaunchError(f"its reader ended without a verdict: {words or 'it says nothing'}")
            *whole, waiting = (waiting + chunk).split(b"\n")
            waiting = waiting[-MAX_LINE_BYTES:]
            for text in whole:
                line = _line(text)
                if line is None:
                    words = fitted(text.decode("utf-8", "replace").strip() or words, MAX_WORDS_CHARS)
                elif line.detail is not None:
                    return fitted(text.decode("utf-8", "replace"), MAX_VERDICT_CHARS)
                elif line.read_bytes is not None and time.monotonic() - told_s >= self._tell_every_s:
                    told_s = time.monotonic()
                    self._tell(CheckpointProgress(now_s=told_s, command_id=command_id, read_bytes=line.read_bytes))
        raise LaunchError("it was called off")

    def _tell(self, event: Event) -> None:
        # The loop is closed where the agent has ended meanwhile.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._dispatch, event)


def _argv(wanted: VerifyCheckpoint) -> tuple[str, ...]:
    """Without what the working directory or the user's own site could put in its way."""
    names = ("--path", wanted.path, "--job-id", wanted.job_id, "--step", str(wanted.step), "--epoch", str(wanted.epoch))
    return (sys.executable, "-P", "-s", "-m", MODULE, *names)


def _line(text: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It leads a session of its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
