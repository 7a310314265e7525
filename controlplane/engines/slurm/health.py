"""What Slurm is to be asked about one node, by what Holdfast and Slurm believe of it. Pure.

Holdfast speaks first: a node that it cordoned, drains, quarantined or revoked, or of which a device is unfit, takes no
new job.
That becomes a drain with our reason, never `down`, as Slurm gives a node that is down and answers back to the next
job. Only what we drained is undone, known by how its reason begins; what anybody else drained stays as it is. Where
either of the two does not answer, nothing is concluded and nothing is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from controlplane.protocol.plain import shown
from controlplane.protocol.states import NodeState

OURS = "holdfast:"
"""Begins the reason of each drain of ours."""
MAX_REASON_CHARS = 160
OUT_OF_SERVICE = frozenset({NodeState.CORDONED, NodeState.DRAINING, NodeState.QUARANTINED})
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
MAX_DEVICES = 4096
KEPT = frozenset(" .,:;()/_%+-")


class Device(msgspec.Struct, frozen=True):
    """Of an answer of `GET /nodes/NAME` what counts here."""

    index: int
    present: bool
    healthy: bool
    health_reason: str = ""
    held_by: object = None


class Node(msgspec.Struct, frozen=True):
    """As `Device`. `ranks`: of jobs, that run there, as far as the token sees these; `ranks_running` counts all, and
    `held_by` of a device is there for any job's."""

    name: str
    state: str
    connected: bool
    state_reason: str = ""
    devices: list[Device] = []
    ranks: list[msgspec.Raw] = []
    ranks_running: int = 0
    revoked: bool = False

    @property
    def busy(self) -> bool:
        """A job runs there, also one that the token does not see."""
        return bool(self.ranks) or self.ranks_running > 0 or any(device.held_by for device in self.devices)


class Act(StrEnum):
    """What Slurm is asked for."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """What Slurm believes of the node: the words of its state, and why (None: it cannot be read for certain), which
    `by` set at `since`, where that is known."""

    states: frozenset[str]
    reason: str | None
    by: str = field(default="", compare=False)
    since: datetime | None = field(default=None, compare=False)

    @property
    def drained(self) -> bool:
        """It takes no job, whoever wanted that; what is down takes none either, and a reason stands there."""
        return not self.states.isdisjoint({*DRAINED, "DOWN", "FAIL", "FAILING"})

    @property
    def ours(self) -> bool:
        """The drain is ours to undo."""
        drained = not self.states.isdisjoint(DRAINED)
        return drained and self.reason is not None and self.reason.startswith(OURS)


def parsed(answer: bytes, name: str) -> Node | None:
    """None: garbage, or of another node."""
    try:
        node = msgspec.json.decode(answer, type=Node)
        known = node.state in {*NodeState}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return node if known and node.name == name and len(node.devices) <= MAX_DEVICES else None


def unfit(node: Node, *, piloted: bool = False) -> str:
    """Why it is to take no job, in words; "": it may. Where agents run in pilots alone (`piloted`) a drain ends the
    agent and what runs under it: a node is drained once nothing does, and not for one device, which Holdfast keeps work
    away from and resets while the agent is there."""
    if piloted and (node.busy or node.state == NodeState.DRAINING):
        return ""
    if node.revoked:
        return "revoked: its agent may not connect"
    if node.state in OUT_OF_SERVICE:
        return f"{node.state}. {node.state_reason}".rstrip(". ")
    if piloted:
        return ""
    bad = [device for device in node.devices if device.present and not device.healthy]
    if not bad:
        return ""
    why = bad[0].health_reason or "unfit"
    return f"device {bad[0].index}: {why}" + (f", and {len(bad) - 1} more devices" if len(bad) > 1 else "")


def well(node: Node, *, piloted: bool = False) -> bool:
    """For certain, as its agent speaks: a node that is away is neither, nor is one of which a device is gone. Where
    agents run in pilots alone (`piloted`) none speaks on a node that takes no job: what people said last counts."""
    if node.revoked:
        return False
    if piloted:
        return node.state not in OUT_OF_SERVICE
    return node.connected and node.state == NodeState.READY and all(device.healthy for device in node.devices)


def reason(why: str, tag: str = "") -> str:
    """As Slurm keeps it: one line of plain characters that no shell, list or page takes for anything else. `tag`: the
    intent that wants it, at the end."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in KEPT) else " " for c in shown(why))
    end = f" ({tag})" if tag else ""
    return f"{OURS} {' '.join(plain.split())}"[: MAX_REASON_CHARS - len(end)].rstrip() + end


def act(node: Node, believed: Believed, *, may_undo: bool, piloted: bool = False) -> Act:
    """`may_undo`: asked by the health check, and not around a job. `piloted`: see `well`."""
    if unfit(node, piloted=piloted):
        return Act.NOTHING if believed.drained else Act.DRAIN
    return Act.UNDRAIN if may_undo and well(node, piloted=piloted) and believed.ours else Act.NOTHING


def update(name: str, wanted: Act, why: str, tag: str = "") -> Sequence[str]:
    """The command for it; `tag` as of `reason`."""
    base = ("scontrol", "update", f"nodename={name}", f"state={wanted}")
    return (*base, f"reason={reason(why, tag)}") if wanted is Act.DRAIN else base
