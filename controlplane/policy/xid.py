"""What an XID means and what follows: NVIDIA's action, gpud's action and the site's (U10).

NVIDIA's immediate action decides the bucket. Where gpud calls an XID fatal and NVIDIA says it may
be ignored or answered by restarting the program, the two disagree: we take the reversible side
and say so. Where NVIDIA names no action and gpud wants a reboot, it is gpud's. A site's override
beats all. An XID that nobody lists takes no new work to the device and asks a person.

One XID is one finding; `judge` adds what NVIDIA's workflows ask besides: how often it came. The
workflows say "repeatedly" and "if it continues" and give no numbers; the counts of `REPEATS` are
ours, and a program that fails on many devices is still the program.
"""

import csv
import io
import re
from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec

from controlplane.policy import nvlink, nvlink5

WINDOW_S = 86_400.0
"""Repeats are counted over a day."""


class XidBucket(StrEnum):
    """What follows. FATAL: the device is of no use until the node was rebooted or repaired; RESET:
    until it was reset; SUPPORT: what runs goes on, nothing new, and a person asks the vendor;
    DEGRADED: what runs goes on, nothing new; APPLICATION: the program's fault, no blame for the
    node; IGNORE: for the record."""

    FATAL = "fatal"
    RESET = "reset"
    SUPPORT = "support"
    DEGRADED = "degraded"
    APPLICATION = "application"
    IGNORE = "ignore"


ENDS = frozenset({XidBucket.FATAL, XidBucket.RESET})
"""What runs on the device is over."""
ACCUSES = ENDS | {XidBucket.SUPPORT, XidBucket.DEGRADED}
"""Nothing new is started on the device."""


class XidVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`provenance` names who decided; `disagreement` is empty or says who says what. `ask`: what a
    person must do, "" for nothing. `repeats` within `WINDOW_S` on this device, or on the NVLink of it
    that the driver names."""

    xid: int
    mnemonic: str
    description: str
    nvidia: str
    gpud: str
    bucket: XidBucket
    provenance: str
    disagreement: str = ""
    ask: str = ""
    repeats: int = 1

    @property
    def accuses(self) -> bool:
        """The device, not the program."""
        return self.bucket in ACCUSES


_NVIDIA_BUCKETS: dict[str, XidBucket] = {
    "IGNORE": XidBucket.IGNORE,
    "XID_154": XidBucket.RESET,
    "RESTART_APP": XidBucket.APPLICATION,
    "CHECK_UVM": XidBucket.APPLICATION,
    "WORKFLOW_XID_45": XidBucket.IGNORE,
    "UPDATE_SWFW": XidBucket.SUPPORT,
    "CONTACT_SUPPORT": XidBucket.SUPPORT,
    "WORKFLOW_NVLINK5_ERR": XidBucket.DEGRADED,
    "WORKFLOW_NVLINK_ERR": XidBucket.RESET,
    "CHECK_MECHANICALS": XidBucket.FATAL,
    "RESET_GPU": XidBucket.RESET,
    "RESTART_VM": XidBucket.FATAL,
    "RESTART_BM": XidBucket.FATAL,
    "WORKFLOW_XID_48": XidBucket.RESET,
}
_ASK = {
    "CONTACT_SUPPORT": "ask NVIDIA's support about it",
    "UPDATE_SWFW": "update the driver and the firmware",
    "CHECK_MECHANICALS": "look at the card's power, cooling and seating",
    "RESTART_BM": "reboot the node; if it comes again, ask NVIDIA's support",
    "RESTART_VM": "restart the virtual machine",
}
_REBOOT = "reboot the node; if it comes again, ask NVIDIA's support"
_SUPPORT = _ASK["CONTACT_SUPPORT"]

# Codes that only say more about another one, which comes with them.
_WITH_48 = frozenset({171, 172})
_RECOVERY = re.compile(r"\bto 0x[0-9a-f]+ \(([A-Za-z0-9 ]+)\)", re.IGNORECASE)
_RECOVERY_BUCKETS = {
    "none": XidBucket.IGNORE,
    "gpu reset required": XidBucket.RESET,
    "drain and reset": XidBucket.RESET,
    "drain p2p": XidBucket.DEGRADED,
    "node reboot required": XidBucket.FATAL,
}
RECOVERY_CHANGED = 154
NVLINK = 74
CONTAINED = 94

REPEATS: dict[XidBucket, tuple[int, XidBucket]] = {
    XidBucket.APPLICATION: (3, XidBucket.DEGRADED),
    XidBucket.DEGRADED: (3, XidBucket.SUPPORT),
    XidBucket.RESET: (3, XidBucket.FATAL),
}
"""From so many of the same XID on the same device in `WINDOW_S` on, it is taken for the worse."""
CONTAINED_REPEATS = 2
"""A contained memory error may come once; NVIDIA: if it continues, drain and reset."""
MAX_ELSEWHERE = 1
"""Other devices that may have had the same one before it is the program's after all."""


