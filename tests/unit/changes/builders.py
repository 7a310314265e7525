"""A job in memory: three replicas of two ranks, each on a node of its own, and two nodes to spare."""

from typing import Any

from controlplane.changes.acts import carry_out
from controlplane.changes.kinds import Change
from controlplane.changes.turn import Turn
from controlplane.policy.plan import (
    Action,
    AnnounceView,
    Decision,
    PlaceAttempt,
    SendInstall,
    SetJobState,
    SetReplicaState,
)
from controlplane.policy.snapshot import Placement, SignalFact
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import AttemptState, JobState, ReplicaState
from controlplane.simulator.asked import Asked
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import JOB_ID, NodeRow, Rows
from controlplane.simulator.store import Store
from controlplane.simulator.world import job_spec

NODES = tuple(f"node-{index}" for index in range(5))
SENTENCE = "Rank 1 of replica 1 ended."


class World:
    """The store, its rows, and what its checkers found. The clock stands at 1,000 s."""

    def __init__(self, **spec: Any) -> None:
        self.kernel = Kernel(1)
        self.kernel.now_s = 1000.0
        self.checkers = Checkers(self.kernel, 6)
        self.rows = Rows(spec=job_spec(**spec), nodes={name: NodeRow(name, 2, seen_s=1000.0) for name in NODES})
        self.asked = Asked(self.rows, self.kernel, self.checkers, lambda job: None)
        self.store = Store(self.rows, self.kernel, self.checkers, lambda *replica: "it was killed", self.asked)
        self.made = 0

    def decision(self, *actions: Action, **fields: Any) -> Decision:
        """With a key of its own."""
        self.made += 1
        told: dict[str, Any] = {
            "rule": "replica_failure",
            "choice": "evict",
            "reason_code": "rank_exit",
            "sentence": SENTENCE,
            "key": f"key-{self.made}",
        }
        return Decision(actions=actions, **(told | fields))

    def told(self, action: Action, **fields: Any) -> list[Change]:
        """What the action changes; nothing is carried out."""
        return carry_out(Turn(self.decision(action, **fields), self.store), action)

    def do(self, *actions: Action, **fields: Any) -> None:
        """Carry them out, as one decision."""
        assert self.store.decision(self.decision(*actions, **fields))

    def place(self, replicas: int = 3, **fields: Any) -> None:
        """The next attempt."""
        number = self.rows.attempt.number + 1 if self.rows.attempt else 1
        placements = tuple(home(index) for index in range(replicas))
        layout = Parallelism(tp=2)
        self.do(PlaceAttempt(number=number, epoch=self.rows.epoch + 1, layout=layout, placements=placements, **fields))

    def commands(self, kind: type) -> list[tuple[str, Any]]:
        """(node, body) of each order of the kind."""
        envelopes = [row.envelope for row in self.rows.commands.values()]
        return [(envelope.node_id, envelope.body) for envelope in envelopes if isinstance(envelope.body, kind)]


def home(index: int, node: str | None = None) -> tuple[Placement, ...]:
    """Both devices of a node."""
    return tuple(Placement(rank=rank, node_id=node or NODES[index], device_index=rank) for rank in range(2))


def view(world: World, *members: int) -> View:
    """The next."""
    lives = {index: row.incarnation for index, row in world.rows.replicas.items()}
    named = tuple(Member(index, lives[index], MemberRole.CONTRIBUTOR) for index in members)
    assert world.rows.attempt is not None
    return View(JOB_ID, world.rows.attempt.number, world.rows.epoch + 1, named, reason="One is left out.")


def install(world: World, step: int, contributors: tuple[int, ...], standbys: tuple[int, ...] = ()) -> Install:
    """Of the newest view."""
    assert world.rows.attempt is not None
    return Install(JOB_ID, world.rows.attempt.number, world.rows.epoch, step, contributors, standbys=standbys)


def placed(**spec: Any) -> World:
    """Attempt 1 was placed."""
    world = World(**spec)
    world.place()
    return world


def training(**spec: Any) -> World:
    """In view 2, installed at step 5."""
    world = placed(**spec)
    world.do(SetJobState(to=JobState.STARTING), AnnounceView(view=view(world, 0, 1, 2)))
    active = [SetReplicaState(replica=index, incarnation=1, to=ReplicaState.ACTIVE) for index in range(3)]
    world.do(SendInstall(install=install(world, 5, (0, 1, 2))), *active, SetJobState(to=JobState.RUNNING))
    assert world.rows.attempt is not None and world.rows.attempt.state is AttemptState.RUNNING
    world.rows.commands.clear()
    world.rows.outbox.clear()
    return world


def finding(world: World, kind: str, **fields: Any) -> str:
    """An open one's id."""
    name = f"{kind}:{len(world.rows.signals)}"
    world.rows.signals[name] = SignalFact(id=name, kind=kind, seen_s=900.0, **fields)
    return name
