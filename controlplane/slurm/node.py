"""What `srun` starts on each node of an allocation: keeps the node's agent running, and ends with it.

`python -m controlplane.slurm.node`. An agent that dies is started again and adopts its ranks, as the death of the task
would end them. SIGTERM and SIGUSR1 are passed on: they are the end of the allocation, and the agent leaves by itself
within the grace (`agents.core.outer_end`). An agent that dies meanwhile is started again with the time that is left.
The exit code is the agent's; codes that starting again would not change end the task too.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from controlplane.slurm import places
from controlplane.slurm.environment import Allocation, NoAllocation, read

ENDS = (signal.SIGTERM, signal.SIGUSR1)
FINAL = frozenset({0, 2, 3, 4})
"""The agent's own: done, wrong settings, locked, enrolment refused (`agents.main`)."""
NOT_STARTED = 1
FIRST_DELAY_S, MAX_DELAY_S, STABLE_S = 1.0, 30.0, 60.0
MIN_GRACE_S, POLL_S = 1.0, 0.1
FILES_TIMEOUT_S = 60.0


class Keeper:
    """One agent at a time. `argv` makes its command line for a grace in seconds."""

    def __init__(self, argv: Callable[[float], Sequence[str]], *, grace_s: float) -> None:
        self._argv, self._grace_s = argv, grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: tuple[signal.Signals, float] | None = None

    def listen(self) -> None:
        """From now on the signals are passed on."""
        for number in ENDS:
            signal.signal(number, self._on_signal)

    @property
    def asked(self) -> bool:
        """The end of the allocation has been announced."""
        return self._asked is not None

    def keep(self) -> int:
        """Until the agent ends for good; its exit code, or 128 and the signal that ended it."""
        delay_s = FIRST_DELAY_S
        while True:
            began_s = time.monotonic()
            code = self._run()
            if time.monotonic() - began_s > STABLE_S:
                delay_s = FIRST_DELAY_S
            if not self._is_final(code) and not self._is_over():
                self._wait(delay_s, f"the agent ended with {code}")
                delay_s = min(delay_s * 2, MAX_DELAY_S)
            if self._is_final(code) or self._is_over():
                return code if code >= 0 else 128 - code

    def _is_final(self, code: int) -> bool:
        """Another start would not change it."""
        return code in FINAL

    def leave(self) -> None:
        """As if the signal of the end had come; from any thread."""
        self._on_signal(signal.SIGTERM, None)

    def _run(self) -> int:
        """A signal that comes before the agent listens waits for it: it begins with both blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            try:
                self._child = subprocess.Popen(list(self._argv(self._left_s())), stdin=subprocess.DEVNULL)
            except OSError as error:
                print(f"the agent cannot be started: {error}", file=sys.stderr, flush=True)
                return NOT_STARTED
            if self._asked is not None:
                self._child.send_signal(self._asked[0])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = self._child.wait()
        self._child = None
        return code

    def _left_s(self) -> float:
        passed_s = time.monotonic() - self._asked[1] if self._asked is not None else 0.0
        return max(MIN_GRACE_S, self._grace_s - passed_s)

    def _is_over(self) -> bool:
        return self._asked is not None and time.monotonic() - self._asked[1] >= self._grace_s

    def _wait(self, delay_s: float, why: str) -> None:
        """The first delay at most where the end is or becomes known: ranks may wait for who saves them."""
        if self.asked:
            delay_s = FIRST_DELAY_S
        print(f"{why}; it is started again in {delay_s:.0f} s", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        while time.monotonic() - began_s < (FIRST_DELAY_S if self.asked else delay_s):
            time.sleep(POLL_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked = (signal.Signals(number), time.monotonic())
        # Read once: another thread may ask, and the child end meanwhile.
        if (child := self._child) is not None:
            child.send_signal(number)


def agent_argv(
    options: argparse.Namespace, here: Allocation, *, folder: Path, grace_s: float, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """The agent of this node, of which all that it keeps lies in `folder` but for what `more` says."""
    pinned = ("--tls-ca-file", options.tls_ca_file) if options.tls_ca_file else ()
    near = ("--segment", here.segment) if here.segment else ()
    return (
        sys.executable, "-m", "agents", "--server", options.server, *pinned,
        "--join-token-file", options.join_token_file, "--name", here.name + options.suffix, *more,
        "--state-dir", str(folder / "a"),
        "--probe", options.probe, "--devices", str(options.devices), "--metrics-bind", "off",
        "--tenancy", "allocation", "--grace-s", f"{grace_s:g}", "--owners", options.owners, *near,
    )  # fmt: skip


def parser_of(program: str, description: str) -> argparse.ArgumentParser:
    """With the options of whoever keeps an agent in an allocation."""
    parser = argparse.ArgumentParser(prog=f"python -m controlplane.slurm.{program}", description=description)
    parser.add_argument("--server", required=True, help="wss:// URL of the control plane")
    parser.add_argument("--join-token-file", required=True)
    parser.add_argument("--tls-ca-file", default="")
    parser.add_argument("--directory", type=Path, required=True, help="of the allocation, which all nodes see")
    parser.add_argument("--probe", default="nvml")
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--owners", required=True, help="accounts whose jobs may run as this user, by commas; *: all")
    parser.add_argument("--suffix", default="", help="of the node's name, where the server knows other allocations too")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options that `guest` gives."""
    return parser_of("node", "A node of an allocation.").parse_args(argv)


def enter(here: Allocation, part: str) -> tuple[Path, int]:
    """`places.hold` of this allocation, after what killed ones left here has gone. Raises PlaceError."""
    for left in places.sweep(here.job):
        print(f"removed {left}, which an allocation that was killed has left", file=sys.stderr, flush=True)
    return places.hold(here.job, part)


def leave(folder: Path, kept: Path) -> None:
    """Of an agent's `folder` the logs of its jobs are kept, and nothing else: key and journal go first."""
    logs = [jobs / "logs" for jobs in (folder / "a" / "jobs", folder / "a-jobs")]
    places.strip(folder, logs)
    for each in logs:
        places.keep_logs(each, kept)
    places.forget(folder)


def main(argv: Sequence[str]) -> int:
    """The exit code of the task."""
    options = parse(argv)
    try:
        here = read()
        folder, held = enter(here, here.index)
    except (NoAllocation, places.PlaceError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 2
    keeper = Keeper(lambda left_s: agent_argv(options, here, folder=folder, grace_s=left_s), grace_s=options.grace_s)
    keeper.listen()
    try:
        files = [Path(name) for name in (options.join_token_file, options.tls_ca_file) if name]
        _await_files(files, stopped=lambda: keeper.asked)
        # Where the end came first there is nothing to end.
        return 0 if keeper.asked else keeper.keep()
    finally:
        leave(folder, options.directory / "logs" / here.node)
        os.close(held)


def _await_files(paths: Iterable[Path], *, stopped: Callable[[], bool]) -> None:
    """A file that another node has just written may take a moment to be seen on a network's file system."""
    until_s = time.monotonic() + FILES_TIMEOUT_S
    for path in paths:
        while not path.exists() and time.monotonic() < until_s and not stopped():
            time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
