"""One seed, one world: fleet, job, faults, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.rows import Share
from controlplane.protocol.frames import AgentFrame, AgentHello
from controlplane.protocol.spec import (
    Checkpoint,
    Parallelism,
    Resiliency,
    Resources,
    Spares,
    Timeouts,
    Training,
    TrainSpec,
)
from controlplane.simulator.agent import Agent, Down
from controlplane.simulator.control import Control
from controlplane.simulator.departures import Departures
from controlplane.simulator.extras import Extras, Harsh
from controlplane.simulator.faults import QUIET_BEFORE_S, Faults
from controlplane.simulator.heat import OVERHEATS, Heat
from controlplane.simulator.job import JobPlan, JobRun
from controlplane.simulator.judge import CALM_S, STEADY_S, is_leaving, judge
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.network import Network, Way
from controlplane.simulator.people import People
from controlplane.simulator.process import Rank
from controlplane.simulator.promises import Promises
from controlplane.simulator.rows import JOB_ID
from controlplane.simulator.server import Server
from controlplane.simulator.shared import Projects
from controlplane.simulator.slowness import SLOW, Slowness
from controlplane.simulator.storage import Storage
from controlplane.simulator.timing import Timing
from controlplane.simulator.trainer import Report
from controlplane.simulator.trainers import Several, Trainers

REPLICAS = 3
FAULTS_UNTIL_S = 90.0
SUBMITS_AGAIN_S = 1.0
NONE = Extras()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to. `violations` empty: it passed."""

    seed: int
    state: str
    committed_step: int
    commits: int
    evictions: int
    restarts: int
    faults: tuple[str, ...]
    violations: tuple[str, ...]
    digest: str
    tape: tuple[str, ...]
    decisions: tuple[str, ...]
    answers: tuple[str, ...] = ()

    @classmethod
    def broken(cls, seed: int, error: str) -> "Outcome":
        """Of a world that raised."""
        return cls(seed, "broken", 0, 0, 0, 0, (), (error,), "", (), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """What a world is made of. `nodes`: name to number of devices; `racks`: name to the segment of those that have
    one, `makes`: name to (model, bytes of memory) of its devices where its driver says. `others`: jobs beside the
    first, whose spec this is, and whose name there is `name`; it is of `project`. `shares`: quotas of projects."""

    spec: TrainSpec
    name: str = "sim"
    others: tuple[JobPlan, ...] = ()
    shares: tuple[Share, ...] = ()
    project: str = ""
    nodes: dict[str, int]
    racks: dict[str, str] = field(default_factory=dict)
    makes: dict[str, tuple[str, int]] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)


