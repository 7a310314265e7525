"""What every debug server has in common, with torch or without: its place, and the profile."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

FOLDER = "debug"
PROFILE = "holdfast_profile"
MAX_PROFILE_S = 10.0
SAMPLE_INTERVAL_S = 0.01
MAX_FRAMES = 40
MAX_LINES = 60
Server = TypeVar("Server")


def debug_socket_path(agent_socket: str, pid: int) -> Path:
    """Where the rank of `pid` listens; its groups stand in the same name with `.json`."""
    return Path(agent_socket).parent / FOLDER / f"{pid}.sock"


def listen_at(path: Path, listen: Callable[[str], Server]) -> Server:
    """What `listen` makes of a path that it can bind: a unix socket for this user alone, put in
    the place of another's in one go. Bound by way of the open directory, because a socket's own
    path may have 107 bytes at most. Raises OSError and what `listen` raises."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        server = listen(f"/proc/self/fd/{folder}/{draft.name}")
    finally:
        os.close(folder)
    draft.chmod(0o600)
    draft.rename(path)
    return server


def sample(duration_s: float) -> str:
    """Where the Python threads were, every 10 ms: one line a stack, most frequent first.
    `count  thread: outermost > ... > innermost`, at most MAX_LINES."""
    counts: Counter[str] = Counter()
    until_s = time.monotonic() + min(max(duration_s, SAMPLE_INTERVAL_S), MAX_PROFILE_S)
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
        counts.update(_stack(frame) for frame in sys._current_frames().values())
        time.sleep(SAMPLE_INTERVAL_S)
    lines = [f"{count:5d}  {stack}" for stack, count in counts.most_common(MAX_LINES)]
    return "\n".join([f"{rounds} samples of every Python thread", *lines])


HANDLERS: dict[str, Callable[[float], str]] = {PROFILE: sample}
"""Questions that this server answers beside torch's own, by the handler that `protocol.diagnostics` names; each is
given the seconds that it may take, and answers from a thread of its own while the training thread goes on."""


def _stack(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        code = frame.f_code
        names.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return " > ".join(reversed(names))
