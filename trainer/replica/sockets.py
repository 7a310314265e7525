"""The TCP connections of this process, by file descriptor.

Fault injection asks, and a rank whose world is lost: a transport keeps its sockets to
itself, so those that appear while a group is built are taken for the group's own. Linux
only (/proc).
"""

import os
import socket
from pathlib import Path

_FD = Path("/proc/self/fd")


def connections(*, but_to_port: int | None = None) -> dict[int, str]:
    """Descriptor -> the kernel's name of it, for every connected TCP socket, but for those to
    that port of a peer. A listener has no peer and is left out: shutting one down would abort
    the transport."""
    found = {}
    for entry in _FD.iterdir():
        try:
            name = os.readlink(entry)
        except OSError:
            continue  # Closed since it was listed.
        if name.startswith("socket:") and _peer_port(int(entry.name)) not in (None, but_to_port):
            found[int(entry.name)] = name
    return found


def shut_down(descriptor: int, name: str) -> bool:
    """End both directions of the connection; False when the descriptor is another by now."""
    try:
        if os.readlink(_FD / str(descriptor)) != name:
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def _peer_port(descriptor: int) -> int | None:
    """None: no connected TCP socket."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as candidate:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            return int(candidate.getpeername()[1])
    except OSError:
        return None
