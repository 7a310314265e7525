"""Becomes a job's process: the few steps between root and the job's own program.

Started by `agents.ranks.launch` as `python -I -S become.py FD REPORT`, as root, alone in a new
process; imports nothing of the project and reads no environment. It joins the job's control
groups, sets limits, gives up every right of root for good and becomes the program. What goes
wrong is written to the descriptor REPORT, which closes by itself when the program has begun.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

PR_SET_NO_NEW_PRIVS = 38
FAILED = 126


def main() -> None:
    """Never returns."""
    order_descriptor, report = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(report, False)
    try:
        with os.fdopen(order_descriptor, "rb") as file:
            order: dict[str, Any] = json.loads(file.read())
        _become(order)
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except BaseException as error:
        os.write(report, f"{error}".encode()[:1000] or b"unknown")
    finally:
        os._exit(FAILED)


def _become(order: dict[str, Any]) -> None:
    for group in order["cgroups"]:
        with open(os.path.join(group, "cgroup.procs"), "r+") as file:
            file.write("0")
    with open("/proc/self/oom_score_adj", "r+") as file:
        # The agent may be spared when memory runs out; its jobs are not. Lower it may not be.
        if int(file.read()) < 0:
            file.write("0")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if order["open_files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"], order["open_files"]))
    if order["uid"] is not None:
        os.setgroups(order["groups"])
        os.setresgid(order["gid"], order["gid"], order["gid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
        if os.getresuid() != (order["uid"],) * 3 or order["uid"] == 0:
            raise PermissionError("the rights of root could not be given up")
    os.umask(order["umask"])
    # This interpreter ignores them; the job's program shall find them as it would without us.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")


if __name__ == "__main__":
    main()
