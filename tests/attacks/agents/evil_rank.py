"""A job's program that speaks with its agent as a rank, and ends its speech decently.

Run by an agent as an entrypoint. Rank 0 sends the lines that the test wrote into EVIL_LINES (a
file), each on a connection of its own; then, like every other rank, a report of step
GOOD_STEP + its rank.
"""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

from controlplane.protocol.codec import encode_line
from controlplane.protocol.rank import StepReport

GOOD_STEP = 41


def main() -> None:
    """Until it is killed."""
    ref = json.loads(os.environ["HOLDFAST_REF"])
    if ref["rank"] == 0:
        for line in Path(os.environ["EVIL_LINES"]).read_bytes().split(b"\n"):
            said = connected(ref)
            with contextlib.suppress(OSError):
                said.sendall(line + b"\n")
            answered(said)
    report = encode_line(StepReport(GOOD_STEP + ref["rank"], 1, 0.1, 1, ()))
    while True:
        good = connected(ref)
        # Again on each: an agent that is busy may see the newer connection before it reads the older one.
        with contextlib.suppress(OSError):
            good.sendall(report)
        answered(good)
        time.sleep(0.2)


def connected(ref: object) -> socket.socket:
    """A new connection with a hello on it; the agent may be away for a while."""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.environ["HOLDFAST_SOCKET"])
            connection.sendall(json.dumps({"type": "hello", "ref": ref, "pid": os.getpid()}).encode() + b"\n")
        except OSError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection


def answered(connection: socket.socket, within_s: float = 0.5) -> None:
    """Wait until the agent closes the connection, or says nothing for so long."""
    connection.settimeout(within_s)
    try:
        while connection.recv(65536):
            pass
    except OSError:
        return


if __name__ == "__main__":
    main()
