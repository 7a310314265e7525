"""What an XID means: NVIDIA's action, gpud's action and the site's, side by side (U10).

NVIDIA's immediate action decides the bucket. Where gpud calls an XID fatal and NVIDIA
says it may be ignored or answered by restarting the program, the two disagree: we take
the reversible side (degraded, or the program's fault) and say so. A site's override
beats both. An XID that nobody lists is treated as degraded: seen, kept, not acted on.
"""

import csv
import io
from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec


class XidBucket(StrEnum):
    """What follows. FATAL: the device is of no use until reset or repaired; DEGRADED:
    keep working, take no new work; APPLICATION: the program's fault, no blame for the
    node; IGNORE: for the record."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    APPLICATION = "application"
    IGNORE = "ignore"


class XidVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`provenance` names who decided; `disagreement` is empty or says who says what."""

    xid: int
    mnemonic: str
    description: str
    nvidia: str
    gpud: str
    bucket: XidBucket
    provenance: str
    disagreement: str = ""


_NVIDIA_BUCKETS: dict[str, XidBucket] = {
    "IGNORE": XidBucket.IGNORE,
    "XID_154": XidBucket.IGNORE,
    "RESTART_APP": XidBucket.APPLICATION,
    "CHECK_UVM": XidBucket.APPLICATION,
    "WORKFLOW_XID_45": XidBucket.IGNORE,
    "UPDATE_SWFW": XidBucket.DEGRADED,
    "CONTACT_SUPPORT": XidBucket.DEGRADED,
    "WORKFLOW_NVLINK5_ERR": XidBucket.DEGRADED,
    "WORKFLOW_NVLINK_ERR": XidBucket.FATAL,
    "CHECK_MECHANICALS": XidBucket.FATAL,
    "RESET_GPU": XidBucket.FATAL,
    "RESTART_VM": XidBucket.FATAL,
    "RESTART_BM": XidBucket.FATAL,
    "WORKFLOW_XID_48": XidBucket.FATAL,
}


@cache
def _catalogue() -> dict[int, dict[str, str]]:
    text = resources.files("controlplane.policy.data").joinpath("xid_catalog.csv").read_text(encoding="utf-8")
    return {int(row["xid"]): row for row in csv.DictReader(io.StringIO(text))}


def known_xids() -> tuple[int, ...]:
    """Every XID of the catalogue, ascending."""
    return tuple(sorted(_catalogue()))


def look_up(xid: int, overrides: dict[int, str] | None = None) -> XidVerdict:
    """The verdict for one XID. `overrides`: the site's bucket by XID number.
    Raises ValueError when an override names no bucket."""
    row = _catalogue().get(xid)
    site = (overrides or {}).get(xid)
    if row is None:
        bucket = XidBucket(site) if site else XidBucket.DEGRADED
        return XidVerdict(
            xid=xid,
            mnemonic="",
            description="not in the catalogue",
            nvidia="",
            gpud="",
            bucket=bucket,
            provenance="site override" if site else "unknown XID: kept, not acted on",
        )
    bucket, provenance, disagreement = _judge(row)
    return XidVerdict(
        xid=xid,
        mnemonic=row["mnemonic"],
        description=row["description"],
        nvidia=row["nvidia_immediate"],
        gpud=_gpud(row),
        bucket=XidBucket(site) if site else bucket,
        provenance="site override" if site else provenance,
        disagreement=disagreement,
    )


def _gpud(row: dict[str, str]) -> str:
    return " ".join(part for part in (row["gpud_severity"], row["gpud_actions"]) if part)


def _judge(row: dict[str, str]) -> tuple[XidBucket, str, str]:
    """Bucket, provenance and disagreement from the catalogue's two voices."""
    nvidia = _NVIDIA_BUCKETS.get(row["nvidia_immediate"])
    fatal = row["gpud_severity"] == "fatal"
    reboot = "RebootSystem" in row["gpud_actions"]
    if nvidia is None:
        return (XidBucket.FATAL if fatal else XidBucket.DEGRADED), "gpud (NVIDIA names no action)", ""
    if nvidia is XidBucket.DEGRADED and fatal and reboot:
        return XidBucket.FATAL, "NVIDIA and gpud", ""
    if nvidia in (XidBucket.IGNORE, XidBucket.APPLICATION) and fatal:
        voices = f"NVIDIA: {row['nvidia_immediate']}, gpud: {_gpud(row)}"
        mild = XidBucket.DEGRADED if nvidia is XidBucket.IGNORE else XidBucket.APPLICATION
        return mild, "NVIDIA, gpud disagrees", voices
    return nvidia, "NVIDIA", ""
