"""Which incidents of several jobs have one cause: a failure domain, a node, or the storage of checkpoints.

What says nothing of a common cause is a fault of its own (ADR 0026): jobs share one only where their findings name the
same node, or silent nodes of one failure domain, at about the same time, or where both stand still in a save. Called by
`recovery.shared`. Pure.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from controlplane.policy.causes import NEAR_S
from controlplane.policy.findings import KINDS
from controlplane.policy.titles import short

SILENT = "node_silent"
OF_NODES = frozenset({SILENT, "node_unfit", *KINDS})
"""Kinds of findings that accuse a node or its hardware, and no process of the job."""
SEGMENT, NODE, STORAGE = "segment", "node", "storage"


class JobIncident(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of a job that is not over, opened at `opened_s` (server Unix seconds). `silent`: nodes that are not heard,
    `named`: those that a finding accuses, by id. `saving`: most of the job stands still in a save."""

    id: str
    job_id: str
    opened_s: float
    silent: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    saving: bool = False


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`subject` of the cause: a segment, a node's id, or "". `parts`: ids of incidents, in the order in which they were
    opened; `nodes` that it took along, by id."""

    kind: str
    subject: str
    title: str
    parts: tuple[str, ...]
    nodes: tuple[str, ...] = ()


def shared(
    incidents: Iterable[JobIncident], segments: Mapping[str, str], names: Mapping[str, str]
) -> tuple[Shared, ...]:
    """Every cause that two jobs or more have in common. The widest is asked first, and each incident has one at most.
    `segments` and `names` of nodes, by id."""
    left = sorted(incidents, key=lambda each: (each.opened_s, each.id))
    found: list[Shared] = []
    for kind in (SEGMENT, NODE, STORAGE):
        for subject, its in sorted(_by_subject(kind, left, segments).items()):
            # What one before it has taken, such as the other of two nodes that both jobs lost, is not asked again.
            mine = [each for each in its if each in left]
            for group in _at_once(mine) if kind != STORAGE else [mine]:
                nodes = _nodes(kind, subject, group, segments)
                if len({each.job_id for each in group}) < 2 or (kind == SEGMENT and len(nodes) < 2):
                    continue
                title = _title(kind, subject, group, nodes, names)
                parts = tuple(each.id for each in group)
                found.append(Shared(kind=kind, subject=subject, title=title, parts=parts, nodes=nodes))
                left = [each for each in left if each not in group]
    return tuple(found)


def _by_subject(kind: str, incidents: list[JobIncident], segments: Mapping[str, str]) -> dict[str, list[JobIncident]]:
    found: dict[str, list[JobIncident]] = {}
    for each in incidents:
        if kind == SEGMENT:
            subjects = {segments.get(node_id, "") for node_id in each.silent} - {""}
        elif kind == NODE:
            subjects = {*each.named}
        else:
            subjects = {""} if each.saving else set()
        for subject in subjects:
            found.setdefault(subject, []).append(each)
    return found


def _at_once(incidents: list[JobIncident]) -> list[list[JobIncident]]:
    """In groups, of which each began within `NEAR_S` of the one before."""
    groups = [incidents[:1]]
    for before, after in pairwise(incidents):
        if after.opened_s - before.opened_s <= NEAR_S:
            groups[-1].append(after)
        else:
            groups.append([after])
    return groups


def _nodes(kind: str, subject: str, group: list[JobIncident], segments: Mapping[str, str]) -> tuple[str, ...]:
    if kind == SEGMENT:
        silent = {node_id for each in group for node_id in each.silent}
        return tuple(sorted(node_id for node_id in silent if segments.get(node_id, "") == subject))
    return (subject,) if kind == NODE else ()


def _title(kind: str, subject: str, group: list[JobIncident], nodes: tuple[str, ...], names: Mapping[str, str]) -> str:
    jobs = f"{len({each.job_id for each in group})} jobs"
    if kind == SEGMENT:
        return short(f"{len(nodes)} nodes of {subject} are not heard: {jobs}")
    if kind == NODE:
        return short(f"{names.get(subject, subject)} failed under {jobs}")
    return short(f"{jobs} stand still in a save: their storage")
