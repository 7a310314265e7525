"""What a rank's report makes of a save: it is begun, complete or spoiled. Who may report it is `changes.reports`'s."""

from typing import NamedTuple

from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState

LOCAL = "local"
"""The kind of a save on the nodes' own disks or memory."""


class Move(NamedTuple):
    """The state that follows, and why."""

    to: CheckpointState
    why: str


def moves(state: str, kind: str, report: CheckpointReport, *, fenced: bool, copies: int) -> tuple[Move, ...]:
    """Of a save in `state`, one after the other; one that is written already stays as it is. `fenced`: the report
    is of an incarnation that is out, so a complete one is not to be trusted. `copies`: how many of a local one the
    job wants beside the first."""
    if state != CheckpointState.WRITING or (report.state == "writing" and not fenced):
        return ()
    if fenced:
        return (Move(CheckpointState.CORRUPT, "its writer was evicted before it was complete"),)
    if report.state == "failed":
        return (Move(CheckpointState.CORRUPT, f"the save failed: {report.error}"),)
    complete = Move(CheckpointState.COMPLETE, "its marker is committed")
    return (complete, *_climbed(report, copies)) if kind == LOCAL else (complete,)


def _climbed(report: CheckpointReport, copies: int) -> tuple[Move, ...]:
    """Every node has compared what it holds with the digest before it said so; how many hold each shard is in the
    report."""
    fewest = min((len(set(nodes)) for nodes in report.holders), default=0)
    if fewest < 1:
        return (Move(CheckpointState.CORRUPT, "a shard of it is on no node"),)
    verified = Move(CheckpointState.VERIFIED, "each node compared what it holds with the digest")
    if fewest <= max(1, copies):
        return (verified,)
    return (verified, Move(CheckpointState.REPLICATED, f"each shard is on {fewest} nodes"))