@cache
def _catalogue() -> dict[int, dict[str, str]]:
    text = resources.files("controlplane.policy.data").joinpath("xid_catalog.csv").read_text(encoding="utf-8")
    return {int(row["xid"]): row for row in csv.DictReader(io.StringIO(text))}


def known_xids() -> tuple[int, ...]:
    """Every XID of the catalogue, ascending."""
    return tuple(sorted(_catalogue()))


def look_up(xid: int, overrides: dict[int, str] | None = None) -> XidVerdict:
    """The verdict for one XID by itself. `overrides`: the site's bucket by XID number.
    Raises ValueError when an override names no bucket."""
    row = _catalogue().get(xid)
    site = (overrides or {}).get(xid)
    if row is None:
        return XidVerdict(
            xid=xid,
            mnemonic="",
            description="not in the catalogue",
            nvidia="",
            gpud="",
            bucket=XidBucket(site) if site else XidBucket.SUPPORT,
            provenance="site override" if site else "unknown XID",
            ask="" if site else _SUPPORT,
        )
    bucket, provenance, disagreement = _judge(xid, row)
    chosen = XidBucket(site) if site else bucket
    return XidVerdict(
        xid=xid,
        mnemonic=row["mnemonic"],
        description=row["description"],
        nvidia=row["nvidia_immediate"],
        gpud=_gpud(row),
        bucket=chosen,
        provenance="site override" if site else provenance,
        disagreement=disagreement,
        ask=_asked(row, chosen),
    )


def judge(
    xid: int,
    *,
    detail: str = "",
    model: str = "",
    repeats: int = 1,
    elsewhere: int = 0,
    overrides: dict[int, str] | None = None,
) -> XidVerdict:
    """The verdict with its circumstances: the driver's own text, the device's `model`, how often it,
    or the link that the text names, had it in `WINDOW_S` (this one included), and how many other
    devices did. Raises as `look_up`."""
    verdict = look_up(xid, overrides)
    if xid in (overrides or {}):
        return msgspec.structs.replace(verdict, repeats=repeats)
    if xid == RECOVERY_CHANGED and (told := _RECOVERY.search(detail)):
        bucket = _RECOVERY_BUCKETS.get(told[1].strip().lower(), XidBucket.RESET)
        ask = _REBOOT if bucket is XidBucket.FATAL else ""
        verdict = msgspec.structs.replace(verdict, bucket=bucket, ask=ask, provenance="the driver")
    if xid == NVLINK and (told_of := nvlink.read(detail, model)):
        verdict = _of_link(verdict, told_of)
    if fault := nvlink5.read(xid, detail):
        verdict = _of_fault(verdict, fault)
    link = link_of(xid, detail)
    worse = _repeated(xid, verdict.bucket, repeats, elsewhere)
    if worse is None:
        return msgspec.structs.replace(verdict, repeats=repeats)
    return msgspec.structs.replace(
        verdict,
        bucket=worse,
        repeats=repeats,
        provenance=f"{repeats} times in a day on {'this device' if link is None else f'link {link} of this device'}",
        ask=verdict.ask or ("" if worse in (XidBucket.RESET, XidBucket.DEGRADED) else _SUPPORT),
    )


