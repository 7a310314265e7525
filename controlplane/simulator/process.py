"""What a simulated trainer is made of: ranks, the process of a replica, an outer group.

Each rank runs `trainer.core`; what its replica does together is one thing here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from agents.core.learn import NO_STEPS, StepTimes
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import View
from controlplane.protocol.rank import CaughtUp, CheckpointReport, StepReport
from controlplane.protocol.states import Phase
from trainer.core import events as on
from trainer.core.effects import Ask, CommitStep, Compute, Peer
from trainer.core.events import Event
from trainer.core.rank import RankCore, Stage
from trainer.core.standing import Standing

GIVEN_UP: dict[Stage, on.Event] = {
    Stage.BUILDING: on.Built(inside=False),
    Stage.SUMMING: on.Summed(held=False),
    Stage.PASSING: on.Passed(level=None),
}
LEAST_STALL_S, HASH_BITS = 0.001, (1 << 64) - 1
INTAKE = (on.ViewSeen, on.ViewAwaited, on.InstallSeen, on.Unheard, on.Fetched)


@dataclass(slots=True)
class Rank:
    """One operating system process. `unread` waits while it is stopped (`hung`), or while its training
    thread stands still and the one that reports goes on (`beats` too)."""

    ref: RankRef
    node: str
    device: int
    core: RankCore
    alive: bool = True
    hung: bool = False
    beats: bool = False
    hung_since_s: float = 0.0
    stood_since_s: float = math.inf
    woke_s: float = -1e9
    joined: bool = False
    unread: list[Event] = field(default_factory=list)

    @property
    def view(self) -> View | None:
        """The newest that it has read."""
        return self.core.view

    def stop(self, now_s: float, since_s: float) -> None:
        """It stands still from now on, in the phase that it has been in `since_s` (kernel's time); or does already."""
        if not self.hung:
            self.hung, self.hung_since_s, self.stood_since_s = True, now_s, since_s


Leaver = tuple[Rank, Callable[[Rank], None]]


@dataclass(slots=True)
class Process:
    """One incarnation of a replica. `asked` is what its ranks wait for together; `left` of the
    micro-batches that it computes. `regroups_until_s`: on the kernel's clock, when the groups of its
    epoch are built; None: it builds none. `noticed`: the newest epoch whose exchange it knows to be
    broken. `due_s`: when the micro-batch or exchange that it is at will be done; `owed_s`: what it
    had left of the micro-batch in which it was stopped, and has done nothing of since; `fetch_s`: what its
    last transfer took. `lineage` notes in which epoch each step was committed. `phase_since_s`, `section_since_s`:
    when (kernel's time) it began the phase that it is in, and the step or the setup. `stands_since_s`: since when
    (kernel's time) its step has waited for a view, `stood_s`: how long it has before; `step_s`: what its last step
    took, of which `stall_s` so; `times`: what they teach. `save_asked`: it saves at the end of its step; `leavers`:
    ranks that are to end then, and how; `left_s`: when they have (kernel's time), `left_well`: with
    all their ranks, and saved if it was theirs to save."""

    attempt: int
    index: int
    incarnation: int
    launch: ReplicaLaunch
    ranks: dict[int, Rank] = field(default_factory=dict)
    asked: dict[int, Ask] = field(default_factory=dict)
    token: int = 0
    lineage: list[int] = field(default_factory=list)
    computing: Compute | None = None
    left: list[int] = field(default_factory=list)
    regroups_until_s: float | None = None
    grouped: int = 0
    noticed: int = 0
    donor: Peer | None = None
    fetch_step: int = 0
    fetches: int = 0
    fetch_began_s: float = 0.0
    fetch_s: float = 0.0
    saves_until_s: float = 0.0
    save_asked: bool = False
    leavers: list[Leaver] = field(default_factory=list)
    left_s: float | None = None
    left_well: bool = False
    due_s: float = 0.0
    owed_s: float = 0.0
    loaded: bool = True
    phase_since_s: float = 0.0
    section_since_s: float = 0.0
    stands_since_s: float | None = None
    stood_s: float = 0.0
    step_s: float = 0.0
    stall_s: float = 0.0
    times: StepTimes = NO_STEPS
    _place: tuple[Phase, int, bool] | None = None

    @property
    def first(self) -> Rank:
        """It speaks for its replica."""
        return self.ranks[min(self.ranks)]

    @property
    def standing(self) -> Standing:
        """Where its replica stands."""
        return self.first.core.standing

    @property
    def epoch(self) -> int:
        """That it has entered last."""
        return self.standing.epoch

    @property
    def committed(self) -> int:
        """Steps."""
        return self.standing.committed

    @property
    def done(self) -> list[int]:
        """Micro-batches of the step in progress that it holds."""
        now = self.computing.todo if self.computing is not None and self.first.core.stage is Stage.COMPUTING else ()
        return sorted({*self.standing.done, *now} - set(self.left))

    @property
    def saves_now(self) -> bool:
        """With the step that it has just committed."""
        training, interval = self.launch.config.training, self.launch.config.checkpoint.interval_steps
        due = self.committed % interval == 0 and self.committed < training.steps
        return due and self.standing.is_saver

    def held_s(self, now_s: float) -> float:
        """So long its save holds it up yet."""
        return max(0.0, self.saves_until_s - now_s)

    @property
    def complete(self) -> bool:
        """All its ranks exist (a replica may span nodes)."""
        return len(self.ranks) == self.launch.world_size

    def able(self) -> bool:
        """Every rank is there and runs."""
        return self.complete and all(rank.alive and not rank.hung for rank in self.ranks.values())

    def computes(self) -> bool:
        """It is at the micro-batches of its epoch, which a newer view does not stop."""
        return self.first.core.stage is Stage.COMPUTING and bool(self.left)

    def resume(self, rank: Rank, now_s: float) -> None:
        """One of its ranks runs again: of their micro-batch is left what was when the first of them was stopped."""
        if self.computes():
            self.owed_s = max(self.owed_s, self.due_s - rank.hung_since_s)
        rank.hung, rank.woke_s = False, now_s

    def takes_s(self, span_s: tuple[float, float], more_s: float) -> tuple[float, float]:
        """Least and most that the micro-batch which begins takes, or goes on to take. `more_s`: beside the `span_s`."""
        owed_s, self.owed_s = self.owed_s, 0.0
        return (owed_s, owed_s) if owed_s else (span_s[0] + more_s, span_s[1] + more_s)

    def interrupted(self) -> bool:
        """The epoch that it trains in is over for one of its ranks."""
        return any(rank.core.is_over for rank in self.ranks.values())

    def phase(self) -> Phase:
        """Where the replica is, for its agent's frames."""
        if self.epoch == 0 and not self.interrupted():
            return Phase.PARKED if all(rank.joined for rank in self.ranks.values()) else Phase.BUILDING
        if self.first.core.stage in (Stage.READY, Stage.COMPUTING):
            return Phase.COMPUTE
        changing = self.interrupted() or self.regroups_until_s is not None
        return Phase.VIEW_CHANGE if changing else Phase.EXCHANGE

    def note_place(self, now_s: float) -> None:
        """As `trainer.control.progress`: ages begin anew with what changed, a new step begins both."""
        place, before = (self.phase(), self.committed, self.epoch == 0), self._place
        if before is None or before[1:] != place[1:]:
            self.section_since_s = now_s
        if before != place:
            self._place, self.phase_since_s = place, now_s

    def stand(self, now_s: float) -> None:
        """Its exchange came to nothing, or it has answered a view: until it is in the next nothing is trained."""
        if self.epoch and self.stands_since_s is None:
            self.stands_since_s = now_s

    def go_on(self, now_s: float) -> None:
        """It is in the view."""
        if self.stands_since_s is not None:
            self.stood_s += max(now_s - self.stands_since_s, LEAST_STALL_S)
            self.stands_since_s = None

    def committed_by(self, rank: Rank, commit: CommitStep, trained: tuple[int, ...], now_s: float) -> StepReport:
        """What this rank reports of a step, as each of its ranks does, one after the other. Of a step that is rolled
        forward the wait for the view goes on in the next."""
        if rank is self.first:
            self.go_on(now_s)
            self.step_s, self.stall_s = now_s - self.section_since_s, self.stood_s
            self.stood_s, self.stands_since_s = 0.0, now_s if commit.rolled_forward else None
        report = StepReport(
            step=commit.step,
            epoch=commit.epoch,
            step_time_s=self.step_s,
            tokens=len(trained),
            micro_batches=commit.micro_batches,
            trained=trained if rank.ref.rank == 0 else (),
            stall_s=self.stall_s,
            parameter_hash=self.state_hash(rank),
        )
        self.times = self.times.after(report) if rank is self.first else self.times
        return report

    def state_hash(self, rank: Rank) -> str | None:
        """Its state is what it has committed, and in which epochs; each rank has a shard. None: it is not wanted, or
        not whole."""
        every = self.launch.config.training.hash_every_steps
        if not every or self.committed % every or self.standing.is_joiner:
            return None
        return f"{rank.ref.rank:02x}{hash(tuple(self.lineage)) & HASH_BITS:016x}"

    def caught_up(self) -> CaughtUp:
        """What it reports when a step that it was ready for is committed."""
        role = self.standing.role
        assert role is not None, "just taken"
        return CaughtUp(
            epoch=self.epoch,
            step=self.committed,
            replayed_steps=self.committed - self.fetch_step,
            fetch_s=self.fetch_s,
            fetch_bytes=0,
            donor=self.donor[0] if self.donor else -1,
            role=role,
        )


@dataclass(slots=True)
class Group:
    """The outer group of one epoch. A broken one completes no exchange any more, `unexplained`: by nobody's end.
    `here`: who has come to build it."""

    members: frozenset[tuple[int, int]]
    broken: bool = False
    unexplained: bool = False
    here: set[tuple[int, int]] = field(default_factory=set)
    summed: dict[int, set[int]] = field(default_factory=dict)
    barrier: dict[int, set[int]] = field(default_factory=dict)
    batches: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    ready: dict[int, set[int]] = field(default_factory=dict)

    def trained(self, step: int) -> tuple[int, ...]:
        """The micro-batches in the sum of a step."""
        return tuple(sorted(batch for own in self.batches.get(step, {}).values() for batch in own))


def core_of(ref: RankRef, launch: ReplicaLaunch, *, committed: int) -> RankCore:
    """Of a rank that has just started, `committed` steps on."""
    training = launch.config.training
    count = training.global_batch // training.micro_batch
    standing = Standing(ref, committed)
    return RankCore(standing, micro_batch_count=count, max_contributors=launch.config.max_contributors)


def save_of(
    process: Process, step: int, epoch: int, *, state: Literal["writing", "complete"], kind: str = "interval"
) -> CheckpointReport:
    """What is told of its save at this step."""
    path = f"{process.launch.config.checkpoint_dir}/{process.attempt}/{epoch}/{step}"
    return CheckpointReport(step=step, path=path, state=state, kind=kind, epoch=epoch)
