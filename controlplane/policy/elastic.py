"""How many replicas an attempt takes, and where: those that fit, fewer than asked for where that will do
(`scheduling.elastic`), or as many as its project's quota leaves. Asked by the rules that place attempts: one that waits
in the queue (`lifecycle`) and one that is placed again as its attempt ends (`restart`) take what they take by the same
functions.
"""

from controlplane.policy.asked import Again, Need, near, require
from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import NoLayout, PolicyError, Unsatisfiable
from controlplane.policy.facts import nodes_of
from controlplane.policy.layout import Layout, plan_layout
from controlplane.policy.placement import Pool, choose_spares, place_gang
from controlplane.policy.slots import wanted
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, Placement
from controlplane.policy.titles import number_of
from controlplane.protocol.spec import Parallelism, TrainSpec, ranks_per_replica, replica_count

Gang = tuple[tuple[Placement, ...], ...]
"""Of each replica the places of its ranks."""


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


def again(snapshot: JobSnapshot, config: PolicyConfig) -> Again:
    """What the quota of its project has for the next attempt of a job that runs. Its place in the queue
    (`snapshot.queue`) says nothing of that: it is that of one replica more."""
    require(snapshot, Need(again=True), config.fresh_s)
    found = snapshot.elsewhere.again if snapshot.elsewhere is not None else None
    return found or Again()


def kept(attempt: AttemptFact) -> int | None:
    """So many devices its ranks keep at a restart: those that it has yielded, or has begun without, are others' until
    the queue gives them back (`grow`). None: it has yielded none."""
    return wanted(attempt) * ranks_per_replica(attempt.layout) if attempt.yielded else None


def what_bounds(most: int | None, keeps: int | None) -> str:
    """Behind the words about a layout: what else than free devices bounds it, see `later_attempt`; "" for nothing."""
    if most is not None and (keeps is None or most <= keeps):
        return f"; its project's quota has {number_of(most, 'device')} for it"
    return f"; it had {number_of(keeps, 'device')}, and takes more by the queue alone" if keeps is not None else ""


def later_attempt(
    snapshot: JobSnapshot, config: PolicyConfig, pool: Pool, *, most: int | None = None, keeps: int | None = None
) -> tuple[Layout, Gang, tuple[str, ...]]:
    """What an attempt after the first takes of `pool`: (layout, places, nodes of spares, where they are there). `most`:
    so many devices at most, its spares among them, as its project's quota has no more for it; `keeps`: under its ranks
    at most so many, see `kept` (None: all). Raises PolicyError."""
    spec = snapshot.job.spec
    layout = layout_for(snapshot, pool, most=most, keeps=keeps)
    require(snapshot, gang(snapshot, layout.replicas, layout.parallelism), config.fresh_s)
    placements = place_gang(pool, layout.replicas, ranks_per_replica(layout.parallelism), tp=layout.parallelism.tp)
    devices = sum(map(len, placements)) + max(0, spec.resources.spares.gpus)
    spared = most is None or devices <= most
    return layout, placements, best_effort_spares(spec, pool, placements) if spared else ()


def layout_for(snapshot: JobSnapshot, pool: Pool, *, most: int | None = None, keeps: int | None = None) -> Layout:
    """The layout of the next attempt on `pool`, of at most `most` and `keeps` devices, see `later_attempt`. What a job
    has yielded is counted in replicas of its layout: with `keeps` there is no other. Raises NoLayout."""
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
    devices = min(size for size in (pool.size, most, keeps) if size is not None)
    allowed = spec.resiliency.allow_relayout and keeps is None
    try:
        return plan_layout(spec, devices, allow_relayout=allowed, memory_bytes=min(sizes, default=None))
    except NoLayout as error:
        if most is not None and devices == most < pool.size:
            raise NoLayout(f"its project's quota has {number_of(devices, 'device')} for it: {error}") from error
        if keeps is None or not spec.resiliency.allow_relayout:
            raise
        left = f"of the devices that it has not yielded {devices} {'is' if devices == 1 else 'are'} left"
        raise NoLayout(f"{left}, {_least(spec)} are needed at least") from error


def gang(snapshot: JobSnapshot, replicas: int, parallelism: Parallelism) -> Need:
    """What an attempt of so many replicas needs, with its spares."""
    return Need(
        replicas=replicas,
        ranks=ranks_per_replica(parallelism),
        spare_devices=max(0, snapshot.job.spec.resources.spares.gpus),
        near=near(snapshot, [{node_id for replica in snapshot.replicas for node_id in nodes_of(replica)}]),
    )


def spare_nodes(spec: TrainSpec, pool: Pool, placements: Gang) -> tuple[str, ...]:
    """Whole nodes kept free beside these placements. Raises Unsatisfiable."""
    used = {placement.node_id for replica in placements for placement in replica}
    return choose_spares(pool.without_nodes(used), spec.resources.spares.gpus, near=used)


def best_effort_spares(spec: TrainSpec, pool: Pool, placements: Gang) -> tuple[str, ...]:
    """Spares if they are there; a recovering job does not wait for them."""
    try:
        return spare_nodes(spec, pool, placements)
    except PolicyError:
        return ()
