"""Small worlds for policy tests: a job of three replicas of two ranks, at t = 1000 s."""

from typing import Any

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Action, Decision
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
from controlplane.protocol.membership import Donor, Flush, Install, Member, MemberRole, View
from controlplane.protocol.spec import Parallelism, Resources, Spares, Training, TrainSpec
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, NodeState, ReplicaState

NOW_S = 1000.0
CONFIG = PolicyConfig()
CONTRIBUTOR, JOINER, STANDBY = MemberRole.CONTRIBUTOR, MemberRole.JOINER, MemberRole.STANDBY


def change(thing: Any, **fields: Any) -> Any:
    """A copy with other fields."""
    return msgspec.structs.replace(thing, **fields)


def spec(*, spares: int = 0, min_replicas: int = 1, nodes: int = 3, **fields: Any) -> TrainSpec:
    return TrainSpec(
        resources=Resources(nodes=nodes, gpus_per_node=2, min_replicas=min_replicas, spares=Spares(gpus=spares)),
        parallelism=fields.pop("parallelism", Parallelism(tp=1, pp=2)),
        training=fields.pop("training", Training(steps=100, global_batch=6)),
        **fields,
    )


def node(index: int, *, free: bool = True, devices: int = 2, **fields: Any) -> NodeFact:
    facts = tuple(DeviceFact(index=i, uuid=f"n{index}d{i}", free=free, held=not free) for i in range(devices))
    base: dict[str, Any] = {
        "id": f"n{index}",
        "name": f"node-{index}",
        "state": NodeState.READY,
        "connected": True,
        "silent_s": 0.2,
        "devices": facts,
    }
    return NodeFact(**(base | fields))


def replica(index: int, *, incarnation: int = 1, home: int | None = None, **fields: Any) -> ReplicaFact:
    where = f"n{index if home is None else home}"
    base: dict[str, Any] = {
        "index": index,
        "incarnation": incarnation,
        "state": ReplicaState.ACTIVE,
        "state_since_s": NOW_S - 100.0,
        "world_size": 2,
        "placements": tuple(Placement(rank=r, node_id=where, device_index=r) for r in range(2)),
        "joined_ranks": 2,
        "in_view": True,
        "contributing": True,
        "committed_step": 50,
    }
    return ReplicaFact(**(base | fields))


def view_of(*members: tuple[int, int, MemberRole], epoch: int = 2, donors: tuple = ()) -> View:
    return View("job_1", 1, epoch, tuple(Member(*member) for member in members), donors)


def install_of(view: View, step: int = 50) -> Install:
    names = tuple(member.replica for member in view.members if member.role is CONTRIBUTOR)
    return Install("job_1", 1, view.epoch, step, names)


def flush(index: int, rank: int, *, epoch: int = 2, incarnation: int = 1, **fields: Any) -> Flush:
    base: dict[str, Any] = {"committed_step": 50, "prepared": False, "role": CONTRIBUTOR}
    return Flush("job_1", 1, epoch, index, incarnation, rank, **(base | fields))


def signal(kind: str, number: int = 1, **fields: Any) -> SignalFact:
    return SignalFact(**({"id": f"sig_{number}", "kind": kind, "seen_s": NOW_S - 3.0} | fields))


def checkpoint(step: int, state: CheckpointState = CheckpointState.COMPLETE, **fields: Any) -> CheckpointFact:
    base: dict[str, Any] = {
        "id": f"ck_{step}",
        "step": step,
        "path": f"/ck/{step}",
        "state": state,
        "epoch": 2,
        "committed_s": 900.0,
        "layout": Parallelism(),
    }
    return CheckpointFact(**(base | fields))


def job(**fields: Any) -> JobFact:
    base: dict[str, Any] = {
        "id": "job_1",
        "name": "demo",
        "state": JobState.RUNNING,
        "spec": spec(),
        "epoch": 2,
        "committed_step": 50,
        "created_s": 0.0,
    }
    return JobFact(**(base | fields))


def attempt(**fields: Any) -> AttemptFact:
    base: dict[str, Any] = {
        "number": 1,
        "state": AttemptState.RUNNING,
        "layout": Parallelism(tp=1, pp=2, dp=3),
        "replicas": 3,
        "started_s": 800.0,
    }
    return AttemptFact(**(base | fields))


