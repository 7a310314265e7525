"""What `schedule` is given and what it answers. Devices are counted by node; nobody's ranks are listed."""

from collections.abc import Mapping

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.place import Turn, Victim
from controlplane.policy.reserved import Reservation


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a start takes, whole: `of_each` devices on each of `nodes` nodes and `spares` devices of other whole nodes;
    or, where `nodes` is 0, at least `devices` anywhere. It takes `most` devices at the most besides spares, on at most
    `touches` nodes. `gpu_type`: words of a model, see `placement.is_type`; None: any. `over_s`: server time by which
    the job is expected to be over, so that it needs a device no longer (None: nobody knows). `project`: whose reserved
    nodes it may take ("": none's; the plan says it of those who have some), and `alone`: of these only."""

    devices: int
    most: int
    touches: int
    nodes: int = 0
    of_each: int = 0
    spares: int = 0
    gpu_type: str | None = None
    over_s: float | None = None
    project: str = ""
    alone: bool = False

    @property
    def counted(self) -> int:
        """Devices that it takes of its project's quota: with its spares, as many as it takes at most."""
        return self.most + self.spares

    @property
    def least(self) -> int:
        """Devices of its project's quota with which it can start: fewer than `counted` where any number of replicas
        will do."""
        return self.counted if self.nodes else self.devices


class Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job of `project` that waits to be placed, since `submitted_s` (server seconds). `held`: what it waits for
    besides devices, "" for nothing. One that is not `preemptible` takes no devices that other projects lend. `limit_s`:
    started now, its devices are free again in so many seconds at the latest, by its time limit; None: it has none."""

    id: str
    name: str
    priority: int
    submitted_s: float
    demand: Demand
    held: str = ""
    project: str = ""
    preemptible: bool = True
    limit_s: float | None = None


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A project: `quota` devices are its own (None: it has no limit), `used` by its jobs, their spares as they ask for
    them. It takes at most `borrow` more of what others lend, and lends at most `lend` of what it does not use (None: no
    such limit). Of equal priority, who has borrowed less for its `weight` is first. `shown`: what it is called in
    sentences ("": by its name)."""

    name: str
    quota: int | None = None
    borrow: int | None = None
    lend: int | None = None
    weight: int = 1
    used: int = 0
    shown: str = ""


class Stake(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a job that trains and is preemptible would lose. `attempt` of it, begun at `begun_s`; `came_back`: after a
    preemption. `at_risk_s`: training since its newest checkpoint that outlives its devices; `save_s`: p95 of its saves
    (None: none was measured); `step_s` of one step, `again_s` from a placement until it trains. `asked`: how often it
    was asked to yield, `times`: of these by the queue within an hour, but for those that came to nothing; `kept_s`:
    when one last came to nothing (None: none did). Moments are server seconds."""

    attempt: int
    begun_s: float
    at_risk_s: float
    save_s: float | None
    step_s: float
    again_s: float
    came_back: bool = False
    asked: int = 0
    times: int = 0
    kept_s: float | None = None


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One life of a replica that trains, and its `devices` by node: the others could train on without it."""

    index: int
    incarnation: int
    devices: tuple[tuple[str, int], ...]


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job of `project` that has devices: so many on each node. `ends_s`: server time at which it is expected to end;
    None: not known. `leaves`: it has ended, or is about to be placed again, and its last processes are on their way
    out; or it is asked to yield its devices, to the job `yields_to` ("": a person asks). `stake`: None where it may not
    be asked.
    `parts`: its replicas, of which `spares` may leave while the others train on. `gives`: devices, not in `devices`, of
    replicas that leave now. `uncounted`: so many of `devices` do not count for its project's quota. `suffered`: so
    often jobs of its project were asked to yield, counted as `QueueFleet.preempted`."""

    id: str
    name: str
    priority: int
    devices: tuple[tuple[str, int], ...]
    ends_s: float | None = None
    leaves: bool = False
    yields_to: str = ""
    stake: Stake | None = None
    parts: tuple[Part, ...] = ()
    spares: int = 0
    gives: tuple[tuple[str, int], ...] = ()
    project: str = ""
    uncounted: int = 0
    suffered: int = 0


class Lender(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node that takes work: by model how many of its devices are `usable`, and how many of these are `free`; none are
    where it is `reserved_for` a job, whose spare it is. `reservations` of it for projects that are not over."""

    id: str
    usable: Mapping[str, int]
    free: Mapping[str, int]
    reserved_for: str = ""
    reservations: tuple[Reservation, ...] = ()


class QueueFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that take work, and nothing of those that drain, are cordoned or out; who holds devices anywhere.
    `preempted`: how many jobs the queue has asked to yield within an hour, but for those that came to nothing.
    `projects`: those that have jobs, or a quota."""

    nodes: tuple[Lender, ...]
    holders: tuple[Holder, ...] = ()
    preempted: int = 0
    projects: tuple[Share, ...] = ()

    @property
    def reserved(self) -> Mapping[str, str]:
        """Whose spare each node is that is one."""
        return {node.id: node.reserved_for for node in self.nodes if node.reserved_for}


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`at_once`: so many jobs at most are weighed against each other in one plan: those behind them are for the next
    one. `weighed`: so many sets of victims at most are compared. The rest: see `PolicyConfig`."""

    at_once: int = 64
    weighed: int = 1000
    preempt_min_runtime_s: float = 300.0
    preempt_again_s: float = 1800.0
    preempt_patience_s: float = 60.0
    preempt_retry_s: float = 60.0
    max_preemptions: int = 20
    max_preemptions_of_job: int = 2
    max_preemptions_of_project: int = 20


def config_of(policy: PolicyConfig) -> QueueConfig:
    """With the policy's limits."""
    return QueueConfig(**{name: getattr(policy, name) for name in FROM_POLICY})


FROM_POLICY = tuple(name for name in QueueConfig.__struct_fields__ if name in PolicyConfig.__struct_fields__)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The plan for one pending job, see `QueuePlace`. `why`: what its project's quota keeps it waiting for. `at_most`:
    it starts with so many devices at most, as its project's quota has no more for it; None: with as many as it asks
    for. `alone`: on nodes that are reserved for its project, and nowhere else."""

    job: Pending
    place: int
    turn: Turn
    may_start: bool
    behind: str = ""
    expected_s: float | None = None
    why: str = ""
    at_most: int | None = None
    alone: bool = False


class QueuePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every pending job, first in the queue first. `head`: the first job that lacks room, or for whose quota others
    yield; "" for none. `victims`: who is to yield to it."""

    entries: tuple[Entry, ...] = ()
    head: str = ""
    victims: tuple[Victim, ...] = ()
