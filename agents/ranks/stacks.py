"""Where a process is, seen from outside: the best of four methods that works.

1. py-spy, if it is installed. 2. SIGUSR2, if the process catches it (the trainer's
faulthandler writes all stacks to its log; a process that does not catch it would die).
3. The kernel's view of every thread. A stopped process answers no signal, so for it only
1 and 3 are tried. Blocking: call it in a thread.
"""

import shutil
import signal
import subprocess
import time
from pathlib import Path

from agents.core.state import Identity
from agents.ranks.identity import is_alive, read_stat, signal_process
from agents.ranks.logs import printable, read_tail_bytes
from controlplane.protocol.diagnostics import NOT_GOT

_PY_SPY_TIMEOUT_S = 10.0
_DUMP_TIMEOUT_S = 2.0
_DUMP_POLL_S = 0.02
_DUMP_BYTES = 64 * 1024
_MAX_THREADS = 64


def take_stacks(identity: Identity, log_path: Path) -> tuple[str, str]:
    """(text, method). Always says something true, if only that the process is gone."""
    if not is_alive(identity):
        return "the process is gone", NOT_GOT
    stat = read_stat(identity.pid)
    stopped = stat is not None and stat.state in "Tt"
    found = _py_spy(identity.pid, nonblocking=stopped)
    if found:
        return found, "py-spy"
    if not stopped and _catches(identity.pid, signal.SIGUSR2):
        found = _faulthandler(identity, log_path)
        if found:
            return found, "faulthandler"
    note = "the process is stopped (SIGSTOP); its own stacks cannot be asked for\n" if stopped else ""
    seen = _kernel_view(identity.pid)
    if not is_alive(identity):
        return "the process exited while its stacks were collected", NOT_GOT
    return note + seen, "kernel"


def _py_spy(pid: int, *, nonblocking: bool) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    argv = [program, "dump", "--pid", str(pid)] + (["--nonblocking"] if nonblocking else [])
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PY_SPY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return printable(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else ""


def _catches(pid: int, number: int) -> bool:
    caught = _status_field(pid, "SigCgt")
    return bool(caught) and bool(int(caught, 16) >> (number - 1) & 1)


def _faulthandler(identity: Identity, log_path: Path) -> str:
    """Ask for a dump and read what the log gained; done when it has not grown for a moment."""
    try:
        before = log_path.stat().st_size
    except OSError:
        return ""
    if not signal_process(identity, signal.SIGUSR2):
        return ""
    deadline_s = time.monotonic() + _DUMP_TIMEOUT_S
    gained, last = 0, -1
    while time.monotonic() < deadline_s and (gained == 0 or gained != last):
        time.sleep(_DUMP_POLL_S)
        last = gained
        gained = log_path.stat().st_size - before
    if gained <= 0:
        return ""
    text = read_tail_bytes(log_path, min(gained, _DUMP_BYTES)).decode("utf-8", "replace")
    return printable(text) if "File " in text else ""


def _kernel_view(pid: int) -> str:
    """State, wait channel and (if readable) kernel stack of every thread."""
    lines = [f"pid {pid} state {_status_field(pid, 'State')} threads {_status_field(pid, 'Threads')}"]
    tasks = Path(f"/proc/{pid}/task")
    try:
        threads = sorted(tasks.iterdir(), key=lambda path: int(path.name))
    except OSError:
        return lines[0] + "\nthe process exited while its stacks were collected"
    for thread in threads[:_MAX_THREADS]:
        lines.append(f"thread {thread.name} {_text(thread / 'comm')} wchan {_text(thread / 'wchan') or 'unknown'}")
        stack = _text(thread / "stack")
        if stack:
            lines.append(stack)
    return printable("\n".join(lines))


def _status_field(pid: int, name: str) -> str:
    for line in _text(Path(f"/proc/{pid}/status")).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