def running(*, spares: int = 1, **fields: Any) -> JobSnapshot:
    """Three replicas train in epoch 2 on nodes 0..2; `spares` free nodes follow."""
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(3)))
    homes = tuple(node(index, free=False) for index in range(3))
    base: dict[str, Any] = {
        "now_s": NOW_S,
        "blind": False,
        "job": job(),
        "attempt": attempt(),
        "replicas": tuple(replica(index) for index in range(3)),
        "view": view,
        "view_since_s": NOW_S - 100.0,
        "install": install_of(view),
        "installed_s": NOW_S - 99.0,
        "nodes": homes + tuple(node(3 + extra) for extra in range(spares)),
        "fleet_devices": 100,
        "learned": LearnedTimes(step_max_s=1.0),
    }
    return _silenced(JobSnapshot(**(base | fields)))


def _silenced(snapshot: JobSnapshot) -> JobSnapshot:
    """A node that a finding calls silent is as silent as that says."""
    silent = {found.node_id: found.value for found in snapshot.signals if found.kind == "node_silent"}
    return change(snapshot, nodes=tuple(change(n, silent_s=silent.get(n.id, n.silent_s)) for n in snapshot.nodes))


def pending(**fields: Any) -> JobSnapshot:
    """Submitted, nothing started; four free nodes."""
    base: dict[str, Any] = {
        "now_s": NOW_S,
        "blind": False,
        "job": job(state=JobState.PENDING, epoch=0, committed_step=0),
        "attempt": None,
        "nodes": tuple(node(index) for index in range(4)),
        "fleet_devices": 100,
    }
    return JobSnapshot(**(base | fields))


def starting(**fields: Any) -> JobSnapshot:
    """Placed; every rank has joined; no view yet."""
    base: dict[str, Any] = {
        "job": job(state=JobState.STARTING, epoch=1, committed_step=0),
        "attempt": attempt(state=AttemptState.STARTING, started_s=NOW_S - 5.0),
        "replicas": tuple(
            replica(i, state=ReplicaState.FORMING, contributing=False, in_view=False, state_since_s=NOW_S - 5.0)
            for i in range(3)
        ),
        "view": None,
        "install": None,
    }
    return running(**(base | fields))


def with_replica(snapshot: JobSnapshot, index: int, **fields: Any) -> JobSnapshot:
    """The snapshot with one replica changed."""
    rows = tuple(change(row, **fields) if row.index == index else row for row in snapshot.replicas)
    return change(snapshot, replicas=rows)


def decisions(snapshot: JobSnapshot, config: PolicyConfig = CONFIG, rule: str | None = None) -> tuple[Decision, ...]:
    plan = decide(snapshot, config)
    return tuple(decision for decision in plan.decisions if rule in (None, decision.rule))


def only(snapshot: JobSnapshot, rule: str, config: PolicyConfig = CONFIG) -> Decision:
    found = decisions(snapshot, config, rule)
    assert len(found) == 1, [(d.rule, d.choice, d.sentence) for d in found]
    return found[0]


def actions(decision: Decision, kind: type) -> tuple[Action, ...]:
    return tuple(action for action in decision.actions if isinstance(action, kind))


def action(decision: Decision, kind: type) -> Any:
    found = actions(decision, kind)
    assert len(found) == 1, decision.actions
    return found[0]


WITHOUT_1 = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), epoch=3)


def shrunk(
    *, spares: int = 0, job_state: JobState = JobState.RECOVERING, since_s: float = 100.0, **slot: Any
) -> JobSnapshot:
    """Replica 1 is evicted; its node is cordoned."""
    snapshot = running(
        spares=spares,
        job=job(state=job_state, epoch=3),
        view=WITHOUT_1,
        install=install_of(WITHOUT_1),
        view_since_s=NOW_S - since_s,
    )
    nodes = tuple(change(n, state=NodeState.CORDONED) if n.id == "n1" else n for n in snapshot.nodes)
    fields = {
        "state": ReplicaState.EVICTED,
        "contributing": False,
        "in_view": False,
        "stopped": True,
        "joined_ranks": 0,
    } | slot
    return with_replica(change(snapshot, nodes=nodes), 1, **fields)


def parked(**slot: Any) -> JobSnapshot:
    """Replica 1 is up again, and parked."""
    fields = {"state": ReplicaState.FORMING, "incarnation": 2, "joined_ranks": 2, "state_since_s": NOW_S - 3.0} | slot
    return shrunk(**fields)


def catching_up(contributing: bool) -> JobSnapshot:
    """Replica 1 is in the view again."""
    view = view_of((0, 1, CONTRIBUTOR), (1, 2, JOINER), (2, 1, CONTRIBUTOR), epoch=3, donors=(Donor(1, 0),))
    snapshot = parked(state=ReplicaState.CATCHING_UP, contributing=contributing, in_view=True)
    return change(snapshot, view=view, install=install_of(view))
