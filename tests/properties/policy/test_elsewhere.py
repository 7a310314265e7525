"""What is decided with the job's own nodes and what is asked for is what is decided with the whole fleet;
`make test-release` draws four times as many worlds."""

import os

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.elsewhere import decide_asking, parted
from controlplane.policy.ladder import attempt_pool, attempt_size
from controlplane.policy.placement import slots_of
from controlplane.policy.proved import Failure
from controlplane.policy.reserved import Reservation
from controlplane.policy.snapshot import DeviceFact, JobSnapshot, NodeFact, Placement, ReplicaFact, SignalFact
from controlplane.protocol.spec import Parallelism, Resources, Spares, Training, TrainSpec
from controlplane.protocol.states import AttemptState, JobState, NodeState, ReplicaState
from tests.properties.policy.test_decide import worlds
from tests.unit.policy.builders import (
    CONTRIBUTOR,
    attempt,
    change,
    install_of,
    job,
    node,
    pending,
    replica,
    running,
    signal,
    view_of,
)

CONFIG = PolicyConfig()
MANY, FEW = (400, 100) if "HOLDFAST_TEST_RELEASE" in os.environ else (100, 25)
GB = 10**9
MINE = Reservation(id="rsv_1", project="", from_s=0.0, until_s=4e9)
OTHERS = Reservation(id="rsv_2", project="vision", from_s=0.0, until_s=4e9)
SEGMENTS = st.sampled_from(["", "", "a", "b", "c"])


@st.composite
def strangers(draw: st.DrawFn, least: int = 0) -> tuple[NodeFact, ...]:
    """Nodes that the job is not on, as fleets have them: part in use, reserved, worn, silent, failing their checks."""
    found = []
    for number in range(draw(st.integers(least, 16))):
        devices = tuple(
            DeviceFact(
                index=index,
                uuid=f"s{number}d{index}",
                free=draw(st.sampled_from([True, True, True, False])),
                healthy=draw(st.sampled_from([True, True, True, False])),
                model=draw(st.sampled_from(["H100", "H100", "H100", "A100"])),
                memory_bytes=draw(st.sampled_from([None, 40 * GB, 80 * GB])),
            )
            for index in range(draw(st.integers(1, 4)))
        )
        devices = tuple(change(device, held=not device.free) for device in devices)
        found.append(
            change(
                node(0),
                id=f"{draw(st.sampled_from('amz'))}{number}",
                name=f"stranger-{number}",
                devices=devices,
                segment=draw(SEGMENTS),
                state=draw(st.sampled_from([NodeState.READY] * 6 + [NodeState.DEGRADED, NodeState.CORDONED])),
                connected=draw(st.sampled_from([True] * 6 + [False])),
                silent_s=draw(st.sampled_from([0.2, 0.2, 0.2, 5.0, None])),
                reserved_for=draw(st.sampled_from([None] * 8 + ["job_2", "job_1"])),
                unhealthy=draw(st.sampled_from([""] * 8 + ["disk"])),
                warm=draw(st.sampled_from([False] * 8 + [True])),
                reservations=draw(st.sampled_from([()] * 6 + [(MINE,), (OTHERS,)])),
            )
        )
    return tuple(found)


def with_fleet(world: JobSnapshot, more: tuple[NodeFact, ...], **fields: object) -> JobSnapshot:
    nodes = tuple(sorted((*world.nodes, *more), key=lambda fact: fact.id))
    return change(world, nodes=nodes, fleet_devices=sum(len(fact.devices) for fact in nodes), **fields)


@st.composite
def specs(draw: st.DrawFn, parallelism: Parallelism, nodes: int) -> TrainSpec:
    return TrainSpec(
        resources=Resources(
            nodes=nodes,
            gpus_per_node=2,
            min_replicas=draw(st.integers(1, 3)),
            spares=Spares(gpus=draw(st.sampled_from([0, 0, 2, 5]))),
            gpu_type=draw(st.sampled_from([None, None, "H100"])),
        ),
        parallelism=parallelism,
        training=Training(steps=100, global_batch=6),
    )


