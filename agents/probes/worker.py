"""The process that asks NVML: `python -m agents.probes.worker`.

Speaks JSON lines: first `{"devices": [...]}` or `{"error": "..."}`, then for each byte on
stdin one `{"samples": [...]}`, and XIDs by themselves within a second, before any samples.
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


def main() -> int:
    """0 when stdin ends, 3 if NVML is not usable."""
    try:
        probe = NvmlProbe()
    except ProbeError as error:
        _say(WorkerLine(error=str(error)))
        return 3
    _say(WorkerLine(devices=plausible(probe.devices())))
    while True:
        asked, _, _ = select.select([0], [], [], _XID_POLL_S)
        if asked and not os.read(0, 64):
            probe.close()
            return 0
        # Before the readings: a driver that hangs over these takes this process, and what it knows, with it.
        if xids := plausible(probe.xids()):
            _say(WorkerLine(xids=xids))
        if asked:
            samples = plausible(probe.sample(time.monotonic(), frozenset()))
            _say(WorkerLine(samples=samples, nvlinks=probe.nvlinks()))


def _say(line: WorkerLine) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(main())
