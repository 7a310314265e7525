"""Why a process ended whose end nobody saw: the strongest thing that the node itself knows.

Asked by the runtime when an exit status cannot be had, or tells of SIGKILL alone. Reads the kernel's
log where the agent may (root, or CAP_SYSLOG), what the kernel counts of its OOM killer's work in the
process's control group (`memory_events`), and what was seen at the agent's own start. It claims
nothing that it did not read: a line of the kernel's log counts only if it names this process and
was written during its life. Never waits.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agents.core.state import Identity

KERNEL_LOG = "/dev/kmsg"
MAX_RECORDS = 20_000
RECORD_BYTES = 8192
_OOM = re.compile(r"Killed process (\d+) |oom-kill:.*\bpid=(\d+)\b")
_IN_GROUP = re.compile(r"Memory cgroup out of memory|CONSTRAINT_MEMCG")
_FAULT = re.compile(r"\[(\d+)\]:? (segfault|general protection|trap)")


OUT_OF_MEMORY = "out_of_memory"
OOM = "the kernel's log says that its OOM killer ended it: the node ran out of memory"
OOM_IN_GROUP = "the kernel's log says that its OOM killer ended it: its control group reached its memory limit"
CAME_BACK = (
    "exit not observed; the node's processes were gone when the agent came back: most likely what ended the"
    " agent ended them too (its service or control group was stopped, or killed)"
)


@dataclass(frozen=True, slots=True)
class Hint:
    """`cause` for machines: out_of_memory, segfault, node_restarted, unobserved; `words` for people."""

    cause: str = ""
    words: str = ""


NO_HINT = Hint()


End = tuple[int | None, int | None, bool]
"""Exit code, signal, and whether the status could be had."""


def at_start(identity: Identity, *, same_boot: bool, records: Iterable[str] | None = None) -> Hint:
    """Of a process that was gone when the agent began."""
    if not same_boot:
        return Hint("node_restarted", "exit not observed; the node was restarted, and its processes ended with it")
    found = of_kernel(identity, records=records)
    return found if found.cause else Hint("unobserved", CAME_BACK)


def of_end(
    identity: Identity,
    number: int | None,
    counted: Callable[[], str] = lambda: "",
    *,
    records: Iterable[str] | None = None,
) -> Hint:
    """Of a process that has just ended, by signal `number` (None: by none, or it is not known). `counted`: in
    words what its control group counts of the OOM killer since it began."""
    if number not in (None, signal.SIGKILL):
        return NO_HINT
    noted, group = of_kernel(identity, records=records), counted()
    if not group or noted.cause not in ("", OUT_OF_MEMORY):
        return noted
    return Hint(OUT_OF_MEMORY, f"{noted.words}; {group}" if noted.words else group)


def of_kernel(identity: Identity | None, *, records: Iterable[str] | None = None) -> Hint:
    """What the kernel's log says of this process; NO_HINT: nothing, or it may not be read."""
    if identity is None:
        return NO_HINT
    born_s = identity.start_time_ticks / os.sysconf("SC_CLK_TCK")
    for record in kernel_log() if records is None else records:
        header, _, text = record.partition(";")
        fields = header.split(",")
        if len(fields) < 3 or not fields[2].isdigit() or int(fields[2]) / 1e6 < born_s:
            continue
        killed, fault = _OOM.search(text), _FAULT.search(text)
        if killed is not None and int(killed[1] or killed[2]) == identity.pid:
            return Hint(OUT_OF_MEMORY, OOM_IN_GROUP if _IN_GROUP.search(text) else OOM)
        if fault is not None and int(fault[1]) == identity.pid:
            return Hint("segfault", f"the kernel's log says that it ended in a {fault[2]}")
    return NO_HINT


def kernel_log(path: str = KERNEL_LOG) -> Iterator[str]:
    """Its records, oldest first (`priority,number,microseconds since the boot,flags;text`). None
    where it may not be read, or does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, RECORD_BYTES)
            except BrokenPipeError:
                # Overwritten while it was read: the next record is the oldest that is left.
                continue
            except OSError:
                return
            if not record:
                return
            yield record.decode("utf-8", "replace")
    finally:
        os.close(descriptor)
