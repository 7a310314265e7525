"""The rows of a life that is started: its replica, its ranks, and the devices that they hold."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from controlplane.changes.kinds import CreateReplica
from controlplane.fleet.models import Device, Node
from controlplane.fleet.publish import refresh_nodes
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.services import publish_replica
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.plan import Action, PlaceAttempt, StartReplica
from controlplane.policy.snapshot import Placement
from controlplane.runtime import bulk
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict
from controlplane.runtime.pieces import batched
from controlplane.scheduling import services as scheduling

A_QUERY = 500
"""Nodes or ranks that one query names."""
_INCARNATION = ("replica__attempt__job_id", "replica__attempt__number", "replica__index", "replica__incarnation")


def lock_nodes(actions: Iterable[Action]) -> None:
    """All nodes of their starts at once, in one order: two decisions that share some wait, and do not cross."""
    wanted = {placement.node_id for action in actions for placements in _placed(action) for placement in placements}
    for nodes in batched(sorted(wanted), A_QUERY):
        list(Node.objects.filter(pk__in=nodes).order_by("pk").select_for_update(no_key=True).values_list("pk"))


def _placed(action: Action) -> tuple[tuple[Placement, ...], ...]:
    match action:
        case PlaceAttempt(placements=placements):
            return placements
        case StartReplica(placements=one):
            return (one,)
        case _:
            return ()


def create(attempt: Attempt, change: CreateReplica) -> None:
    """Raises Conflict when a device is gone or held by somebody else."""
    key = change.key
    replica = Replica.objects.create(attempt=attempt, index=key.index, incarnation=key.incarnation)
    _hold_devices(attempt.job, replica, change.placements)
    lives = Replica.objects.filter(attempt__job=attempt.job, index=key.index).exclude(pk=replica.pk)
    if (old := lives.select_related("attempt").order_by("-incarnation").first()) is not None:
        # It is not the slot's current life any more.
        publish_replica(old, "replica.refreshed", "")
    sentence = f"Replica {key.index}, incarnation {key.incarnation}, is started."
    publish_replica(replica, "replica.started", sentence)


def _hold_devices(job: Job, replica: Replica, placements: tuple[Placement, ...]) -> None:
    """One rank on each, in a few queries however many they are; a node that is drained or taken out keeps that
    state until this is committed, or has it already and is refused. Raises Conflict."""
    devices: dict[tuple[str, int], str] = {}
    holders: dict[str, tuple[Any, ...]] = {}
    for nodes in batched(sorted({placement.node_id for placement in placements}), A_QUERY):
        # Rows of others that name a node are still written: `FOR UPDATE` would stop their commit, which holds the
        # event stream that ours needs.
        rows = Node.objects.filter(pk__in=nodes).order_by("pk").select_for_update(no_key=True)
        for name, state in rows.values_list("name", "state"):
            if state not in PLACEABLE:
                raise Conflict(f"node {name} takes no new work: it is {state}")
        found = Device.objects.filter(node_id__in=nodes).values_list("node_id", "index", "id")
        devices |= {(node_id, index): device_id for node_id, index, device_id in found}
        ranks = Rank.objects.filter(node_id__in=nodes, released_at=None).order_by()
        holders |= {row[0]: row[1:] for row in ranks.values_list("device_id", "pk", "replica_id", *_INCARNATION)}
    for place in placements:
        if (place.node_id, place.device_index) not in devices:
            raise Conflict(f"node {place.node_id} has no device {place.device_index}")
    wanted = [devices[place.node_id, place.device_index] for place in placements]
    _hand_over(job, replica, [holders[device] for device in wanted if device in holders])
    scheduling.take(wanted, job)
    made = [(place.rank, place.node_id, device_id) for place, device_id in zip(placements, wanted, strict=True)]
    bulk.insert(Rank, {"replica_id": replica.pk}, ("rank", "node_id", "device_id"), made)
    refresh_nodes(sorted({place.node_id for place in placements}))


def _hand_over(job: Job, replica: Replica, holders: list[tuple[Any, ...]]) -> None:
    """An older life of this slot, or of this job, leaves its devices to the new one: its
    agent proves the old process gone before it starts the new (ReplicaLaunch). `holders`: keys of ranks and of their
    replicas, each with its life."""
    lives: dict[int, list[int]] = defaultdict(list)
    for pk, replica_id, job_id, attempt, index, incarnation in holders:
        same_slot = index == replica.index and incarnation < replica.incarnation
        if job_id != job.id or not (same_slot or attempt < replica.attempt.number):
            raise Conflict(_is_held(Rank.objects.select_related("device__node").get(pk=pk), job_id))
        lives[replica_id].append(pk)
    for replica_id, pks in lives.items():
        held = Rank.objects.filter(replica_id=replica_id, released_at=None)
        # Nearly always all that the old life has: then its thousands are not named.
        whole = held.count() == len(pks)
        for some in [None] if whole else batched(pks, A_QUERY):
            (held if some is None else held.filter(pk__in=some)).update(released_at=now())


def _is_held(rank: Rank, job_id: str) -> str:
    return f"device {rank.device.index} of {rank.device.node.name} is held by rank {rank.rank} of {job_id}"
