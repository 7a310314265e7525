"""Our probe's readings beside those of nvidia-smi, field by field, at rest.

Without a card: the simulated probe's readings, beside nothing.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from agents.probes.base import Probe
from agents.probes.simulated import SimulatedProbe
from benchmarks.gpu.part import Findings, run
from controlplane.protocol.samples import DeviceInfo, DeviceSample

MIB = 1024.0 * 1024.0
ABSENT = ("", "[N/A]", "N/A", "[Not Supported]", "[GPU requires reset]")


@dataclass(frozen=True, slots=True)
class Field:
    """`theirs`: nvidia-smi's name of it; two numbers agree within `apart` or within `ratio`."""

    theirs: str
    ours: Callable[[DeviceInfo, DeviceSample], object]
    apart: float = 0.0
    ratio: float = 0.0


FIELDS = (
    Field("uuid", lambda info, said: info.uuid),
    Field("name", lambda info, said: info.model),
    Field("driver_version", lambda info, said: info.driver_version),
    Field("memory.total", lambda info, said: _mib(info.memory_bytes), apart=1.0),
    Field("memory.used", lambda info, said: _mib(said.memory_used_bytes), apart=64.0),
    Field("temperature.gpu", lambda info, said: said.temperature_c, apart=3.0),
    Field("temperature.memory", lambda info, said: said.memory_temperature_c, apart=3.0),
    Field("power.draw", lambda info, said: said.power_w, apart=5.0, ratio=0.15),
    Field("enforced.power.limit", lambda info, said: said.power_limit_w, apart=1.0),
    Field("clocks.sm", lambda info, said: said.sm_clock_mhz, ratio=0.15),
    Field("ecc.errors.corrected.volatile.total", lambda info, said: said.ecc_corrected_total),
    Field("ecc.errors.uncorrected.volatile.total", lambda info, said: said.ecc_uncorrected_total),
    Field("remapped_rows.pending", lambda info, said: _number(said.row_remap_pending)),
    Field("remapped_rows.failure", lambda info, said: _number(said.row_remap_failure)),
)


def check(found: Findings, cpu: bool) -> None:
    """Every field of every device."""
    probe = SimulatedProbe(count=2, node_name="gpu-check") if cpu else _real()
    try:
        said = probe.sample(time.time(), frozenset())
        for info, sample in zip(probe.devices(), said, strict=True):
            for each in FIELDS:
                _compare(found, info, sample, each, None if cpu else _nvidia_smi(info.index, each.theirs))
            found.say(f"device {info.index}: utilisation", sample.utilization_ratio)
            found.say(f"device {info.index}: throttle reasons", ", ".join(sample.throttle_reasons) or "none")
            found.say(f"device {info.index}: PCIe replays", sample.pcie_replay_total)
            found.say(f"device {info.index}: NVLink errors", sample.nvlink_error_total)
        found.say("XID events can be heard", probe.capabilities.xid_events)
        began_s = time.monotonic()
        for _ in range(100):
            probe.sample(time.time(), frozenset())
        found.say("one reading of all devices (ms, mean of 100)", (time.monotonic() - began_s) * 10.0)
    finally:
        probe.close()
    if cpu:
        found.not_here = "no card: readings of simulated devices, beside nothing"


def agree(theirs: str, ours: object, *, apart: float = 0.0, ratio: float = 0.0) -> bool:
    """A value that one side does not have has to be missing on the other; numbers may be so far
    apart, texts not at all."""
    if ours is None or theirs in ABSENT:
        return (ours is None) == (theirs in ABSENT)
    if isinstance(ours, str):
        return ours == theirs
    words = {"No": "0", "Yes": "1"}
    try:
        number = float(words.get(theirs, theirs))
    except ValueError:
        return False
    return abs(float(str(ours)) - number) <= max(apart, ratio * abs(number))


def _compare(found: Findings, info: DeviceInfo, sample: DeviceSample, each: Field, theirs: str | None) -> None:
    ours, what = each.ours(info, sample), f"device {info.index}: {each.theirs}"
    if theirs is None:
        found.say(what, ours)
    elif theirs.startswith("Field"):
        found.say(what, ours, f"nvidia-smi does not know the field: {theirs[:60]}")
    else:
        holds = agree(theirs, ours, apart=each.apart, ratio=each.ratio)
        found.claim(what, ours, holds=holds, note=f"nvidia-smi {theirs}")


def _real() -> Probe:
    from agents.probes.nvml import NvmlProbe

    return NvmlProbe()


def _nvidia_smi(index: int, field: str) -> str:
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()


def _mib(count: int | None) -> float | None:
    return None if count is None else count / MIB


def _number(flag: bool | None) -> int | None:
    return None if flag is None else int(flag)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], __doc__, check))
