"""Who held which devices, and what nodes said of theirs: spans of the GPU-second ledger, from events and rank rows.

Called by `recovery.ledger_pass` with pieces of the event log in sequence. What is the same as before makes no row.
Rows of ranks, not events, say who holds a device: each replica that an event names, and each that still holds
something, is compared with them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count

from controlplane.jobs.models import Rank, Replica
from controlplane.policy.ledger.facts import Cause, Role
from controlplane.protocol.ledger import CauseKind
from controlplane.protocol.states import LIVE_REQUEST, NodeState, ReplicaState, RequestKind
from controlplane.recovery import ledger_rows
from controlplane.recovery.ledger_models import LedgerHold, LedgerStanding, LedgerTurn
from controlplane.recovery.models import Request, Signal
from controlplane.runtime import windows
from controlplane.runtime.models import ClockStep
from controlplane.runtime.pieces import batched

A_QUERY = 500
REMOVED = "node.removed"
SHUT = (NodeState.CORDONED, NodeState.DRAINING)
ROLES = {
    ReplicaState.FORMING: Role.JOINING,
    ReplicaState.CATCHING_UP: Role.JOINING,
    ReplicaState.ACTIVE: Role.TRAINING,
    ReplicaState.SUSPECT: Role.TRAINING,
    ReplicaState.SPARE: Role.SPARE,
    ReplicaState.EVICTED: Role.LEAVING,
    ReplicaState.ENDED: Role.LEAVING,
}


class Seen(NamedTuple):
    """An event that carries what it leaves of a node or a replica."""

    seq: int
    at: datetime
    kind: str
    entity: str
    entity_id: str
    patch: dict[str, Any] | None


def follow(seen: Sequence[Seen], steps: list[ClockStep]) -> None:
    """Take them in; `steps` of the server's clock (`windows.known`)."""
    moments = [(windows.present(each.at, steps).timestamp(), each) for each in seen if each.patch is not None]
    _standings([(at_s, each) for at_s, each in moments if each.entity == "node"])
    touched = _turns([(at_s, each) for at_s, each in moments if each.entity == "replica"])
    _holds(touched, steps)


def refresh_holds(steps: list[ClockStep]) -> None:
    """Of all that hold something: ranks are released without an event of their replica."""
    _holds(set(LedgerHold.objects.filter(until_s=None).values_list("replica_id", flat=True)), steps)


def _standings(seen: Sequence[tuple[float, Seen]]) -> None:
    nodes = {each.entity_id for _, each in seen}
    rows = {row.node_id: row for some in batched(sorted(nodes), A_QUERY) for row in _going_on(some)}
    made, changed = list[LedgerStanding](), dict[int, LedgerStanding]()
    for at_s, each in seen:
        assert each.patch is not None
        old, new = rows.get(each.entity_id), _standing(each)
        if old is not None and _same(old, new):
            continue
        new.from_s = at_s if old is None else max(at_s, old.from_s)
        if old is not None:
            old.until_s = new.from_s
            if old.pk is not None:
                changed[old.pk] = old
        made.append(new)
        rows[each.entity_id] = new
    ledger_rows.keep_standings(changed.values(), made)


def _going_on(nodes: Sequence[str]) -> Iterable[LedgerStanding]:
    return LedgerStanding.objects.filter(node__in=nodes, until_s=None)


def _standing(seen: Seen) -> LedgerStanding:
    patch = seen.patch or {}
    devices = [] if seen.kind == REMOVED else patch["devices"]
    broken = sum(not (device["present"] and device["healthy"]) for device in devices)
    row = LedgerStanding(node_id=seen.entity_id, devices=len(devices))
    if patch["state"] == NodeState.QUARANTINED:
        row.down = len(devices)
    elif not patch["connected"]:
        row.unseen = len(devices)
    else:
        row.down = broken
        row.spare = sum(device["spare_for"] is not None for device in devices)
        if patch["state"] in SHUT or patch["held"] or patch["revoked"]:
            row.cordoned = len(devices) - broken
    cause = _cause(seen, row)
    row.cause_kind, row.cause_id = cause.kind, cause.id[:200]
    return row


