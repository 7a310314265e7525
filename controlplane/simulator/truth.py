"""What is truly wrong with a replica, by what was injected and not by what the server believes.

An eviction states a cause (`proved.Failure.kind`). Each cause is true of some of these wrongs alone: a replica that
is ended for a silence of its node is not forgiven because a process of it happens to hang as well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from agents.core.learn import step_timeout_s
from controlplane.policy.plan import ORDERED, Decision
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.states import WAITING_PHASES

if TYPE_CHECKING:
    from controlplane.simulator.job import JobRun
    from controlplane.simulator.process import Process, Rank
    from controlplane.simulator.rows import ReplicaRow
    from controlplane.simulator.world import World

NOISE_MEMORY_S = 6.0
HEARD_S = 1.0
"""A rank tells each second where it is: what it was at last may have ended so much later."""
MUTE_S = 2.0
"""So long a process that is stopped says nothing before that is held against it."""


class Wrong(StrEnum):
    """Kinds of it."""

    ABSENT = "it never started"
    GONE = "a process is gone"
    HANGS = "a process hangs or did until just now"
    STANDS = "a process stands still, or did until just now"
    DEVICE = "a device under it is broken"
    SLOW = "a device under it is slow"
    CUT_OFF = "a node is or was just cut off"
    OUT_OF_TOUCH = "a node of it is out of touch, or was just now"
    FULL = "the disk of a node is or was just full"
    NOT_UP = "a process has not come up"
    BEHIND = "it does not hold the state yet"
    EXCHANGES = "every exchange fails"


ENDS = frozenset({Wrong.ABSENT, Wrong.GONE})
DELAYS = frozenset({Wrong.HANGS, Wrong.STANDS, Wrong.CUT_OFF, Wrong.OUT_OF_TOUCH})
STATED: dict[str, frozenset[Wrong]] = {
    ORDERED: ENDS,
    "rank_exit": ENDS,
    "unfit_node": ENDS,
    "device_lost": frozenset({Wrong.DEVICE}),
    "xid_fatal": frozenset({Wrong.DEVICE}),
    "hang": frozenset({Wrong.HANGS}),
    "node_silent": frozenset({Wrong.CUT_OFF, *ENDS}),
    "unflushed": DELAYS | ENDS | {Wrong.FULL},
    "setup_timeout": DELAYS | ENDS | {Wrong.NOT_UP},
    "catch_up_timeout": DELAYS | ENDS | {Wrong.BEHIND},
    "unreachable": frozenset({Wrong.EXCHANGES, *ENDS}),
    "cheaper_to_move": frozenset({Wrong.SLOW}),
    "cheaper_without": frozenset({Wrong.SLOW}),
}
"""Of each cause that an eviction may state the wrongs that make it true."""
SUFFICIENT = frozenset(Wrong) - {Wrong.STANDS, Wrong.OUT_OF_TOUCH, Wrong.FULL, Wrong.NOT_UP, Wrong.BEHIND}
"""Where no cause is stated: those for which a replica may be ended at all."""


class Truth:
    """Of one job of a world."""

    def __init__(self, world: World, run: JobRun) -> None:
        self._world, self._run = world, run

    def sick(self, attempt: int, index: int, incarnation: int, stated: str = "") -> str | None:
        """What is truly wrong with a replica, of what makes the `stated` cause true; None: nothing is."""
        found = self.wrongs(attempt, index, incarnation) & STATED.get(stated, SUFFICIENT)
        return next((str(wrong) for wrong in Wrong if wrong in found), None)

    def wrongs(self, attempt: int, index: int, incarnation: int) -> set[Wrong]:
        """All of it."""
        process = self._run.trainer.processes.get((attempt, index, incarnation))
        broken = {Wrong.DEVICE} if self._is_on_a_broken_device((attempt, index, incarnation)) else set[Wrong]()
        if process is None:
            return {Wrong.ABSENT, *broken}
        ranks = tuple(process.ranks.values())
        machines = {rank.node: self._world.agents[rank.node].machine for rank in ranks}
        true = {
            Wrong.ABSENT: not process.complete,
            Wrong.GONE: any(not rank.alive for rank in ranks),
            Wrong.HANGS: any(self._hangs(rank) for rank in ranks),
            Wrong.STANDS: any(rank.hung or self._was_just(rank.woke_s) for rank in ranks),
            Wrong.SLOW: self._world.slowness.late_s(process) > 0.0,
            Wrong.CUT_OFF: self._is_cut_off(process),
            Wrong.OUT_OF_TOUCH: any(self._world.network.out_of_touch_s(node, NOISE_MEMORY_S) for node in machines),
            Wrong.FULL: any(each.disk.full or self._was_just(each.disk.freed_s) for each in machines.values()),
            Wrong.NOT_UP: any(not rank.joined for rank in ranks),
            Wrong.BEHIND: not process.loaded,
            Wrong.EXCHANGES: self._fails_again(process),
        }
        return {wrong for wrong, is_so in true.items() if is_so} | broken

    def _is_on_a_broken_device(self, name: tuple[int, int, int]) -> bool:
        """Where it is placed, whether or not a process of it has come up there yet."""
        world = self._world
        rows = (row for row in self._run.store.all_replicas() if (row.attempt, row.index, row.incarnation) == name)
        places = (place for row in rows for place in row.placements)
        return any(place.device_index in world.agents[place.node_id].machine.broken for place in places)

    def _was_just(self, at_s: float) -> bool:
        return self._world.kernel.now_s - at_s < NOISE_MEMORY_S

    def _hangs(self, rank: Rank) -> bool:
        """It has made no progress for longer than its agent is to allow, less what is not told at once, and has been
        stopped for long enough to be silent; or it was until just now, and would have been done without. A shorter
        hang leaves one out and ends nobody."""
        now_s = self._world.kernel.now_s
        # Its last word may be from the phase before, of which it is not known that it has ended.
        work_s = self._run.micro_batches * self._run.trainer.timing.micro_batch_s[1]
        limit_s = self._allowed_s(rank) - work_s - HEARD_S
        if rank.hung:
            stood_s = now_s - min(rank.hung_since_s, rank.stood_since_s)
            return stood_s >= limit_s and now_s - rank.hung_since_s >= MUTE_S
        return self._was_just(rank.woke_s) and rank.woke_s - rank.hung_since_s >= limit_s

    def _allowed_s(self, rank: Rank) -> float:
        """What its agent allows a step by what it has learned; one that has started again had learned more."""
        process, known = self._run.trainer.process_of(rank), self._world.agents[rank.node].known(rank.ref)
        ever_s = step_timeout_s(process.launch, process.times)
        return min(ever_s, step_timeout_s(process.launch, known.steps)) if known is not None else ever_s

    def _fails_again(self, process: Process) -> bool:
        """Where every exchange fails and names nobody, who it is is a guess. That one is left out first, and ended
        only when the exchange fails with it again, or where too few would be left without it."""
        rows = self._run.rows.replicas
        row = rows[process.index]
        others = [each for each in rows.values() if each is not row and each.contributing]
        few = len(others) < self._run.spec.resources.min_replicas
        return self._exchanges_fail(process) and bool(row.times_out or few)

    def _exchanges_fail(self, process: Process | None) -> bool:
        """They did just now, or that of the epoch which it is in has: it stands there until another view comes."""
        trainer = self._run.trainer
        group = trainer.groups.get((process.attempt, process.epoch)) if process is not None else None
        return self._was_just(trainer.failed_s) or (group is not None and group.unexplained)

    def _is_cut_off(self, process: Process) -> bool:
        """Silence is a reason to end what lives only when the lease of its node is over: what was out of touch for
        less comes back, and so does what trains with the others while the link of its agent is lost: in the view on
        which it was decided, for the one without it is announced first."""
        world, now_s = self._world, self._world.kernel.now_s
        rows, lease_s = self._run.rows, world.config.lease_s
        members = rows.decided_on.members if rows.decided_on is not None else ()
        member = any((each.replica, each.incarnation) == (process.index, process.incarnation) for each in members)
        if member and rows.progressed_s is not None and now_s - rows.progressed_s < lease_s:
            return False
        nodes = {rank.node for rank in process.ranks.values()}
        out_s = [world.network.out_of_touch_s(node, NOISE_MEMORY_S, beside=world.server.pauses) for node in nodes]
        return max((each or 0.0 for each in out_s), default=0.0) >= lease_s - HEARD_S

    def keeps(self, attempt: int, index: int, incarnation: int) -> str | None:
        """What truly keeps a replica from going on with the others; None: nothing does."""
        wrongs = self.wrongs(attempt, index, incarnation) - {Wrong.FULL, Wrong.NOT_UP, Wrong.BEHIND}
        if wrongs:
            return str(next(wrong for wrong in Wrong if wrong in wrongs))
        if self._world.network.is_bad(NOISE_MEMORY_S):
            return "the network is bad"
        process = self._run.trainer.processes.get((attempt, index, incarnation))
        if self._exchanges_fail(process):
            return str(Wrong.EXCHANGES)
        late = process is not None and self._is_late(process)
        return "it stands in its step for longer than its agent allows" if late else None

    def _is_late(self, process: Process) -> bool:
        """At work for so long: enough to leave it out with others that are, and no reason to end it."""
        stood_s = self._world.kernel.now_s - process.phase_since_s
        return process.phase() not in WAITING_PHASES and stood_s >= self._allowed_s(process.first) - HEARD_S

    def holders(self) -> tuple[int, int]:
        """(replicas of the attempt that hold the newest state and have nothing wrong, how many are needed)."""
        world, rows = self._world, self._run.rows
        needed = max(1, self._run.spec.resources.min_replicas)
        if rows.attempt is None or world.network.is_bad(NOISE_MEMORY_S):
            return 0, needed
        number, processes = rows.attempt.number, self._run.trainer.processes
        entered = max((each.epoch for each in processes.values() if each.attempt == number), default=0)
        lives = ((row, processes.get((number, row.index, row.incarnation))) for row in rows.replicas.values())
        found = [
            each
            for row, each in lives
            if each is not None and (self._is_in(row) or (each.epoch == entered and not rows.install))
        ]
        newest = max((process.committed for process in found), default=0)
        holding = [each for each in found if each.loaded and each.epoch and not each.standing.is_joiner]
        able = [each for each in holding if each.able() and each.committed == newest]
        sound = [each for each in able if not self.wrongs(each.attempt, each.index, each.incarnation)]
        return len(sound), needed

    def _is_in(self, row: ReplicaRow) -> bool:
        """The newest view has it hold the state. Once that is installed a step may be committed at any moment: whom it
        leaves out may be behind for all that its server can know, and is no holder then."""
        view = self._run.rows.view
        holding = (each for each in (view.members if view else ()) if each.role is not MemberRole.JOINER)
        return any((each.replica, each.incarnation) == (row.index, row.incarnation) for each in holding)


def stated_of(decision: Decision, index: int) -> str:
    """The cause that it states for this replica (`proved.Failure.kind`)."""
    several = str(decision.evidence.get(f"replica_{index}", ""))
    return str(decision.evidence.get("kind") or several.partition(":")[0] or decision.reason_code)
