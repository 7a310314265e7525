"""Jobs of any size at the moments at which `decide` is asked: the facts, without a database.

A job of `replicas` x `gpus` ranks trains on nodes of eight devices; one node in twenty more is
free. Times in server seconds.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from controlplane.policy.snapshot import (
    AttemptFact,
    CheckpointFact,
    DeviceFact,
    JobFact,
    JobSnapshot,
    LearnedTimes,
    NodeFact,
    Placement,
    ReplicaFact,
    SignalFact,
)
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.spec import Parallelism, Resources, Training, TrainSpec
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, NodeState, ReplicaState

NOW_S = 10_000.0
GPUS_PER_NODE = 8
FREE_IN = 20
"""One node is free for so many that are used."""
EPOCH = 2
STEP = 500
LOST_IN_TEN = 10


class Size(NamedTuple):
    """Of a job: `replicas` of `gpus` ranks each."""

    replicas: int
    gpus: int

    @property
    def ranks(self) -> int:
        """Of the job."""
        return self.replicas * self.gpus

    def __str__(self) -> str:
        return f"{self.replicas} x {self.gpus}"


def quiet(size: Size) -> JobSnapshot:
    """Everybody trains, and nothing was found."""
    used = -(-size.ranks // GPUS_PER_NODE)
    spec = spec_of(size)
    view = members_of("job_1", EPOCH, dict.fromkeys(range(size.replicas), 1))
    return JobSnapshot(
        now_s=NOW_S,
        blind=False,
        job=JobFact(
            id="job_1",
            name="large",
            state=JobState.RUNNING,
            spec=spec,
            epoch=EPOCH,
            committed_step=STEP,
            created_s=0.0,
            progressed_s=NOW_S - 0.5,
        ),
        attempt=AttemptFact(
            number=1,
            state=AttemptState.RUNNING,
            layout=layout_of(size),
            replicas=size.replicas,
            started_s=NOW_S - 5_000.0,
        ),
        replicas=tuple(_replica(index, size) for index in range(size.replicas)),
        view=view,
        view_since_s=NOW_S - 4_000.0,
        install=Install("job_1", 1, EPOCH, STEP - 400, tuple(range(size.replicas))),
        installed_s=NOW_S - 3_990.0,
        nodes=tuple(_node(number, free=number >= used) for number in range(used + 1 + used // FREE_IN)),
        checkpoints=(
            CheckpointFact(
                id="ck_1",
                step=400,
                path="/ck/400",
                state=CheckpointState.COMPLETE,
                epoch=EPOCH,
                committed_s=NOW_S - 60.0,
                layout=layout_of(size),
            ),
        ),
        learned=LearnedTimes(step_s=1.0, step_max_s=1.2, save_s=5.0, save_p95_s=6.0, start_replica_s=60.0),
        fleet_devices=(used + 1 + used // FREE_IN) * GPUS_PER_NODE,
    )


def rank_exit(size: Size) -> JobSnapshot:
    """The first rank of one replica was killed."""
    return _lost(quiet(size), 1)


def many_exits(size: Size) -> JobSnapshot:
    """A tenth of the replicas lost a rank at once."""
    return _lost(quiet(size), max(2, size.replicas // LOST_IN_TEN))


def silent_node(size: Size) -> JobSnapshot:
    """The first node says nothing for longer than its lease; the others wait in the exchange."""
    snapshot = quiet(size)
    first = msgspec.structs.replace(snapshot.nodes[0], connected=False, silent_s=120.0)
    found = SignalFact(id="sig_1", kind="node_silent", seen_s=NOW_S - 117.0, node_id=first.id, value=3.0, threshold=3.0)
    return msgspec.structs.replace(
        snapshot,
        job=msgspec.structs.replace(snapshot.job, progressed_s=NOW_S - 120.0),
        nodes=(first, *snapshot.nodes[1:]),
        replicas=tuple(
            replica if first.id in replica.node_ids else msgspec.structs.replace(replica, waiting=True)
            for replica in snapshot.replicas
        ),
        signals=(found,),
    )


def late_flushes(size: Size) -> JobSnapshot:
    """A new view waits for half of its ranks, beyond the time that flushes have."""
    return _flushing(quiet(size), size.gpus // 2)


def all_flushed(size: Size) -> JobSnapshot:
    """A new view can be installed."""
    return _flushing(quiet(size), size.gpus)


MOMENTS: dict[str, Callable[[Size], JobSnapshot]] = {
    "quiet": quiet,
    "one rank exited": rank_exit,
    "a tenth of the replicas lost a rank": many_exits,
    "a node is silent beyond its lease": silent_node,
    "half of the flushes are missing": late_flushes,
    "all have flushed": all_flushed,
}


def layout_of(size: Size) -> Parallelism:
    """Of one replica, and how many there are."""
    tp = min(size.gpus, GPUS_PER_NODE)
    return Parallelism(tp=tp, pp=size.gpus // tp, dp=size.replicas)


def spec_of(size: Size) -> TrainSpec:
    """What asks for such a job."""
    used = -(-size.ranks // GPUS_PER_NODE)
    return TrainSpec(
        resources=Resources(nodes=used, gpus_per_node=GPUS_PER_NODE, min_replicas=1),
        parallelism=layout_of(size),
        training=Training(steps=100_000, global_batch=size.replicas),
    )


def members_of(job_id: str, epoch: int, incarnations: Mapping[int, int]) -> View:
    """A view in which everybody computes."""
    members = (Member(index, life, MemberRole.CONTRIBUTOR) for index, life in sorted(incarnations.items()))
    return View(job_id, 1, epoch, tuple(members))


def _replica(index: int, size: Size) -> ReplicaFact:
    first = index * size.gpus
    return ReplicaFact(
        index=index,
        incarnation=1,
        state=ReplicaState.ACTIVE,
        state_since_s=NOW_S - 4_000.0,
        world_size=size.gpus,
        placements=tuple(
            Placement(
                rank=rank,
                node_id=_node_id((first + rank) // GPUS_PER_NODE),
                device_index=(first + rank) % GPUS_PER_NODE,
            )
            for rank in range(size.gpus)
        ),
        joined_ranks=size.gpus,
        in_view=True,
        contributing=True,
        committed_step=STEP,
        silent_s=0.2,
    )


def _node_id(number: int) -> str:
    return f"node_{number:06d}"


def _node(number: int, *, free: bool) -> NodeFact:
    return NodeFact(
        id=_node_id(number),
        name=f"n{number:06d}",
        state=NodeState.READY,
        connected=True,
        silent_s=0.2,
        devices=tuple(
            DeviceFact(index=i, uuid=f"GPU-{number}-{i}", free=free, held=not free, risk=0.01)
            for i in range(GPUS_PER_NODE)
        ),
    )


def _lost(snapshot: JobSnapshot, many: int) -> JobSnapshot:
    gone = tuple(msgspec.structs.replace(replica, exited_ranks=1) for replica in snapshot.replicas[:many])
    found = tuple(
        SignalFact(
            id=f"sig_{replica.index:06d}",
            kind="rank_exit",
            seen_s=NOW_S - 0.1,
            replica=replica.index,
            incarnation=1,
            rank=0,
            node_id=replica.placements[0].node_id,
            device_index=replica.placements[0].device_index,
            value=-9.0,
        )
        for replica in gone
    )
    return msgspec.structs.replace(snapshot, replicas=(*gone, *snapshot.replicas[many:]), signals=found)


def _flushing(snapshot: JobSnapshot, ranks: int) -> JobSnapshot:
    flushes = tuple(
        Flush(
            "job_1", 1, EPOCH, replica.index, 1, rank, committed_step=STEP, prepared=False, role=MemberRole.CONTRIBUTOR
        )
        for replica in snapshot.replicas
        for rank in range(ranks)
    )
    return msgspec.structs.replace(snapshot, install=None, installed_s=None, view_since_s=NOW_S - 20.0, flushes=flushes)
