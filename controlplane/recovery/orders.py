"""From placements to rows and start orders: attempts, incarnations, ranks."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Max

from controlplane.dispatch import services as dispatch
from controlplane.fleet.models import Device, Node
from controlplane.fleet.services import publish_devices
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import spec_of
from controlplane.jobs.services import publish_replica
from controlplane.policy import plan
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.snapshot import Placement
from controlplane.policy.timeouts import SectionTimeout, setup_limit_s, step_floor_s, timeout_of
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.launch import RankPlacement, ReplicaLaunch, Resume, TrainerConfig
from controlplane.protocol.spec import Parallelism, TrainSpec, max_contributors
from controlplane.protocol.states import Section
from controlplane.recovery.learned import timeouts_of
from controlplane.recovery.models import ViewRow
from controlplane.runtime.clock import from_s, now
from controlplane.runtime.errors import Conflict
from controlplane.runtime.pieces import batched
from controlplane.scheduling import services as scheduling

START_TTL_S = 60.0
A_QUERY = 500
"""Nodes, devices or ranks that one query names."""


def checkpoint_dir(job: Job, spec: TrainSpec) -> str:
    """The job's own below the spec's directory or address (jobs may share that: each has its
    fence), else one of the control plane's."""
    return f"{(spec.checkpoint.dir or str(settings.CHECKPOINT_ROOT)).rstrip('/')}/{job.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every start of one decision shares: read from the job's rows once, as it rests on
    thousands of them."""

    job: Job
    attempt: Attempt
    config: TrainerConfig
    limits: tuple[SectionTimeout, ...]
    decision_id: str
    env: dict[str, str]


def terms_of(job: Job, attempt: Attempt, decision_id: str) -> Terms:
    """The terms on which this decision may start replicas of the attempt. Who starts once there
    is a view joins those who train and has its state from them: what the attempt began with
    may be pruned by then."""
    limits = timeouts_of(job)
    config = trainer_config(job, attempt, learned_setup_s=timeout_of(limits, Section.SETUP))
    if ViewRow.objects.filter(job=job, attempt=attempt.number).exists():
        config = msgspec.structs.replace(config, resume=None)
    return Terms(
        job=job,
        attempt=attempt,
        config=config,
        limits=limits,
        decision_id=decision_id,
        env=environment.opened(job),
    )


def trainer_config(job: Job, attempt: Attempt, *, learned_setup_s: float | None = None) -> TrainerConfig:
    """The same for every rank of the attempt."""
    spec = spec_of(job).spec
    layout = msgspec.convert(attempt.layout, Parallelism)
    resume = Resume(path=attempt.resume_path, step=attempt.resume_step) if attempt.resume_path else None
    return TrainerConfig(
        model=spec.model,
        parallelism=layout,
        training=spec.training,
        checkpoint=spec.checkpoint,
        checkpoint_dir=attempt.checkpoint_dir,
        replicas=attempt.replicas,
        store=settings.STORE_ADDRESS,
        resume=resume,
        outer_timeout_s=settings.OUTER_TIMEOUT_S,
        inner_timeout_s=setup_limit_s(spec.resiliency.timeouts, learned_setup_s),
        max_contributors=attempt.max_contributors or max_contributors(spec),
        allow_faults=spec.resiliency.allow_faults,
        timing_interval_s=spec.resiliency.stragglers.interval_s,
    )


def most_contributors(job: Job, placed: int) -> int:
    """How many of the `placed` replicas of an attempt compute at most: one that is started beside them
    stands by until it takes a place."""
    return max_contributors(spec_of(job).spec) or placed


def relieve(replica: Replica, reason: str) -> None:
    """Another one is to take its place, for this reason; "": it stays."""
    Replica.objects.filter(pk=replica.pk).update(relieved=reason)
    replica.relieved = reason
    publish_replica(replica, "replica.refreshed", "")


def order_out(replica: Replica, act: plan.OrderOut) -> None:
    """It is to leave as a person asked, or (by nobody) is not any more."""
    asked_at = from_s(act.asked_s) if act.by else None
    relieved = "" if act.at_once else act.by
    Replica.objects.filter(pk=replica.pk).update(ordered_out=act.by, ordered_at=asked_at, relieved=relieved)
    replica.ordered_out, replica.ordered_at, replica.relieved = act.by, asked_at, relieved
    publish_replica(replica, "replica.refreshed", "")


def next_incarnation(job: Job, index: int) -> int:
    """Counts the lives of a slot over the whole job, from 1."""
    newest = Replica.objects.filter(attempt__job=job, index=index).aggregate(n=Max("incarnation"))["n"]
    return max(newest or 0, int(job.ahead.get("incarnations", {}).get(str(index), 0))) + 1


def start_replica(terms: Terms, index: int, incarnation: int, placements: tuple[Placement, ...]) -> Replica:
    """Rows of one incarnation and one start order for each of its nodes. Raises Conflict
    when a device is gone or held by somebody else."""
    job, attempt = terms.job, terms.attempt
    replica = Replica.objects.create(attempt=attempt, index=index, incarnation=incarnation)
    _hold_devices(job, replica, placements)
    lives = Replica.objects.filter(attempt__job=job, index=index).exclude(pk=replica.pk).select_related("attempt")
    if (old := lives.order_by("-incarnation").first()) is not None:
        # It is not the slot's current life any more.
        publish_replica(old, "replica.refreshed", "")
    publish_replica(replica, "replica.started", f"Replica {index}, incarnation {incarnation}, is started.")
    dispatch.enqueue_each(
        _start_orders(terms, replica, placements),
        job_id=job.id,
        attempt=attempt.number,
        epoch=job.epoch,
        decision_id=terms.decision_id,
        ttl_s=START_TTL_S,
    )
    return replica


def _start_orders(terms: Terms, replica: Replica, placements: tuple[Placement, ...]) -> list[tuple[str, StartRanks]]:
    """(node id, order) of each of its nodes. On several they meet at the node of the first rank."""
    by_node: dict[str, list[Placement]] = defaultdict(list)
    for placement in placements:
        by_node[placement.node_id].append(placement)
    launches = {node: _launch(terms, replica, len(placements), mine) for node, mine in sorted(by_node.items())}
    if len(by_node) > 1:
        first = next(placement for placement in placements if placement.rank == 0)
        name = Node.objects.values_list("name", flat=True).get(pk=first.node_id)
        launches = {node: msgspec.structs.replace(launch, master_host=name) for node, launch in launches.items()}
    return [(node, StartRanks(launch=launch)) for node, launch in launches.items()]


def _launch(terms: Terms, replica: Replica, world_size: int, mine: list[Placement]) -> ReplicaLaunch:
    job, limits = terms.job, terms.limits
    spec = spec_of(job).spec
    return ReplicaLaunch(
        job_id=job.id,
        job_name=job.name,
        attempt=terms.attempt.number,
        epoch=job.epoch,
        replica=replica.index,
        incarnation=replica.incarnation,
        world_size=world_size,
        ranks=tuple(RankPlacement(rank=p.rank, device_index=p.device_index) for p in mine),
        config=terms.config,
        entrypoint=tuple(spec.entrypoint) if spec.entrypoint else None,
        user=job.owner,
        env=terms.env,
        log_markers=spec.resiliency.log_markers,
        step_timeout_s=timeout_of(limits, Section.STEP),
        step_floor_s=step_floor_s(spec.resiliency.timeouts),
        setup_timeout_s=timeout_of(limits, Section.SETUP),
        checkpoint_timeout_s=timeout_of(limits, Section.CHECKPOINTING),
        out_of_section_timeout_s=timeout_of(limits, Section.OUT_OF_SECTION),
    )


def _hold_devices(job: Job, replica: Replica, placements: tuple[Placement, ...]) -> None:
    """One rank on each, in a few queries however many they are; a node that is drained or taken out keeps that
    state until this is committed, or has it already and is refused. Raises Conflict."""
    devices: dict[tuple[str, int], Device] = {}
    for nodes in batched(sorted({placement.node_id for placement in placements}), A_QUERY):
        states = Node.objects.filter(pk__in=nodes).order_by("pk").select_for_update().values_list("name", "state")
        for name, state in states:
            if state not in PLACEABLE:
                raise Conflict(f"node {name} takes no new work: it is {state}")
        devices |= {(row.node_id, row.index): row for row in Device.objects.filter(node_id__in=nodes)}
    for place in placements:
        if (place.node_id, place.device_index) not in devices:
            raise Conflict(f"node {place.node_id} has no device {place.device_index}")
    held = [devices[place.node_id, place.device_index] for place in placements]
    _hand_over(job, replica, held)
    scheduling.take(held, job)
    ranks = [
        Rank(replica=replica, rank=place.rank, node_id=place.node_id, device=device)
        for place, device in zip(placements, held, strict=True)
    ]
    Rank.objects.bulk_create(ranks, A_QUERY)
    publish_devices(held, "device.held", job_id=job.id)


def _hand_over(job: Job, replica: Replica, devices: list[Device]) -> None:
    """An older life of this slot, or of this job, leaves its devices to the new one: its
    agent proves the old process gone before it starts the new (ReplicaLaunch)."""
    for some in batched((device.id for device in devices), A_QUERY):
        leaving = list(Rank.objects.filter(device_id__in=some, released_at=None).select_related("replica__attempt"))
        for old in leaving:
            life: dict[str, Any] = {"job": old.replica.attempt.job_id, "attempt": old.replica.attempt.number}
            same_slot = old.replica.index == replica.index and old.replica.incarnation < replica.incarnation
            older = life["attempt"] < replica.attempt.number
            if life["job"] != job.id or not (same_slot or older):
                where = f"device {old.device.index} of {old.device.node.name}"
                raise Conflict(f"{where} is held by rank {old.rank} of {life['job']}")
        Rank.objects.filter(pk__in=[old.pk for old in leaving]).update(released_at=now())
