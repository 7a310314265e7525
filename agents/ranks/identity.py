"""Processes by identity: (pid, start time), never by pid alone.

A pid is reused; field 22 of /proc/<pid>/stat is not. Signals go through a pidfd that was
checked against the start time after it was opened, so they cannot reach a stranger.
"""

import os
import signal
from dataclasses import dataclass

from agents.core.state import Identity

_DEAD_STATES = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True)
class Stat:
    """The few fields of /proc/<pid>/stat that we use. `state` as in ps."""

    state: str
    parent: int
    group: int
    session: int
    start_time_ticks: int


def read_stat(pid: int) -> Stat | None:
    """None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses and spaces too.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    parent, group, session = map(int, fields[1:4])
    return Stat(state=fields[0], parent=parent, group=group, session=session, start_time_ticks=int(fields[19]))


def identity_of(pid: int) -> Identity | None:
    """The process that has this pid now; a zombie is no process."""
    stat = read_stat(pid)
    if stat is None or stat.state in _DEAD_STATES:
        return None
    return Identity(pid, stat.start_time_ticks)


def is_alive(identity: Identity) -> bool:
    """This very process runs (a stopped one runs, a zombie does not)."""
    return identity_of(identity.pid) == identity


def open_pidfd(identity: Identity) -> int | None:
    """A pidfd of this very process, or None if it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return None
    stat = read_stat(identity.pid)
    # The descriptor pins the process; if the start time agrees now, it agreed then.
    if stat is None or stat.start_time_ticks != identity.start_time_ticks:
        os.close(descriptor)
        return None
    return descriptor


def signal_process(identity: Identity, number: int) -> bool:
    """True if this very process was signalled."""
    descriptor = open_pidfd(identity)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def signal_group(identity: Identity, number: int) -> bool:
    """Signal the process group that this leader leads; True if anybody was there.

    While the leader lives its pid cannot be reused, so its group is ours. A rank that
    leads no group (it should) is signalled alone rather than its neighbours with it.
    """
    stat = read_stat(identity.pid)
    if stat is None or stat.start_time_ticks != identity.start_time_ticks:
        return False
    if stat.group != identity.pid:
        return signal_process(identity, number)
    try:
        os.killpg(identity.pid, number)
    except OSError:
        return False
    return True


def group_members(leader: Identity) -> tuple[int, ...]:
    """Living members of the group this leader led, found after its death too.

    The kernel does not give a number out as a pid while a group or session bears it, so
    members whose session is the leader's are its own; a new leader of that number would
    itself be in the list with another start time, and then none of them is ours.
    """
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return ()
    except OSError:
        pass
    members = []
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdigit() else None
        if stat is None or stat.group != leader.pid or stat.state in _DEAD_STATES:
            continue
        if int(name) == leader.pid and stat.start_time_ticks != leader.start_time_ticks:
            return ()
        members.append(int(name))
    return tuple(sorted(members))


def uid_of(pid: int) -> int | None:
    """The effective user of a process; None: no such process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except OSError:
        return None
    return None


def find_by_environment(name: str, value: str, *, uid: int) -> Identity | None:
    """The session leader of this user that was started with `name`=`value`, if one lives."""
    wanted = f"{name}={value}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            continue
        stat = read_stat(int(entry))
        if wanted not in environment or uid_of(int(entry)) != uid:
            continue
        if stat is not None and stat.session == int(entry):
            return identity_of(int(entry))
    return None