@st.composite
def losses(draw: st.DrawFn, rows: list[ReplicaFact]) -> tuple[tuple[ReplicaFact, ...], tuple[SignalFact, ...]]:
    """Some of the replicas as they are after they lost a rank or a device, or were sent away; with what was found."""
    kind = draw(st.sampled_from(["rank_exit", "device_lost", "evicted", "ordered"]))
    left, found = list(rows), []
    for index in sorted(draw(st.sets(st.integers(0, 2), min_size=1))):
        row, home = rows[index], rows[index].placements[0].node_id
        if kind == "rank_exit":
            found.append(signal(kind, index, replica=index, incarnation=1, rank=0, node_id=home, value=-9.0))
            left[index] = change(row, exited_ranks=1)
        elif kind == "device_lost":
            found.append(signal(kind, index, node_id=home, device_index=0))
        elif kind == "evicted":
            left[index] = change(gone(row), refused=draw(st.booleans()))
        else:
            left[index] = change(row, ordered_out="ann", relieved=draw(st.sampled_from(["", "ann"])))
    return tuple(left), tuple(found)


def gone(row: ReplicaFact) -> ReplicaFact:
    return change(row, state=ReplicaState.EVICTED, in_view=False, contributing=False, stopped=True)


@st.composite
def divided(draw: st.DrawFn) -> JobSnapshot:
    """Three replicas, each on nodes of its own, of which some are lost: they are placed elsewhere if they can be."""
    ranks, tp = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (6, 2), (8, 4)]))
    layout, homes = Parallelism(tp=tp, pp=ranks // tp), -(-ranks // 2)
    rows, nodes = [], []
    for index in range(3):
        own = [f"n{index}{number}" for number in range(homes)]
        nodes += [node(0, id=name, name=name, free=False, segment=draw(SEGMENTS)) for name in own]
        places = tuple(Placement(rank=r, node_id=own[r // 2], device_index=r % 2) for r in range(ranks))
        rows.append(replica(index, placements=places, world_size=ranks, joined_ranks=ranks))
    left, found = draw(losses(rows))
    view = view_of(*((row.index, 1, CONTRIBUTOR) for row in left if row.state is not ReplicaState.EVICTED))
    world = running(
        spares=0,
        job=job(spec=draw(specs(layout, 3 * homes))),
        attempt=attempt(layout=change(layout, dp=3), state=AttemptState.RUNNING, max_contributors=3),
        replicas=left,
        nodes=tuple(nodes),
        signals=found,
        view=view,
        install=install_of(view),
    )
    if draw(st.sampled_from([False, False, True])):
        waits, ended = change(world.job, state=JobState.PENDING), change(world.attempt, state=AttemptState.ENDED)
        over = {"view": None, "install": None, "signals": ()}
        world = change(world, job=waits, attempt=ended, replicas=tuple(map(gone, world.replicas)), **over)
    return with_fleet(world, draw(strangers()))


def asked(world: JobSnapshot) -> JobSnapshot:
    """Equal plans; the snapshot that is kept gives its plan again, after it was stored too."""
    part, answer = parted(world)
    times = 0

    def counted(snapshot, asks):
        nonlocal times
        times += 1
        return answer(snapshot, asks)

    kept, plan = decide_asking(part, CONFIG, counted)
    assert plan == decide(world, CONFIG)
    assert times < 12
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=JobSnapshot)
    assert decide(stored, CONFIG) == plan
    return kept


@given(divided())
@settings(max_examples=MANY, deadline=None)
def test_a_job_that_lost_something_is_decided_as_on_the_whole_fleet(world: JobSnapshot) -> None:
    asked(world)


@given(worlds(), strangers())
@settings(max_examples=FEW, deadline=None)
def test_whatever_the_world_looks_like(world: JobSnapshot, more: tuple[NodeFact, ...]) -> None:
    suspect = tuple(fact.id for fact in more if not fact.connected)
    asked(with_fleet(world, more, suspect_nodes=suspect))


@given(strangers(least=4), st.integers(1, 6), st.sampled_from([1, 2, 3, 4, 6, 9]), st.integers(0, 6))
@settings(max_examples=MANY, deadline=None)
def test_a_gang_and_its_spares_are_placed_as_on_the_whole_fleet(
    fleet: tuple[NodeFact, ...], replicas: int, ranks: int, spares: int
) -> None:
    spec = TrainSpec(
        resources=Resources(nodes=replicas * ranks, gpus_per_node=1, spares=Spares(gpus=spares)),
        parallelism=Parallelism(tp=1, pp=ranks),
        training=Training(steps=100, global_batch=replicas),
    )
    world = pending(job=job(state=JobState.PENDING, epoch=0, committed_step=0, spec=spec), nodes=())
    asked(with_fleet(world, fleet))


def test_however_many_are_slow_in_however_many_segments_little_is_asked() -> None:
    """Each of them could be moved near its own place: that is one question, not one for each."""
    rows, nodes, found = [], [], []
    for index in range(20):
        home = f"n{index}"
        nodes.append(node(0, id=home, name=home, free=False, segment=f"s{index}"))
        places = (Placement(rank=0, node_id=home, device_index=0),)
        rows.append(replica(index, placements=places, world_size=1, joined_ranks=1))
        late = {"cause": "device", "late_s": 2.0, "epoch": 2}
        found.append(
            signal("straggler", index, replica=index, incarnation=1, rank=0, node_id=home, value=0.4, evidence=late)
        )
    view = view_of(*((row.index, 1, CONTRIBUTOR) for row in rows))
    layout = Parallelism(tp=1, pp=1, dp=20)
    spec = TrainSpec(
        resources=Resources(nodes=20, gpus_per_node=1),
        parallelism=Parallelism(tp=1, pp=1),
        training=Training(steps=10_000, global_batch=20),
    )
    world = running(
        spares=0,
        job=job(spec=spec),
        attempt=attempt(layout=layout, state=AttemptState.RUNNING, max_contributors=20),
        replicas=tuple(rows),
        nodes=tuple(nodes),
        signals=tuple(found),
        view=view,
        install=install_of(view),
    )
    part, answer = parted(with_fleet(world, (node(0, id="z", name="z", segment="s3"),)))
    times = 0

    def counted(snapshot, asks):
        nonlocal times
        times += 1
        return answer(snapshot, asks)

    _, plan = decide_asking(part, CONFIG, counted)
    assert sum(decision.rule == "straggler" for decision in plan.decisions) >= 1
    assert times <= 2


@st.composite
def blamed(draw: st.DrawFn) -> tuple[JobSnapshot, tuple[Failure, ...]]:
    """Replicas that failed, each blaming some of the nodes and devices that it was on."""
    world = draw(divided())
    failures = []
    for row in world.replicas:
        slots = slots_of(row.placements)
        bad_slots = tuple(draw(st.lists(st.sampled_from(slots), unique=True))) if slots else ()
        bad_nodes = tuple(draw(st.lists(st.sampled_from(sorted(row.node_ids)), max_size=1))) if slots else ()
        base = {"kind": "rank_exit", "proved": True, "sentence": "it ended"}
        failures.append(Failure(replica=row, bad_slots=bad_slots, bad_nodes=bad_nodes, **base))
    return world, tuple(failures)


@given(blamed())
@settings(max_examples=MANY, deadline=None)
def test_the_size_of_an_attempts_pool_is_that_of_the_pool_itself(case):
    world, failures = case
    assert attempt_size(world, CONFIG, failures) == attempt_pool(world, CONFIG, failures).size
    assert attempt_size(world, CONFIG, ()) == attempt_pool(world, CONFIG, ()).size