def _same(old: LedgerStanding, new: LedgerStanding) -> bool:
    names = ("devices", "down", "cordoned", "spare", "unseen", "cause_kind", "cause_id")
    return all(getattr(old, name) == getattr(new, name) for name in names)


def _cause(seen: Seen, row: LedgerStanding) -> Cause:
    """The incident of what broke, the person who shut it; else what the node says."""
    if not row.down + row.cordoned + row.unseen:
        return Cause()
    reason = str((seen.patch or {})["state_reason"])
    if row.down:
        found = Signal.objects.filter(node_id=seen.entity_id, seen_at__lte=seen.at).exclude(incident=None)
        newest = found.order_by("-seen_at").values_list("incident_id", "incident__resolved_at").first()
        if newest is not None and (newest[1] is None or newest[1] > seen.at):
            return Cause(CauseKind.INCIDENT, newest[0])
    elif row.cordoned:
        drains = Request.objects.filter(node_id=seen.entity_id, kind=RequestKind.DRAIN, asked_at__lte=seen.at)
        who = drains.filter(state__in=LIVE_REQUEST).order_by("-asked_at").values_list("who", flat=True).first()
        return Cause(CauseKind.PERSON, f"{reason} ({who})" if who and who not in reason else reason)
    return Cause(CauseKind.NODE, reason or ("not connected" if row.unseen else "its devices are not healthy"))


def _turns(seen: Sequence[tuple[float, Seen]]) -> set[int]:
    """Returns the keys of the replicas that they are about."""
    keys = _keys({each.entity_id for _, each in seen})
    newest: dict[int, str] = {}
    for some in batched(sorted(keys.values()), A_QUERY):
        rows = LedgerTurn.objects.filter(replica__in=some).order_by("pk")
        newest |= dict(rows.values_list("replica_id", "role"))
    made = []
    for at_s, each in seen:
        key, role = keys.get(each.entity_id), ROLES[(each.patch or {})["state"]]
        if key is not None and newest.get(key, Role.JOINING) != role:
            made.append(LedgerTurn(replica_id=key, from_s=at_s, role=role))
            newest[key] = role
    ledger_rows.add_turns(made)
    return set(keys.values())


def _keys(ids: set[str]) -> dict[str, int]:
    """By `jobs.present.replica_id`."""
    keys = {tuple(name.split("/")): name for name in ids}
    rows = Replica.objects.filter(attempt__job__in={key[0] for key in keys})
    rows = rows.filter(attempt__number__in={int(key[1]) for key in keys})
    found = rows.values_list("pk", "attempt__job_id", "attempt__number", "index", "incarnation")
    known = {(job, str(number), str(index), str(key)): pk for pk, job, number, index, key in found}
    return {name: known[key] for key, name in keys.items() if key in known}


def _holds(replicas: Iterable[int], steps: list[ClockStep]) -> None:
    """Make the rows of these what their ranks' rows say."""
    for some in batched(sorted(replicas), A_QUERY):
        ranks = Rank.objects.filter(replica__in=some).order_by()
        names = ("replica_id", "replica__attempt__job_id", "node_id", "replica__created_at", "released_at")
        held = defaultdict[int, dict[tuple[str, float, float | None], int]](dict)
        jobs: dict[int, str] = {}
        for replica, job, node, since, until, count in ranks.values_list(*names).annotate(n=Count("pk")):
            from_s = windows.present(since, steps).timestamp()
            until_s = None if until is None else max(from_s, windows.present(until, steps).timestamp())
            held[replica][node, from_s, until_s] = count
            jobs[replica] = job
        rows = defaultdict[int, dict[tuple[str, float, float | None], int]](dict)
        for row in LedgerHold.objects.filter(replica__in=some):
            rows[row.replica_id][row.node_id, row.from_s, row.until_s] = row.devices
        differ = [replica for replica in some if held[replica] != rows[replica]]
        made = [
            LedgerHold(
                job_id=jobs[replica], node_id=node, replica_id=replica, from_s=since_s, until_s=until_s, devices=n
            )
            for replica in differ
            for (node, since_s, until_s), n in held[replica].items()
        ]
        ledger_rows.replace_holds(differ, made)
