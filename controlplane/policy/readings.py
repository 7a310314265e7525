"""Device readings that are findings by themselves: which, from where on, and what follows.

`sentinel.readings` compares samples with these limits and raises a signal `device_reading`;
`rules.device_fault` acts on it. Each limit says where it comes from; those that say "ours" are
not calibrated by failures, so they only keep new work away. Pure.
"""

import msgspec

from controlplane.policy.xid import XidBucket


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`reads`: the sample's field. `value` in the reading's own unit: of a counter the growth within
    `window_s`, of a state how long it lasts in seconds. `lasts`: the finding ends with the state, and
    the device returns. `ask`: what a person must do, "" for nothing. `what` follows a number, `one` stands for that of
    exactly one ("": as any other)."""

    reads: str
    value: float
    window_s: float
    bucket: XidBucket
    what: str
    source: str
    lasts: bool = False
    ask: str = ""
    one: str = ""

    def in_words(self, value: float) -> str:
        """So much of it."""
        return self.one if self.one and value == 1 else f"{value:g} {self.what}"

    def is_in(self, reason: str) -> bool:
        """A text tells of it."""
        told = reason.lower()
        return any(words and words in told for words in (self.what.lower(), self.one.lower()))


_RMA = "the card is to be replaced: run the vendor's diagnostics and ask NVIDIA's support"
READINGS: dict[str, Limit] = {
    "ecc_uncorrected": Limit(
        reads="ecc_uncorrected_total",
        value=1,
        window_s=60.0,
        bucket=XidBucket.RESET,
        what="uncorrectable memory errors",
        one="1 uncorrectable memory error",
        source="NVIDIA GPU Memory Error Management: a reset remaps the row",
    ),
    "ecc_corrected": Limit(
        reads="ecc_corrected_total",
        value=1000,
        window_s=3600.0,
        bucket=XidBucket.DEGRADED,
        what="corrected memory errors",
        source="ours",
    ),
    "row_remap_pending": Limit(
        reads="row_remap_pending",
        value=1,
        window_s=0.0,
        bucket=XidBucket.RESET,
        what="rows that wait to be remapped",
        one="a row that waits to be remapped",
        source="NVIDIA GPU Memory Error Management: takes effect with a reset",
    ),
    "row_remap_failure": Limit(
        reads="row_remap_failure",
        value=1,
        window_s=0.0,
        bucket=XidBucket.FATAL,
        what="rows that could not be remapped",
        one="a row that could not be remapped",
        source="NVIDIA GPU Memory Error Management: qualifies for replacement",
        ask=_RMA,
    ),
    "retired_pages": Limit(
        reads="retired_pages_total",
        value=60,
        window_s=0.0,
        bucket=XidBucket.FATAL,
        what="retired memory pages",
        source="NVIDIA Dynamic Page Retirement: 60 pages qualify for replacement",
        ask=_RMA,
    ),
    "pcie_replay": Limit(
        reads="pcie_replay_total",
        value=8,
        window_s=60.0,
        bucket=XidBucket.DEGRADED,
        what="PCIe replays",
        source="DCGM: 8 a minute",
    ),
    "nvlink_error": Limit(
        reads="nvlink_error_total",
        value=100,
        window_s=60.0,
        bucket=XidBucket.DEGRADED,
        what="NVLink errors",
        source="ours, after DCGM's CRC limit",
    ),
    "throttled": Limit(
        reads="throttle_reasons",
        value=60.0,
        window_s=0.0,
        bucket=XidBucket.DEGRADED,
        what="seconds slowed down by its hardware",
        source="ours",
        lasts=True,
        ask="look at the node's cooling and power",
    ),
    "memory_temperature": Limit(
        reads="memory_temperature_c",
        value=60.0,
        window_s=0.0,
        bucket=XidBucket.DEGRADED,
        what="seconds with its memory at 95 C or more",
        source="ours; HBM is rated to 95 C",
        lasts=True,
        ask="look at the node's cooling",
    ),
    "power_limit": Limit(
        reads="power_limit_w",
        value=60.0,
        window_s=0.0,
        bucket=XidBucket.DEGRADED,
        what="seconds with a power limit a tenth below its own",
        source="ours: a capped device is a straggler",
        lasts=True,
        ask="find out who has lowered its power limit",
    ),
}
MEMORY_HOT_C = 95.0
POWER_LIMIT_SHARE = 0.9
HARDWARE_SLOWS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
