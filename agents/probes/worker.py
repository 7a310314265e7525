"""The process that asks NVML: `python -m agents.probes.worker [REPORTED_UP_TO]`.

REPORTED_UP_TO is what the one before it said last (`WorkerLine.reported_up_to`): XIDs that came since are told first.

Speaks JSON lines: first `{"devices": [...]}` or `{"error": "..."}`, then for each byte on
stdin one `{"samples": [...]}`, and XIDs by themselves within a second, before any samples, each such line with
the record of the kernel log up to which all were told.
Ends when stdin does. It may hang in the driver at any time; the agent then kills it.
"""

import os
import select
import sys
import time

import msgspec

from agents.errors import ProbeError
from agents.probes.nvml import NvmlProbe
from agents.probes.plausible import plausible
from agents.probes.worker_line import WorkerLine

_XID_POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """0 when stdin ends, 3 if NVML is not usable."""
    try:
        probe = NvmlProbe(reported_up_to=int(arguments[0]) if arguments else None)
    except ProbeError as error:
        _say(WorkerLine(error=str(error)))
        return 3
    _say(WorkerLine(devices=plausible(probe.devices())))
    reported_up_to: int | None = None
    while True:
        asked, _, _ = select.select([0], [], [], _XID_POLL_S)
        if asked and not os.read(0, 64):
            probe.close()
            return 0
        # Before the readings: a driver that hangs over these takes this process, and what it knows, with it.
        reported_up_to, before = probe.reported_up_to, reported_up_to
        xids = plausible(probe.xids())
        if xids or reported_up_to != before:
            _say(WorkerLine(xids=xids, reported_up_to=reported_up_to))
        if asked:
            samples = plausible(probe.sample(time.monotonic(), frozenset()))
            _say(WorkerLine(samples=samples, nvlinks=probe.nvlinks()))


def _say(line: WorkerLine) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
