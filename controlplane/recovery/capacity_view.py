"""What the fleet's devices are in use for, as the API answers it (`protocol.rest.Capacity`). Reads alone.

A few queries, grouped by node and model, so that no row of a device or a rank is an object here; devices are listed
only where a finding accuses one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count, Q
from msgspec.structs import replace

from controlplane.access.rights import Rights
from controlplane.fleet.models import Device, Node
from controlplane.fleet.reservations import by_node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.seen import UNSEEN_ID
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.queue.capacity import Condition, Share, Tally, by_segment, tally, total
from controlplane.policy.queue.ends import Ending, ending
from controlplane.policy.queue.rows import Holder
from controlplane.policy.queue.until import is_window
from controlplane.policy.reserved import ANOTHER, Reservation
from controlplane.policy.reserved_words import Kept, count
from controlplane.protocol.states import NodeState
from controlplane.recovery import load_lenders, load_queue, signals, stakes
from controlplane.recovery.load_devices import NODES_A_QUERY
from controlplane.recovery.queue_view import reserved_devices
from controlplane.recovery.unseen import PRIVATE, as_seen_by
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.runtime.events import newest_seq
from controlplane.runtime.pieces import batched
from controlplane.scheduling.models import SpareReservation

Json = dict[str, Any]
Kind = tuple[str, str]
"""A node's id and a model."""

LISTED = 50
"""So many ends and yields are listed; the rest are counted."""
TYPES = 50
SEGMENTS = 500
"""So many types, and segments of a type, are listed."""


def capacity(rights: Rights) -> Json:
    """All of GET /capacity, as whoever has these rights sees it: jobs of projects that are not seen have no names."""
    seq, moment_s = newest_seq(), now_s()
    _, fleet = as_seen_by(rights, (), load_queue.load_fleet())
    holders = tuple(each for each in fleet.holders if not is_window(each.id))
    kept = _running(rights, moment_s)
    listed = list(shares(kept))
    found = by_segment(share for _, share in listed)
    types = [_type(model, segments) for model, segments in found.items()]
    types.sort(key=lambda each: (-each["counts"]["devices"], each["gpu_type"]))
    reserved = _reserved(listed, kept)
    ends, whole = ending(holders, moment_s), stakes.yielding()
    to = {job_id: urgent for job_id, (urgent, _) in stakes.giving().items()} | whole
    yields = [each for each in holders if each.id in whole or (each.id in to and each.gives)]
    return {
        "as_of_seq": seq,
        "at": iso(from_s(moment_s)),
        "waiting": load_queue.waiting_count(),
        "counts": _counts(total(each for segments in found.values() for each in segments.values())),
        "types": types[:TYPES],
        "types_left_out": max(0, len(types) - TYPES),
        "ends": [_end(end) for end in ends[:LISTED]],
        "ends_count": len(ends),
        "ends_unknown": sum(not each.leaves and each.ends_s is None for each in holders),
        "yields": _yields(rights, yields[:LISTED], to, whole),
        "yields_count": len(yields),
        "reserved": [reserved_devices(each) for each in reserved[:LISTED]],
        "reserved_count": len(reserved),
    }


def shares(kept: Mapping[str, Reservation]) -> Iterator[tuple[str, Share]]:
    """The devices of every node that was not removed, by model, each with its node's id. `kept`: which are reserved."""
    silent, named = load_lenders.accused()
    out = silent | signals.node_checks().keys()
    spare = set(SpareReservation.objects.order_by().values_list("device__node_id", flat=True).distinct())
    held, accused = _held(), _accused(named)
    nodes = Node.objects.filter(removed_at=None).order_by("id")
    about = {node_id: (segment, state, down) for node_id, segment, state, down in _nodes(nodes, out)}
    for node_id, model, number, good in _devices():
        if node_id not in about:
            continue
        segment, state, down = about[node_id]
        in_use, used_and_good = held.get((node_id, model), (0, 0))
        in_use = min(in_use, number)
        unfit = (number - good) - (in_use - used_and_good) + accused.get((node_id, model), 0)
        share = Share(
            model=model,
            segment=segment,
            condition=Condition.DOWN if down else _condition(state, spare=node_id in spare, kept=node_id in kept),
            devices=number,
            in_use=in_use,
            # The queries are not of one moment: what changed between two of them is in one class all the same.
            unfit=max(0, min(unfit, number - in_use)),
        )
        yield node_id, share


def _running(rights: Rights, now_s: float) -> Mapping[str, Reservation]:
    """By node the reservation that runs, as these rights may know of it."""
    found = {node_id: each for node_id, its in by_node().items() for each in its if each.runs(now_s)}
    return {
        node_id: each if rights.sees(each.project) else replace(each, shown=ANOTHER) for node_id, each in found.items()
    }


