"""A checkpoint read back on a node whose storage holds it: progress and verdict as lines of JSON.

`python -m controlplane.checkpoints.reading --path P --job-id J --step S --epoch E` is started by agents
(`agents.verify`), as the job's own user where the agent is root. The reading is `verify`, the very code
that the server runs. It bounds itself: the lowest priority for CPU and disk, `MAX_MEMORY_BYTES`, no file
written, and from the job's own directory on no link is followed. Each line is {"read_bytes"}, the last
one {"ok", "detail", "absent"}. It ends with whoever reads its lines. Without Django; nothing that it
reads is loaded.
"""

import argparse
import contextlib
import ctypes
import os
import platform
import resource
import sys
import time
from collections.abc import Callable

import msgspec

from controlplane.checkpoints.verify import MAX_DETAIL_CHARS, verify_directory
from controlplane.protocol.readback import Verdict

MAX_MEMORY_BYTES = 1 << 30
"""Of address space; the marker of a checkpoint has 16 MiB at most."""
TELL_EVERY_S = 1.0
NICE = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS, _CLASS_IDLE = 1, 3 << 13


def main() -> None:
    """Writes the lines."""
    parser = argparse.ArgumentParser(description="Reads a checkpoint back and says whether it is as committed.")
    for option in ("--path", "--job-id"):
        parser.add_argument(option, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    step_back()
    say({"read_bytes": 0})
    found = look(options.path, job_id=options.job_id, step=options.step, epoch=options.epoch, tell=paced(say))
    say(last_line(found))


def look(
    path: str, *, job_id: str, step: int, epoch: int, tell: Callable[[int], None] = lambda read_bytes: None
) -> Verdict:
    """What `verify_directory` says of it. What lies above the job's own directory is the administrator's
    word, links in it included; what lies below is anybody's. Never raises for what is there."""
    above, own, below = path.rpartition(f"/{job_id}/")
    names = [job_id, *below.split("/")] if own else below.split("/")[-1:]
    try:
        with contextlib.ExitStack() as held:
            folder = os.open(above if own else os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, folder)
            for name in names:
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                held.callback(os.close, folder)
            here = f"/proc/self/fd/{folder}"
            return verify_directory(here, name=path, job_id=job_id, step=step, epoch=epoch, tell=tell)
    except FileNotFoundError:
        return Verdict(ok=None, detail=f"{path} is not visible from here")
    except NotADirectoryError:
        return Verdict(ok=False, detail=f"a name in {path} is a link or no directory, and is not followed")
    except OSError as error:
        return Verdict(ok=None, detail=f"it cannot be read: {error.strerror}")


def step_back() -> None:
    """Whatever else wants this node's processors, disks and memory comes first."""
    os.nice(NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # Refused in some containers: then it is at the priority that its nice gives it.
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def paced(say: Callable[[object], None], clock: Callable[[], float] = time.monotonic) -> Callable[[int], None]:
    """Hears of every chunk and says one in `TELL_EVERY_S`."""
    said_s = clock()

    def tell(read_bytes: int) -> None:
        nonlocal said_s
        if clock() - said_s >= TELL_EVERY_S:
            said_s = clock()
            say({"read_bytes": read_bytes})

    return tell


def last_line(found: Verdict) -> dict[str, object]:
    """The verdict as it travels: one line, cut to what an answer holds."""
    detail = "".join(sign if sign.isprintable() else "?" for sign in found.detail[:MAX_DETAIL_CHARS])
    return {"ok": found.ok, "detail": detail, "absent": found.absent}


def say(line: object) -> None:
    """One line. Raises BrokenPipeError where nobody reads it any more: then this ends."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
