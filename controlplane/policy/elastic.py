"""How many replicas an attempt takes: those that fit, fewer than asked for where that will do (`scheduling.elastic`),
or as many as its project's quota leaves. Asked by the rules that place attempts."""

from controlplane.policy.errors import NoLayout, Unsatisfiable
from controlplane.policy.layout import Layout, plan_layout
from controlplane.policy.placement import Pool
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import number_of
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count


def later_replicas(spec: TrainSpec, layout: Layout, *, gave: bool) -> int:
    """How many more replicas of this layout a job takes when there is room: one that is elastic, or that `gave` some in
    the attempt before and takes them back. Another layout grows into none."""
    same = ranks_per_replica(layout.parallelism) == ranks_per_replica(spec.parallelism)
    return replica_count(spec) - layout.replicas if (spec.scheduling.elastic or gave) and same else 0


def may_start_smaller(spec: TrainSpec, devices: int) -> bool:
    """An elastic job need not wait for all that it asks for: so many devices have room for `min_replicas`."""
    return spec.scheduling.elastic and devices >= _least(spec)


def first_within(spec: TrainSpec, devices: int) -> None:
    """A first attempt has the layout that is asked for, also where its project's quota bounds it to so many devices.
    Raises Unsatisfiable where these are too few."""
    if not may_start_smaller(spec, devices):
        raise Unsatisfiable(
            f"its project's quota and what is free have {number_of(devices, 'device')} for it, {_least(spec)} are"
            " needed at least"
        )


def _least(spec: TrainSpec) -> int:
    return max(1, spec.resources.min_replicas) * ranks_per_replica(spec.parallelism)


def quota_left(snapshot: JobSnapshot) -> int | None:
    """With so many devices at most the next attempt starts, as its project's quota has no more for it now; None: with
    as many as it asks for."""
    return snapshot.queue.at_most if snapshot.queue is not None else None


def what_is_left(snapshot: JobSnapshot, layout: Layout) -> str:
    """Beside the attempt: of the fleet, or of what bounds it."""
    most = quota_left(snapshot)
    if most is not None:
        return f"its project's quota has {number_of(most, 'device')} for it"
    return f"{number_of(layout.idle_devices, 'device')} free"


def layout_for(snapshot: JobSnapshot, pool: Pool, *, most: int | None = None) -> Layout:
    """The layout of the next attempt on `pool`, of at most so many devices, as its project's quota has no more for it
    (None: of all). Raises NoLayout."""
    spec, inside = snapshot.job.spec, dict(pool.nodes)
    sizes = [
        device.memory_bytes
        for node in snapshot.nodes
        for device in node.devices
        if device.index in inside.get(node.id, ()) and device.memory_bytes is not None
    ]
    told = snapshot.elsewhere
    if told is not None and told.memory_bytes is not None:
        sizes.append(told.memory_bytes)
    devices, allowed = pool.size if most is None else min(pool.size, most), spec.resiliency.allow_relayout
    try:
        return plan_layout(spec, devices, allow_relayout=allowed, memory_bytes=min(sizes, default=None))
    except NoLayout as error:
        if devices == pool.size:
            raise
        raise NoLayout(f"its project's quota has {number_of(devices, 'device')} for it: {error}") from error