def _reserved(shares: Iterable[tuple[str, Share]], kept: Mapping[str, Reservation]) -> list[Kept]:
    """Of each reservation that runs how many devices are free, which ends first first."""
    found: dict[str, Kept] = {}
    for node_id, share in shares:
        if node_id in kept:
            count(found, kept[node_id], tally(share).reserved)
    return sorted(found.values(), key=lambda each: (each.reservation.until_s, each.reservation.id))


def _nodes(rows: Any, out: set[str]) -> Iterator[tuple[str, str, str, bool]]:
    """(id, segment, state, whether it is of no use now)."""
    columns = ("id", "segment", "state", "connected", "revoked_at")
    for node_id, segment, state, connected, revoked_at in rows.values_list(*columns):
        down = not connected or revoked_at is not None or node_id in out
        yield node_id, segment, state, down


def _condition(state: str, *, spare: bool, kept: bool) -> Condition:
    if state == NodeState.DRAINING:
        return Condition.DRAINING
    if state == NodeState.CORDONED:
        return Condition.CORDONED
    if state not in PLACEABLE:
        return Condition.DOWN
    return Condition.SPARE if spare else Condition.RESERVED if kept else Condition.OPEN


_GOOD = Q(healthy=True, present=True)


def _devices() -> Any:
    """(node, model, how many, how many of these are healthy)."""
    rows = Device.objects.order_by().values_list("node_id", "model")
    return rows.annotate(number=Count("pk"), good=Count("pk", filter=_GOOD))


def _held() -> Mapping[Kind, tuple[int, int]]:
    """(How many a job has, how many of these are healthy)."""
    good = Count("pk", filter=Q(device__healthy=True, device__present=True))
    rows = Rank.objects.filter(released_at=None).order_by().values_list("node_id", "device__model")
    return {(node_id, model): (n, fit) for node_id, model, n, fit in rows.annotate(number=Count("pk"), good=good)}


def _accused(named: Mapping[str, frozenset[int]]) -> Mapping[Kind, int]:
    """Devices in nobody's hands that count as healthy, and that an open finding accuses."""
    found: dict[Kind, int] = defaultdict(int)
    for some in batched(sorted(named), NODES_A_QUERY):
        rows = Device.objects.filter(_GOOD, node__in=some).exclude(ranks__in=Rank.objects.filter(released_at=None))
        for node_id, model, index in rows.values_list("node_id", "model", "index"):
            found[node_id, model] += index in named[node_id]
    return found


def _type(model: str, segments: Mapping[str, Tally]) -> Json:
    listed = list(segments.items())[:SEGMENTS]
    return {
        "gpu_type": model,
        "counts": _counts(total(segments.values())),
        "segments": [{"segment": name, "counts": _counts(its)} for name, its in listed],
        "left_out": len(segments) - len(listed),
    }


def _counts(its: Tally) -> Json:
    return {name: getattr(its, name) for name in its.__struct_fields__}


def _end(end: Ending) -> Json:
    """Of replicas that leave alone, so many devices."""
    devices = sum(number for _, number in end.devices)
    return _job(end.holder) | {
        "devices": devices,
        "expected_end_at": iso(from_s(end.ends_s)),
        "leaves": end.holder.leaves or bool(end.holder.gives),
    }


def _job(holder: Holder) -> Json:
    devices = sum(number for _, number in holder.devices)
    id_ = UNSEEN_ID if holder.name == PRIVATE else holder.id
    return {"id": id_, "name": holder.name, "priority": holder.priority, "devices": devices}


def _yields(rights: Rights, holders: Sequence[Holder], to: Mapping[str, str], whole: Collection[str]) -> list[Json]:
    """With the job that each yields to, and what that was expected to cost when it was asked; those that are not
    among the `whole` give replicas alone."""
    urgent = {to[holder.id] for holder in holders} - {""}
    rows = Job.objects.filter(pk__in=urgent).values_list("id", "project", "name", "priority")
    named = {
        job_id: {"id": job_id, "name": name, "priority": priority}
        if rights.sees(project)
        else {"id": UNSEEN_ID, "name": PRIVATE, "priority": priority}
        for job_id, project, name, priority in rows
    }
    prices = stakes.expected(urgent) if urgent else {}
    return [
        _job(holder if holder.id in whole else replace(holder, devices=holder.gives))
        | {
            "trains_on": holder.id not in whole,
            "to": named[to[holder.id]] | {"expected_end_at": None} if to[holder.id] in named else None,
            "lost_gpu_s": prices.get(holder.id),
        }
        for holder in holders
    ]