class World:
    """Four nodes of two devices and a spare, three replicas of two ranks, of which `standing_by`
    compute nothing, variations by seed; or what `plan` says."""

    def __init__(
        self,
        seed: int,
        *,
        config: PolicyConfig | None = None,
        steps: int | None = None,
        standing_by: int = 0,
        plan: WorldPlan | None = None,
    ) -> None:
        self.seed = seed
        self.kernel = Kernel(seed)
        plan = plan or self._drawn(seed, steps, standing_by)
        self.spec, nodes = plan.spec, plan.nodes
        self.network, self.timing = Network(self.kernel), plan.timing
        self.config, self.storage, self._plan = config or PolicyConfig(), Storage(seed), plan
        self.first = JobRun(self, JOB_ID, plan.name, self.spec)
        self.runs = {JOB_ID: self.first}
        for number, each in enumerate(plan.others, 2):
            self.runs[f"{JOB_ID}_{number}"] = JobRun(self, f"{JOB_ID}_{number}", each.name, each.spec)
        self.checkers, self.truth, self.trainer = self.first.checkers, self.first.truth, self.first.trainer
        self.micro_batches = self.first.micro_batches
        for run in self.runs.values():
            run.checkers.violations = self.checkers.violations
        several = Several(plan.timing, {job_id: run.trainer for job_id, run in self.runs.items()})
        self.trainers: Trainers = several if plan.others else self.trainer
        self.agents = {name: Agent(name, self.kernel, self.trainers, self.checkers, self._up) for name in nodes}
        for agent in self.agents.values():
            agent.children.reader.storage = self.storage
        job, down = self.first.job, self._down
        self.server = Server(job, nodes, self.config, self.kernel, down, self.storage, several=bool(plan.others))
        names = (plan.project, *(each.project for each in plan.others))
        self.server.projects = Projects(plan.shares, dict(zip(self.runs, names, strict=True)))
        self.on_scheduled: Callable[[], None] = lambda: None
        self.promises = Promises(self)
        self._submitted(self.first, self.server.first)
        for name, node in self.server.rows.nodes.items():
            node.segment = plan.racks.get(name, "")
            node.model, node.memory_bytes = plan.makes.get(name, ("", None))
        lens = self.lens = self.first.lens
        self.people = People(self.kernel, self.server, seed)
        self.faults = Faults(self.kernel, self.network, self.server, self.agents, self.trainers)
        self.slowness = Slowness(self.kernel, self.server, self.trainer, self.spec.resiliency.stragglers, seed)
        self.heat = Heat(self.kernel, self.server, self.spec.resiliency.risk, seed)
        self.departures = Departures(self.kernel, self.server, self.agents, seed)
        self.harsh = Harsh(self.kernel, self.network, self.server, self.faults, self.people, lens, self.storage)

    def _drawn(self, seed: int, steps: int | None, standing_by: int) -> WorldPlan:
        chance = self.kernel.random
        # Every sixth world is small enough to finish, so that the end is exercised too.
        steps = steps or (60 if seed % 6 == 0 else 100_000)
        spec = job_spec(
            tp=chance.choice((1, 2)), spare_gpus=chance.choice((0, 2)), steps=steps, standing_by=standing_by
        )
        return WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(5)})

    def _up(self, node: str, session: int, frame: AgentHello | AgentFrame) -> None:
        # A connection is opened where both ways carry.
        if not (isinstance(frame, AgentHello) and self.network.is_cut(node)):
            self.network.send(node, self._received, (node, session, frame), Way.UP)

    def _received(self, parts: Any) -> None:
        self.harsh.count_effect()
        self.server.receive(*parts)

    def _down(self, node: str, message: Down) -> None:
        self.harsh.count_effect()
        session = self.server.rows.nodes[node].session
        self.network.send(node, self.agents[node].receive, (session, message), Way.DOWN)

    def said(self, rank: Rank, report: Report) -> None:
        """A rank has a word for its agent."""
        self.agents[rank.node].children.say(rank, report)

    def start(self) -> None:
        """Agents and server begin to work."""
        for agent in self.agents.values():
            agent.start()
        self.server.start()
        for run, each in zip(list(self.runs.values())[1:], self._plan.others, strict=True):
            self.kernel.after(each.arrives_s, self._submit, run)

    def _submit(self, run: JobRun) -> None:
        """When the server is there to hear of it."""
        if self.server.paused:
            self.kernel.after(SUBMITS_AGAIN_S, self._submit, run)
            return
        self.kernel.log("person", f"submits {run.name}")
        self._submitted(run, self.server.submit(run.job))

    def _submitted(self, run: JobRun, control: Control) -> None:
        run.submitted(control)
        if len(self.runs) > 1:
            run.checkers.of = f" ({run.name})"
            control.on_made = partial(self.promises.made, run)

    def run(
        self, faults: int | None = None, *, orders: int = 0, stills: int = 0, leaps: int = 0, extras: Extras = NONE
    ) -> Outcome:
        """Faults (`stills`, `leaps`: see `Faults`), harsher ones and people's orders, then calm, then judgement."""
        self.start()
        count = self.kernel.random.randrange(1, 7) if faults is None else faults
        self.faults.schedule(FAULTS_UNTIL_S, count, stills=stills)
        self.faults.schedule_leaps(FAULTS_UNTIL_S, leaps, self.seed)
        self.people.schedule(QUIET_BEFORE_S, FAULTS_UNTIL_S, orders)
        self.slowness.schedule(QUIET_BEFORE_S, FAULTS_UNTIL_S, extras.slow)
        self.heat.schedule(QUIET_BEFORE_S, FAULTS_UNTIL_S, extras.overheats)
        self.departures.schedule(QUIET_BEFORE_S, FAULTS_UNTIL_S, extras.notices, extras.windows)
        self.harsh.schedule(FAULTS_UNTIL_S, extras, self.seed)
        self.on_scheduled()
        self.kernel.run(FAULTS_UNTIL_S + CALM_S)
        # What most of a job is late for is nobody's fault: it is held, with that reason, until its limit is over.
        if (held_until_s := self.checkers.held_until_s(self.config)) > self.kernel.now_s:
            self.kernel.run(held_until_s + CALM_S)
        self.judge()
        return self.outcome()

    def judge(self) -> None:
        """Of each job that was submitted, after a while in which it could move."""
        here = [run for run in self.runs.values() if run.is_here]
        before = [run.rows.committed_step for run in here]
        if len(self.runs) > 1:
            self.promises.note_waiting()
        self.kernel.run(self.kernel.now_s + STEADY_S)
        limit_s = self.kernel.now_s + CALM_S
        # Of several jobs one may have ended just now: its ranks are on their way out.
        while len(here) > 1 and self.kernel.now_s < limit_s and any(is_leaving(run) for run in here):
            self.kernel.run(self.kernel.now_s + SUBMITS_AGAIN_S)
        for run, step in zip(here, before, strict=True):
            judge(self, run, step)
        if len(self.runs) > 1:
            self.promises.judge()

    def outcome(self) -> Outcome:
        """The result as data: the states of all jobs, the steps of the first, the other counts over all."""
        here = [run for run in self.runs.values() if run.is_here]
        return Outcome(
            seed=self.seed,
            state="+".join(str(run.rows.state) for run in here),
            committed_step=self.server.rows.committed_step,
            commits=sum(run.checkers.commits for run in here),
            evictions=sum(run.checkers.evictions for run in here),
            restarts=sum(run.rows.restarts for run in here),
            faults=(
                *self.faults.injected,
                *self.harsh.happened.elements(),
                *(SLOW for _ in self.slowness.late),
                *(OVERHEATS for _ in self.heat.until_s),
                *self.departures.happened,
            ),
            violations=tuple(self.checkers.violations),
            digest=self.kernel.digest(),
            tape=tuple(self.kernel.tape),
            decisions=tuple(entry for run in here for entry in run.rows.history),
            answers=tuple(entry for run in here for entry in run.rows.answers),
        )


def job_spec(
    *, tp: int = 1, spare_gpus: int = 2, steps: int = 100_000, min_replicas: int = 1, standing_by: int = 0
) -> TrainSpec:
    """Three replicas of two ranks (TP2, or TP1 x PP2), six micro-batches a step; of them
    `standing_by` compute nothing."""
    mode: Literal["spares", "redistribute"] = "spares" if standing_by else "redistribute"
    min_replicas = REPLICAS - standing_by if standing_by else min_replicas
    return TrainSpec(
        resources=Resources(nodes=REPLICAS, gpus_per_node=2, min_replicas=min_replicas, spares=Spares(gpus=spare_gpus)),
        parallelism=Parallelism(tp=tp, pp=2 // tp),
        training=Training(steps=steps, global_batch=6, micro_batch=1, batch_mode=mode),
        checkpoint=Checkpoint(interval_steps=20),
        resiliency=Resiliency(timeouts=Timeouts(setup_s=30.0)),
    )
