"""Starting, naming and ending processes from a benchmark. Only ends what it started."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[1]
STOP_GRACE_S = 5.0
PR_SET_PDEATHSIG = 1
ORPHANED = 75
STORE_KEY = b"the store's key in benchmarks, 32 bytes or more"


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat: (pid, ticks) names one process for ever. None: gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def signal_exactly(pid: int, ticks: int, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone (the pid may be somebody else's)."""
    if start_ticks(pid) != ticks:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def die_with_parent(parent: int | None = None) -> None:
    """Called in a rank: the kernel kills it, stopped or not, when the thread that started it
    dies. A fork names its `parent`, which may have died before this."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(ORPHANED)


@contextlib.contextmanager
def rendezvous_store() -> Iterator[str]:
    """HOST:PORT of a store that ends with the block, or with who started it. Its key: STORE_KEY."""
    with tempfile.NamedTemporaryFile() as key_file:
        key_file.write(STORE_KEY)
        key_file.flush()
        argv = [sys.executable, "-m", "trainer.store", "--port", "0", "--key-file", key_file.name]
        store = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        try:
            assert store.stdout is not None
            yield store.stdout.readline().split()[-1]
        finally:
            store.kill()
            store.wait()


class Processes:
    """The children of one benchmark, each in a session of its own; all end with the block."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=STOP_GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """Start `argv` in the repository; output goes to `<name>.log`. Returns the pid."""
        assert name not in self._children, f"{name} is started already"
        with (self._logs / f"{name}.log").open("ab") as output:
            child = subprocess.Popen(
                argv, env=dict(os.environ) | dict(env), cwd=REPOSITORY, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._children[name] = child
        return child.pid

    def ended(self) -> list[str]:
        """Names of children that are not running any more."""
        return [name for name, child in self._children.items() if child.poll() is not None]

    def tail(self, name: str, *, size: int = 2000) -> str:
        """End of a child's output."""
        return (self._logs / f"{name}.log").read_text(errors="replace")[-size:]
