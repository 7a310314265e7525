"""One seed, one world: fleet, job, faults, and what became of it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.changes.outbox import LIVE
from controlplane.changes.turn import OVER
from controlplane.policy.config import PolicyConfig
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.frames import AgentFrame, AgentHello
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.spec import (
    Checkpoint,
    Parallelism,
    Resiliency,
    Resources,
    Spares,
    Timeouts,
    Training,
    TrainSpec,
    micro_batch_count,
)
from controlplane.protocol.states import QUEUED_JOB, JobState, ReplicaState, RequestState
from controlplane.simulator.agent import Agent, Down
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.extras import Extras, Harsh
from controlplane.simulator.faults import QUIET_BEFORE_S, Faults
from controlplane.simulator.heat import OVERHEATS, Heat
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.lens import Lens
from controlplane.simulator.network import Network, Way
from controlplane.simulator.people import People
from controlplane.simulator.process import Rank
from controlplane.simulator.server import Server
from controlplane.simulator.slowness import SLOW, Slowness
from controlplane.simulator.storage import Storage
from controlplane.simulator.timing import Timing
from controlplane.simulator.trainer import Report, Trainer
from controlplane.simulator.truth import Truth

REPLICAS = 3
FAULTS_UNTIL_S = 90.0
CALM_S = 150.0
STEADY_S = 30.0
JUDGED_S = 60.0
"""So long after a recovery its certificate is there: no report comes later."""
READS = (VerifyCheckpoint, EndVerification)
NONE = Extras()
LASTING = frozenset({"node_silent", "straggler", "node_check"})
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


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
    one, `makes`: name to (model, bytes of memory) of its devices where its driver says."""

    spec: TrainSpec
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
        self.network = Network(self.kernel)
        self.micro_batches = micro_batch_count(self.spec)
        self.checkers, self.truth = Checkers(self.kernel, self.micro_batches), Truth(self)
        self.checkers.slow, self.checkers.holders = self.truth.keeps, self.truth.holders
        self.trainer = Trainer(self.kernel, self.checkers, self._said, plan.timing)
        self.agents = {name: Agent(name, self.kernel, self.trainer, self.checkers, self._up) for name in nodes}
        self.config, self.storage = config or PolicyConfig(), Storage(seed)
        for agent in self.agents.values():
            agent.children.reader.storage = self.storage
        self.checkers.is_rotten = self.storage.is_rotten
        self.server = Server(
            *(self.spec, nodes, self.config, self.kernel, self.checkers, self._down, self.truth.sick), self.storage
        )
        for name, node in self.server.rows.nodes.items():
            node.segment = plan.racks.get(name, "")
            node.model, node.memory_bytes = plan.makes.get(name, ("", None))
        self.server.decide = lens = self.lens = Lens()
        self.people = People(self.kernel, self.server, seed)
        self.faults = Faults(self.kernel, self.network, self.server, self.agents, self.trainer)
        self.slowness = Slowness(self.kernel, self.server, self.trainer, self.spec.resiliency.stragglers, seed)
        self.heat = Heat(self.kernel, self.server, self.spec.resiliency.risk, seed)
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

    def _said(self, rank: Rank, report: Report) -> None:
        self.agents[rank.node].children.say(rank, report)

    def start(self) -> None:
        """Agents and server begin to work."""
        for agent in self.agents.values():
            agent.start()
        self.server.start()

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
        self.harsh.schedule(FAULTS_UNTIL_S, extras, self.seed)
        self.kernel.run(FAULTS_UNTIL_S + CALM_S)
        # What most of a job is late for is nobody's fault: it is held, with that reason, until its limit is over.
        if (held_until_s := self.checkers.held_until_s(self.config)) > self.kernel.now_s:
            self.kernel.run(held_until_s + CALM_S)
        before = self.server.rows.committed_step
        self.kernel.run(self.kernel.now_s + STEADY_S)
        self._judge(before)
        return self.outcome()

    def _judge(self, before: int) -> None:
        """I10: a job runs and moves, waits with a reason, or has ended. I2: no order hangs. What the server
        says of its replicas is so, and nothing else runs."""
        self._judge_rows()
        self._judge_processes()
        rows = self.server.rows
        expect = self.checkers.expect
        if rows.state is JobState.RUNNING:
            expect(rows.committed_step > before, f"I10: running, but no step in {STEADY_S:.0f} s")
            expect(not rows.signals or self._only_lasting(), f"I12: open findings {sorted(rows.signals)}")
        elif rows.state in QUEUED_JOB:
            expect(bool(rows.last_wait), "I10: pending without a reason")
        else:
            expect(rows.state in ENDED, f"I10: still {rows.state} {CALM_S:.0f} s after the last fault")
        if rows.state is JobState.FAILED:
            given_up = any(entry.split(":")[1] in ("fail", "failed") for entry in rows.history)
            expect(given_up, "I10: failed without a reason")
        open_still = [r.id for r in rows.requests.values() if r.state is RequestState.OPEN]
        expect(rows.state is not JobState.RUNNING or not open_still, f"I-ask: nobody has looked at {open_still}")
        for command_id, row in rows.commands.items():
            dead = self.agents[row.envelope.node_id].dead
            # One that reads a checkpoint may, as long as nothing else is due.
            dead = dead or (isinstance(row.envelope.body, READS) and row.due_s > self.kernel.now_s)
            expect(row.state not in LIVE or dead, f"I2: command {command_id} is still {row.state}")

        for incident, course in rows.course.incidents.items():
            over = course.due_s is None or self.kernel.now_s - (course.over_s or 0.0) < JUDGED_S
            expect(over, f"I-cert: the certificate of {incident} is still {course.state}")

    def _only_lasting(self) -> bool:
        return {signal.kind for signal in self.server.rows.signals.values()} <= LASTING

    def _judge_rows(self) -> None:
        """While it runs: who is said to contribute does, in truth."""
        rows, expect = self.server.rows, self.checkers.expect
        if rows.state is not JobState.RUNNING or rows.install is None or rows.attempt is None:
            return
        for index, row in sorted(rows.replicas.items()):
            process = self.trainer.processes.get((rows.attempt.number, index, row.incarnation))
            role = process.standing.role if process is not None and process.able() else None
            said = row.contributing and row.state is ReplicaState.ACTIVE
            does = role is MemberRole.CONTRIBUTOR and process is not None and process.epoch == rows.epoch
            expect(said == does, f"I-true: r{index} is said {'' if said else 'not '}to contribute, and is {role}")

    def _judge_processes(self) -> None:
        """Nothing lives on that the server has ended or does not know."""
        rows = self.server.rows
        live = {(row.attempt, row.index, row.incarnation) for row in rows.replicas.values() if row.state not in OVER}
        for key, process in sorted(self.trainer.processes.items()):
            alive = [
                rank.ref.rank
                for rank in process.ranks.values()
                if rank.alive and not self.network.is_cut(rank.node) and not self.agents[rank.node].dead
            ]
            over = rows.state in ENDED or key not in live
            self.checkers.expect(not (alive and over), f"I-left: ranks {alive} of {key} live on")

    def outcome(self) -> Outcome:
        """The result as data."""
        rows = self.server.rows
        return Outcome(
            seed=self.seed,
            state=str(rows.state),
            committed_step=rows.committed_step,
            commits=self.checkers.commits,
            evictions=self.checkers.evictions,
            restarts=rows.restarts,
            faults=(
                *self.faults.injected,
                *self.harsh.happened.elements(),
                *(SLOW for _ in self.slowness.late),
                *(OVERHEATS for _ in self.heat.until_s),
            ),
            violations=tuple(self.checkers.violations),
            digest=self.kernel.digest(),
            tape=tuple(self.kernel.tape),
            decisions=tuple(rows.history),
            answers=tuple(rows.answers),
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
