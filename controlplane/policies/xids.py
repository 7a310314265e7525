"""What each source says of an XID, side by side, and what holds here. Read by the API; decides nothing.

NVIDIA's word, gpud's and the action are those of `policy.xid`, by which is decided. AWS's is shown beside them and
counts for nothing here.
"""

import csv
import io
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from controlplane.policy.xid import XidVerdict, known_xids, look_up

SOURCES = {
    "NVIDIA": "NVIDIA's public XID catalogue, as leptonai/gpud@4a8de33 mirrors it",
    "gpud": "leptonai/gpud@4a8de33",
    "AWS": "health check of GPU clusters, awslabs/awsome-distributed-ai@262aeba; 64 by its pull request 1190",
}


class _Wants(Enum):
    """What a source wants done with the GPU, as far as that does not depend on anything else."""

    NOTHING = "it works on"
    RESTORED = "it is reset, or its machine restarted"
    REPLACED = "it is repaired or replaced"


_OF_NVIDIA = {
    "IGNORE": _Wants.NOTHING,
    "RESTART_APP": _Wants.NOTHING,
    "RESET_GPU": _Wants.RESTORED,
    "WORKFLOW_XID_48": _Wants.RESTORED,
    "WORKFLOW_NVLINK_ERR": _Wants.RESTORED,
    "RESTART_BM": _Wants.RESTORED,
    "RESTART_VM": _Wants.RESTORED,
    "CHECK_MECHANICALS": _Wants.REPLACED,
}
_OF_AWS = {
    "MONITOR": _Wants.NOTHING,
    "RESET": _Wants.RESTORED,
    "REBOOT": _Wants.RESTORED,
    "ISOLATE": _Wants.REPLACED,
}


@cache
def _aws() -> Mapping[int, tuple[str, str]]:
    """Severity and note by XID."""
    text = resources.files("controlplane.policies.data").joinpath("xid_aws.csv").read_text(encoding="utf-8")
    return {int(row["xid"]): (row["severity"], row["note"]) for row in csv.DictReader(io.StringIO(text))}


def table(overrides: Mapping[int, str]) -> dict[str, Any]:
    """`rest.XidTable`. `overrides`: the action that the site sets, by XID."""
    xids = sorted({*known_xids(), *overrides})
    return {"items": [_row(xid, dict(overrides)) for xid in xids], "sources": SOURCES}


def _row(xid: int, overrides: dict[int, str]) -> dict[str, Any]:
    plain, now = look_up(xid), look_up(xid, overrides)
    severity, note = _aws().get(xid, ("", ""))
    return {
        "xid": xid,
        "mnemonic": plain.mnemonic,
        "what": plain.description,
        "nvidia": plain.nvidia,
        "gpud": plain.gpud,
        "aws": severity,
        "aws_note": note,
        "standard": str(plain.bucket),
        "because": plain.provenance,
        "site": str(overrides.get(xid, "")),
        "action": str(now.bucket),
        "disagreements": _disagreements(plain, severity),
    }


def _disagreements(verdict: XidVerdict, severity: str) -> list[str]:
    """Who says what, for each pair that cannot both be right: NVIDIA and gpud by the policy's own word."""
    found = [verdict.disagreement] if verdict.disagreement else []
    nvidia, aws = _OF_NVIDIA.get(verdict.nvidia), _OF_AWS.get(severity)
    if nvidia is not None and aws is not None and nvidia is not aws:
        found.append(f"NVIDIA: {verdict.nvidia}, AWS: {severity}")
    return found
