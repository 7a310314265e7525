"""What a simulated trainer is made of: ranks, the process of a replica, an outer group."""

from dataclasses import dataclass, field

from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import Install, MemberRole, View
from controlplane.protocol.rank import CaughtUp
from controlplane.protocol.states import Phase


@dataclass(slots=True)
class Rank:
    """One operating system process. `view` newest it has acted on, `later` one that is not due
    yet, `install_epoch` newest install;
    `unread` waits in its socket while it is stopped (`hung`), or while its training thread stands still
    and the one that reports goes on (`beats` too)."""

    ref: RankRef
    node: str
    device: int
    alive: bool = True
    hung: bool = False
    beats: bool = False
    hung_since_s: float = 0.0
    woke_s: float = -1e9
    joined: bool = False
    view: View | None = None
    later: View | None = None
    install_epoch: int = 0
    unread: list[View | Install] = field(default_factory=list)

    @property
    def newest_epoch(self) -> int:
        """Of the views that have reached it, 0 before the first."""
        return max((view.epoch for view in (self.view, self.later) if view is not None), default=0)


@dataclass(slots=True)
class Process:
    """One incarnation of a replica; see the module's text. `regroups_until_s`: on the kernel's
    clock, when the groups of its epoch are built; None: it builds none. `due_s`: when the micro-batch or
    exchange that it is at will be done; `fetch_s`: what its last transfer took."""

    attempt: int
    index: int
    incarnation: int
    launch: ReplicaLaunch
    ranks: dict[int, Rank] = field(default_factory=dict)
    epoch: int = 0
    token: int = 0
    role: MemberRole = MemberRole.CONTRIBUTOR
    committed: int = 0
    prepared: bool = False
    lineage: list[int] = field(default_factory=list)
    contributors: tuple[int, ...] = ()
    standbys: tuple[int, ...] = ()
    done: list[int] = field(default_factory=list)
    todo: list[int] = field(default_factory=list)
    waiting: bool = False
    regroups_until_s: float | None = None
    broken: bool = False
    ordered: tuple[View, Install] | None = None
    donor: tuple[int, int] | None = None
    fetch_step: int = 0
    fetches: int = 0
    fetch_began_s: float = 0.0
    fetch_s: float = 0.0
    due_s: float = 0.0
    loaded: bool = True

    @property
    def complete(self) -> bool:
        """All its ranks exist (a replica may span nodes)."""
        return len(self.ranks) == self.launch.world_size

    def able(self) -> bool:
        """Every rank is there and runs."""
        return self.complete and all(rank.alive and not rank.hung for rank in self.ranks.values())

    def computes(self) -> bool:
        """It is at the micro-batches of its epoch, which a newer view does not stop."""
        return self.epoch > 0 and bool(self.todo) and self.regroups_until_s is None

    def interrupted(self) -> bool:
        """A rank has seen a newer view than the one it trains in."""
        return any(rank.view is not None and rank.view.epoch > self.epoch for rank in self.ranks.values())

    def phase(self) -> Phase:
        """Where the replica is, for its agent's frames."""
        if self.epoch == 0 and not self.interrupted():
            return Phase.PARKED if all(rank.joined for rank in self.ranks.values()) else Phase.BUILDING
        if self.regroups_until_s is not None or (self.interrupted() and not self.computes()):
            return Phase.VIEW_CHANGE
        return Phase.EXCHANGE if self.waiting else Phase.COMPUTE

    def role_in(self, view: View) -> MemberRole:
        """Its own role once it has one; before that, or where it returns, what the view says."""
        if self.epoch and self.index not in view.returning:
            return self.role
        return next(member.role for member in view.members if member.replica == self.index)

    def caught_up(self) -> CaughtUp:
        """What it reports when a step that it was ready for is committed."""
        return CaughtUp(
            epoch=self.epoch,
            step=self.committed,
            replayed_steps=self.committed - self.fetch_step,
            fetch_s=self.fetch_s,
            fetch_bytes=0,
            donor=self.donor[0] if self.donor else -1,
            role=self.role,
        )

    def role_in_group(self) -> MemberRole:
        """What its contributors and standbys make of it."""
        if self.index in self.contributors:
            return MemberRole.CONTRIBUTOR
        return MemberRole.STANDBY if self.index in self.standbys else MemberRole.JOINER

    def share(self, taken: set[int]) -> list[int]:
        """Its part of the micro-batches nobody holds, dealt out in turn."""
        if self.role is not MemberRole.CONTRIBUTOR:
            return []
        training = self.launch.config.training
        batches = [b for b in range(training.global_batch // training.micro_batch) if b not in taken]
        return batches[self.contributors.index(self.index) :: len(self.contributors)]

    def admit(self, ready: set[int]) -> None:
        """Who is ready contributes, or stands by where enough others compute."""
        limit = self.launch.config.max_contributors
        for index in sorted(ready - {*self.contributors, *self.standbys}):
            if limit is None or len(self.contributors) < limit:
                self.contributors = tuple(sorted((*self.contributors, index)))
            else:
                self.standbys = tuple(sorted((*self.standbys, index)))


@dataclass(slots=True)
class Group:
    """The outer group of one epoch. A broken one completes no exchange any more."""

    members: frozenset[tuple[int, int]]
    broken: bool = False
    summed: dict[int, set[int]] = field(default_factory=dict)
    barrier: dict[int, set[int]] = field(default_factory=dict)
    batches: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    ready: dict[int, set[int]] = field(default_factory=dict)
