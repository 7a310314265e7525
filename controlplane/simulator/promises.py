"""Invariants of several jobs on one fleet, watched at each decision and in the end.

I-gang: a job starts with its whole gang. I-yield: nobody yields who need not, nor more often than the policy allows.
I-part: a job that gives replicas trains on with enough others, in one attempt, and takes back no more than it gave; an
attempt that follows another in the same breath takes back nothing. I-quota: a job starts, is placed again, and takes a
replica back, within its project's quota and what others lend it.
I-kept: a job that yielded continues with what its decision promised. I-starve: nobody waits for what is free. That no
device has two jobs is I5's, and that no job suffers from another's failure I-evict's and I-restart's, which know of
each job what is truly wrong with it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.changes.assembly.queue import HOUR_S
from controlplane.policy.plan import (
    PREEMPTED,
    AnnounceView,
    AskPreemption,
    Decision,
    EndAttempt,
    PlaceAttempt,
    SetYielded,
)
from controlplane.policy.queue.place import HAS_ROOM
from controlplane.policy.requests import GIVE
from controlplane.policy.rules import grow, lifecycle, make_room
from controlplane.protocol.spec import ranks_per_replica, replica_count
from controlplane.protocol.states import QUEUED_JOB, AttemptState, ReplicaState, RequestKind, RequestState
from controlplane.simulator import load_queue
from controlplane.simulator.load import load_nodes
from controlplane.simulator.quota_promises import Quotas

if TYPE_CHECKING:
    from controlplane.simulator.job import JobRun
    from controlplane.simulator.rows import Rows
    from controlplane.simulator.world import World

TRAINS = (ReplicaState.ACTIVE, ReplicaState.SPARE)
NOTHING = (RequestState.WITHDRAWN, RequestState.REFUSED, RequestState.LAPSED)


def _yields(rows: Rows) -> bool:
    """It has begun to yield its devices, and nobody has taken that back."""
    whole = (each for each in rows.requests.values() if each.kind is RequestKind.PREEMPT and not each.gives)
    return any(each.state is RequestState.TAKEN and not each.withdrawn_by for each in whole)


@dataclass(slots=True)
class Promise:
    """Of the attempt that ended at `at_s`: the step of the checkpoint that was there, and the step at which the job was
    to continue if its ranks leave in order."""

    attempt: int
    kept: int
    resumes: int
    at_s: float


class Promises:
    """Of one world. `preempted`: how many attempts ended so; `resumed`: how many began again after."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._placed: dict[str, int] = {}
        self._open: dict[str, Promise] = {}
        self._waits: dict[str, str] = {}
        self.quotas = Quotas(world)
        self.asked = self.preempted = self.resumed = self.given = self.grown = 0

    def made(self, run: JobRun, decision: Decision) -> None:
        """A decision of the job has been carried out."""
        for act in decision.actions:
            if isinstance(act, AskPreemption):
                self._asked(run, act, decision)
        if decision.rule in (GIVE, grow.RULE):
            self._gives(run, decision)
        if decision.reason_code == PREEMPTED and decision.choice == "preempt":
            self._yielded(run, decision)
        attempt = run.rows.attempt
        if attempt is not None and attempt.number != self._placed.get(run.id, 0):
            self._started(run, is_first=run.id not in self._placed)
            self._placed[run.id] = attempt.number
            queued = decision.rule == lifecycle.RULE
            self.quotas.started(run, again=not queued)
            if not queued and run.rows.attempts:
                self._again(run)

    def _again(self, run: JobRun) -> None:
        """An attempt that follows another in the same breath, and has asked the queue nothing."""
        before = run.rows.attempts[-1]
        taken = sum(len(row.placements) for row in run.rows.replicas.values())
        kept = (before.replicas - before.yielded) * ranks_per_replica(before.layout)
        within = taken <= kept or not before.yielded
        run.checkers.expect(within, f"I-part: placed again on {taken} devices, of which it had kept {kept}")

    # --- who yields -------------------------------------------------------------------------------

    def _asked(self, head: JobRun, act: AskPreemption, decision: Decision) -> None:
        """Of lower priority, willing, left alone for long enough, and not too many."""
        self.asked += 1
        victim, config, now_s = self._world.runs[act.victim], self._world.config, self._world.kernel.now_s
        expect, scheduling, rows = head.checkers.expect, victim.spec.scheduling, victim.rows
        who = f"{victim.name} is asked to yield to {head.name}"
        expect(decision.rule == make_room.RULE, f"I-yield: {who} by {decision.rule}")
        expect(scheduling.preemptible, f"I-yield: {who}, and is not preemptible")
        expect(self.quotas.may_take(head, victim), f"I-yield: {who}, and is of no lower priority")
        attempt = rows.attempt
        if attempt is None or attempt.state is not AttemptState.RUNNING:
            expect(False, f"I-yield: {who}, and does not run")
            return
        expect(act.attempt == attempt.number, f"I-yield: {who} in attempt {act.attempt}, and is in {attempt.number}")
        ran_s = now_s - attempt.started_s
        expect(ran_s >= config.preempt_min_runtime_s, f"I-yield: {who} {ran_s:.1f} s after it began")
        if act.gives:
            trains = {(row.index, row.incarnation) for row in rows.replicas.values() if row.state in TRAINS}
            left = len(trains - set(act.gives))
            expect(set(act.gives) <= trains, f"I-part: {who} for replicas that do not train")
            expect(left >= max(1, victim.spec.resources.min_replicas), f"I-part: {who}, {left} replicas would be left")
        mine, of = self._lately(rows, now_s), self._world.server.projects.of
        lately = [(of.get(run.id), self._lately(run.rows, now_s)) for run in self._here()]
        fleet = sum(times for _, times in lately)
        theirs = sum(times for project, times in lately if project == of.get(victim.id))
        expect(mine <= config.max_preemptions_of_job, f"I-yield: {who}, {mine} times within an hour")
        expect(theirs <= config.max_preemptions_of_project, f"I-yield: {who}, its project {theirs} times in an hour")
        expect(fleet <= config.max_preemptions, f"I-yield: {fleet} jobs are asked to yield within an hour")

    def _gives(self, run: JobRun, decision: Decision) -> None:
        """A step of replicas that leave for another job, or one that is taken back."""
        expect, attempt, least = run.checkers.expect, run.rows.attempt, max(1, run.spec.resources.min_replicas)
        for act in decision.actions:
            if isinstance(act, AnnounceView):
                members = len(act.view.members)
                expect(members >= least, f"I-part: {members} replicas train on, {least} must")
            elif isinstance(act, SetYielded):
                within = attempt is not None and act.number == attempt.number and 0 <= act.replicas < attempt.replicas
                expect(within, f"I-part: attempt {act.number} is to be without {act.replicas} replicas")
                self.grown += act.grows
                if act.grows:
                    self.quotas.started(run)
                self.given += not act.grows and decision.choice == RequestState.TAKEN
            else:
                ends = isinstance(act, EndAttempt | PlaceAttempt)
                expect(not ends, "I-part: an attempt ends, or begins, for replicas that leave")

    def _lately(self, rows: Rows, now_s: float) -> int:
        asked = (row for row in rows.yields.values() if row.urgent and row.state not in NOTHING)
        return sum(now_s - row.asked_s <= HOUR_S for row in asked)

    # --- what it keeps ------------------------------------------------------------------------------

    def _yielded(self, run: JobRun, decision: Decision) -> None:
        self.preempted += 1
        attempt, rows = run.rows.attempt, run.rows
        assert attempt is not None, "an attempt ended"
        kept = max((fact.step for fact in rows.checkpoints), default=0)
        resumes = int(decision.evidence["resumes_at_step"] or 0)
        self._open[run.id] = Promise(attempt.number, kept, resumes, self._world.kernel.now_s)
        lost = int(decision.evidence["lost_steps"] or 0)
        said = rows.committed_step - lost == resumes and lost in (0, max(0, rows.committed_step - kept))
        run.checkers.expect(said, f"I-kept: the decision says {lost} lost steps of {rows.committed_step}")

    def _started(self, run: JobRun, *, is_first: bool) -> None:
        """Whole, and where it was."""
        rows, spec = run.rows, run.spec
        attempt, expect = rows.attempt, run.checkers.expect
        assert attempt is not None, "it was just placed"
        whole = is_first and not spec.scheduling.elastic
        wanted = replica_count(spec) if whole else max(1, spec.resources.min_replicas)
        starts = attempt.replicas - attempt.yielded
        placed = sum(len(row.placements) for row in rows.replicas.values() if row.attempt == attempt.number)
        expect(starts >= wanted, f"I-gang: starts with {starts} of {wanted} replicas")
        ranks = starts * ranks_per_replica(attempt.layout)
        expect(placed == ranks, f"I-gang: starts with {placed} of {ranks} ranks")
        expect(not _yields(rows), "I-kept: starts while it is to yield its devices")
        promise = self._open.pop(run.id, None)
        if promise is None:
            return
        self.resumed += 1
        rotten = run.checkers.is_rotten
        if any(rotten(path) for path in run.trainer.stored) or any(row.doubt for row in rows.saves.values()):
            return
        wanted = promise.resumes if self._left_well(run, promise) else promise.kept
        expect(attempt.resume_step >= wanted, f"I-kept: resumes at step {attempt.resume_step}, {wanted} were promised")

    def _left_well(self, run: JobRun, promise: Promise) -> bool:
        """The replicas of the attempt that were there left at SIGTERM, one of them saved, and their nodes were within
        reach all the time: an attempt whose nodes are not has ended, and what is saved later is not trusted."""
        mine = [each for each in run.trainer.living() if each.attempt == promise.attempt and each.left_s is not None]
        machines = [self._world.agents[rank.node].machine for each in mine for rank in each.ranks.values()]
        kept = all(machine.boot == 0 and not machine.dead for machine in machines)
        ago_s = self._world.kernel.now_s - promise.at_s
        out = (self._world.network.out_of_touch_s(machine.node, ago_s) for machine in machines)
        kept = kept and all(each is None for each in out)
        return kept and all(each.left_well for each in mine) and any(each.standing.is_saver for each in mine)

    # --- who waits ------------------------------------------------------------------------------------

    def note_waiting(self) -> None:
        """Who could start now, by the queue's plan; asked twice, with a while between."""
        for run in self._here():
            self._waits[run.id] = self._why_not(run)

    def judge(self) -> None:
        """Nobody could start all the time and does not; who is parked or held is not meant."""
        for run in self._here():
            before, still = self._waits.get(run.id), self._why_not(run)
            free = before == still == ""
            run.checkers.expect(not free, f"I-starve: {run.rows.state} with room for it: {run.rows.last_wait}")

    def _why_not(self, run: JobRun) -> str:
        """Why it does not start, "" where nothing keeps it."""
        rows, world = run.rows, self._world
        if rows.state not in QUEUED_JOB or rows.cancel_requested:
            return "it does not wait"
        now_s, fleet = world.kernel.now_s, world.server.fleet.rows
        if rows.bars or rows.ends:
            return "a place is barred"
        plan = load_queue.plan_of(
            fleet.jobs, load_nodes(fleet, now_s, False), world.config, now_s, world.server.projects
        )
        entry = next(entry for entry in plan.entries if entry.job.id == run.id)
        if entry.job.held:
            return entry.job.held
        return "" if entry.may_start and entry.turn in HAS_ROOM else f"{entry.turn}"

    def _here(self) -> list[JobRun]:
        return [run for run in self._world.runs.values() if run.is_here]