def link_of(xid: int, detail: str) -> int | None:
    """The NVLink that the driver's line is about: what comes again on it comes again, what comes on another
    one is another fault. None: it names none."""
    if xid == NVLINK:
        return nvlink.link_in(detail)
    return nvlink5.link_in(detail) if xid in nvlink5.XIDS else None


def _of_link(verdict: XidVerdict, error: nvlink.LinkError) -> XidVerdict:
    """By the registers: work goes on, a reset clears it, or a person must look first."""
    bucket = XidBucket.RESET
    if error.quiet:
        bucket = XidBucket.IGNORE
    elif error.worst in nvlink.A_PERSONS:
        bucket = XidBucket.FATAL
    said = f"the registers of link {error.link}: {error.worst}"
    return msgspec.structs.replace(verdict, bucket=bucket, ask=error.ask, provenance=said)


_NVLINK5_BUCKETS = {
    nvlink5.Act.NOTHING: XidBucket.IGNORE,
    nvlink5.Act.DRIVER: XidBucket.IGNORE,
    nvlink5.Act.CABLES: XidBucket.DEGRADED,
    nvlink5.Act.SUPPORT: XidBucket.SUPPORT,
    nvlink5.Act.RESET: XidBucket.RESET,
}


def _of_fault(verdict: XidVerdict, fault: nvlink5.LinkFault) -> XidVerdict:
    """By the sub-code. Where NVIDIA wants nothing done and somebody to look all the same, the device
    gets no new work till then."""
    bucket = _NVLINK5_BUCKETS[fault.act]
    if bucket is XidBucket.IGNORE and fault.ask:
        bucket = XidBucket.DEGRADED
    said = f"NVIDIA, for sub-code {fault.subcode} of {fault.unit}, link {fault.link}, status 0x{fault.status:08x}"
    return msgspec.structs.replace(verdict, bucket=bucket, ask=fault.ask, provenance=f"{said}: {fault.act}")


def _repeated(xid: int, bucket: XidBucket, repeats: int, elsewhere: int) -> XidBucket | None:
    if xid == CONTAINED:
        return XidBucket.RESET if repeats >= CONTAINED_REPEATS and elsewhere <= MAX_ELSEWHERE else None
    if bucket not in REPEATS:
        return None
    count, worse = REPEATS[bucket]
    if repeats < count or (bucket is XidBucket.APPLICATION and elsewhere > MAX_ELSEWHERE):
        return None
    return worse


def _asked(row: dict[str, str], bucket: XidBucket) -> str:
    if bucket not in ACCUSES:
        return ""
    asked = _ASK.get(row["nvidia_immediate"], "")
    if bucket is XidBucket.FATAL:
        return asked if row["nvidia_immediate"] != "CONTACT_SUPPORT" and asked else _REBOOT
    return asked


def _gpud(row: dict[str, str]) -> str:
    return " ".join(part for part in (row["gpud_severity"], row["gpud_actions"]) if part)


def _judge(xid: int, row: dict[str, str]) -> tuple[XidBucket, str, str]:
    """Bucket, provenance and disagreement from the catalogue's two voices."""
    nvidia = _NVIDIA_BUCKETS.get(row["nvidia_immediate"])
    fatal = row["gpud_severity"] == "fatal"
    reboot = "RebootSystem" in row["gpud_actions"]
    if xid in _WITH_48:
        return XidBucket.RESET, "NVIDIA (it comes with XID 48)", ""
    if nvidia is None:
        quiet = XidBucket.IGNORE if row["gpud_severity"] == "info" else XidBucket.DEGRADED
        return (XidBucket.FATAL if fatal or reboot else quiet), "gpud (NVIDIA names no action)", ""
    if nvidia is XidBucket.SUPPORT and fatal and reboot:
        return XidBucket.FATAL, "NVIDIA and gpud", ""
    if nvidia in (XidBucket.IGNORE, XidBucket.APPLICATION) and fatal:
        voices = f"NVIDIA: {row['nvidia_immediate']}, gpud: {_gpud(row)}"
        mild = XidBucket.DEGRADED if nvidia is XidBucket.IGNORE else XidBucket.APPLICATION
        return mild, "NVIDIA, gpud disagrees", voices
    return nvidia, "NVIDIA", ""
