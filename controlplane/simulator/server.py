"""The simulated control plane: ingest, detectors, and a `Control` for each job.

Commands are delivered at once and again until answered. In a world of several jobs all that is the fleet's (nodes, what
is found of them, drains) is one, and a pass of a job that waits asks the queue's plan for its place, as in the product;
who waits is woken when a device is freed, when a job leaves the queue, and by the plan (`recovery.queue_pass`).
"""

from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, fields

from controlplane.changes.hearing import HEARD, hear
from controlplane.changes.silence import fell_silent, silence_of
from controlplane.changes.speaker import Speaker
from controlplane.policy.asked import Again
from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.queue.schedule import called
from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import Acked, AgentFrame, AgentHello, CommandAnswer, EventBody, HostExited
from controlplane.protocol.launch import RankRef
from controlplane.protocol.spec import TrainSpec
from controlplane.protocol.states import QUEUED_JOB, JobState
from controlplane.simulator import load_queue
from controlplane.simulator.asked import Asked
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.control import Control, Decide, Downlink
from controlplane.simulator.hello import FRAME_INTERVAL_S, greet, welcome
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.load import fleet_waits, load_fleet, load_nodes
from controlplane.simulator.rows import NodeRow, ReplicaRow, Rows
from controlplane.simulator.shared import NO_PROJECTS, Numbers, Part, V
from controlplane.simulator.storage import Storage
from controlplane.simulator.store import Sick, Store

__all__ = ["Decide", "Job", "Server"]
SCAN_S = 0.5
SOCKET_S = 3.0
"""A web process closes a connection on which nothing came for so long; here all ends of a connection look so."""
BLIND_AFTER_PAUSE_S = 5.0
WELCOMED_S = 0.05
MAX_ROUNDS = 20
PLAN_EVERY_S = 5.0
"""As `recovery.queue_pass`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One that is submitted. `sick` is the checkers' truth."""

    id: str
    name: str
    spec: TrainSpec
    checkers: Checkers
    sick: Sick


class Server:
    """The control plane of a fleet. `downlink` sends to an agent. What is asked without naming a job is asked of the
    first."""

    def __init__(
        self,
        first: Job,
        nodes: dict[str, int],
        config: PolicyConfig,
        kernel: Kernel,
        downlink: Downlink,
        storage: Storage,
        *,
        several: bool = False,
    ) -> None:
        self.paused_until_s, self.blind_until_s, self.projects = 0.0, 0.0, NO_PROJECTS
        self.pauses: list[tuple[float, float]] = []
        self.on_decision: Callable[[str], None] = lambda choice: None
        self._config, self._kernel, self._downlink, self._storage = config, kernel, downlink, storage
        self._numbers, self._several, self._planned_s = Numbers(), several, 0.0
        rows = Rows(spec=first.spec, nodes={name: NodeRow(name, devices) for name, devices in nodes.items()})
        self.jobs: dict[str, Control] = {}
        self.fleet = self._control(rows, first.checkers, first.sick)
        if several:
            rows.job_id, rows.jobs, rows.signals, rows.requests = "", {}, Part(), Part()
            self.submit(first)
        else:
            self.jobs = {rows.job_id: self.fleet}
        self.first, self._starts, self._web = self.jobs[first.id], 0, ""
        self._begin()

    def _control(self, rows: Rows, checkers: Checkers, sick: Sick) -> Control:
        parts = (rows, self._config, self._kernel, checkers, sick, self._storage, self._downlink)
        return Control(*parts, self.ring, self._numbers)

    def submit(self, job: Job) -> Control:
        """It waits in the queue from now on."""
        fleet = self.fleet.rows
        rows = Rows(
            spec=job.spec,
            job_id=job.id,
            name=job.name,
            created_s=self._kernel.now_s,
            jobs=fleet.jobs,
            nodes=fleet.nodes,
            signals=_seen_by(fleet.signals, job.id),
            requests=_seen_by(fleet.requests, job.id),
            settled=fleet.settled,
            budget=fleet.budget,
            webs=fleet.webs,
        )
        made = self.jobs[job.id] = self._control(rows, job.checkers, job.sick)
        made.place, made.again, made.on_left = self._place, self._again, self._wake_front
        made.store.on_freed = self._freed
        self.ring(job.id)
        return made

    def _begin(self) -> None:
        """A process of its own, which holds no connection yet."""
        self._starts += 1
        self._web = f"web-{self._starts}"
        self.rows.webs[self._web] = self._kernel.now_s

    # --- the first job, or the only one -----------------------------------------------------

    @property
    def rows(self) -> Rows:
        """Of it."""
        return self.first.rows

    @property
    def store(self) -> Store:
        """Of it."""
        return self.first.store

    @property
    def asked(self) -> Asked:
        """Of it."""
        return self.first.asked

    @property
    def decide(self) -> Decide:
        """Its policy."""
        return self.first.decide

    @decide.setter
    def decide(self, judge: Decide) -> None:
        self.first.decide = judge

    # --- its process ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to scan."""
        self._kernel.after(SCAN_S, self._scan)

    def find(self, signal: SignalFact) -> None:
        """A finding of a detector that is not simulated."""
        self.rows.signals[signal.id] = signal
        self.ring()

    def ring(self, job: str = "") -> None:
        """Something was written that the job, or ("") every one, is to be looked at for."""
        for control in [self.jobs[job]] if job in self.jobs else self.jobs.values():
            control.rung = True
        self._kernel.after(0.001, self._wake)

    def pause(self, seconds: float) -> None:
        """A stopped process: it neither hears nor thinks, and is blind for a while after."""
        self.paused_until_s = self._kernel.now_s + seconds
        self.pauses.append((self._kernel.now_s, self.paused_until_s))
        self.blind_until_s = self.paused_until_s + BLIND_AFTER_PAUSE_S
        self._kernel.log("fault", f"the backend stops for {seconds:.1f} s")

    def restart(self, seconds: float) -> None:
        """Its process ends and is back so much later; what it had in memory is gone."""
        self.pause(seconds)
        for control in self.jobs.values():
            control.forget()
        self._planned_s = 0.0
        self._begin()

    def set_back(self, kept: Rows, seconds: float) -> None:
        """Its database is restored to what it was (`kept`), and its process is back so much later. Only its nodes know
        what was decided since."""
        for each in fields(Rows):
            if each.name != "jobs":
                setattr(self.rows, each.name, getattr(kept, each.name))
        self.first.checkers.set_back()
        self.restart(seconds)

    @property
    def paused(self) -> bool:
        """Stopped now."""
        return self._kernel.now_s < self.paused_until_s

    @property
    def _unsure(self) -> bool:
        return self._kernel.now_s < self.blind_until_s

    # --- ingest --------------------------------------------------------------------------

    def receive(self, node: str, session: int, message: AgentHello | AgentFrame) -> None:
        """A hello, or one frame; its events are applied once and in order, and acknowledged."""
        row = self.rows.nodes[node]
        if self.paused or session < row.session:
            return
        if isinstance(message, AgentHello):
            self._hello(row, session, message)
        elif session == row.session:
            self._frame(row, message)

    def _frame(self, row: NodeRow, frame: AgentFrame) -> None:
        row.seen_s = self._kernel.now_s
        if not row.connected or row.web != self._web:
            row.open(self._web, self._kernel.now_s)
        for control in self.jobs.values():
            control.heard(row.id)
        for status in frame.ranks:
            row.ranks_s[status.ref.job_id] = row.seen_s
            replica = self._replica(status.ref)
            if replica is not None:
                replica.spoke_s[status.ref.rank] = self._kernel.now_s - status.silent_s
                replica.note(status, self._kernel.now_s)
                replica.phase_since_s[status.ref.rank] = self._kernel.now_s - status.phase_age_s
        for event in frame.events:
            if event.seq == row.applied_seq + 1:
                row.applied_seq = event.seq
                self._event(row, event.body, self._kernel.now_s - event.age_s)
        self._downlink(row.id, Acked(row.applied_seq))
        self._wake_soon()

    def _hello(self, row: NodeRow, session: int, hello: AgentHello) -> None:
        for control in self.jobs.values():
            control.heard(row.id)
        greet({job_id: control.store for job_id, control in self.jobs.items()}, self.fleet.store, row, hello)
        named = {*(seen.job_id for seen in hello.jobs), *self._wanting()} if self._several else self.jobs.keys()
        for job_id, control in self.jobs.items():
            control.rung = control.rung or job_id in named or bool(control.store.held(row.id))
        row.session, row.seen_s = session, self._kernel.now_s
        row.open(self._web, self._kernel.now_s)
        self._kernel.after(WELCOMED_S, self._welcomed, row)
        self._downlink(row.id, welcome(row))
        self._wake_soon()

    def _wake_soon(self) -> None:
        if any(control.rung for control in self.jobs.values()):
            self._kernel.after(0.001, self._wake)

    def _welcomed(self, row: NodeRow) -> None:
        """A socket keeps the order of what was sent on it, which this network does not: commands follow the welcome."""
        if not self.paused:
            for control in self._controls():
                control.outbox.requeue(row.id)
            self._deliver()

    def _replica(self, ref: RankRef) -> ReplicaRow | None:
        """The row, if this incarnation is still the newest of the current attempt."""
        if ref.job_id not in self.jobs:
            return None
        rows = self.jobs[ref.job_id].rows
        row, attempt = rows.replicas.get(ref.replica), rows.attempt
        if row is None or attempt is None or ref.attempt != attempt.number or row.incarnation != ref.incarnation:
            return None
        return row

    def _event(self, node: NodeRow, body: EventBody, at_s: float) -> None:
        """Of a life that is proved gone and followed nothing is kept here: a word about it is put aside."""
        if isinstance(body, CommandAnswer):
            for control in self._controls():
                if body.command_id in control.rows.commands:
                    control.outbox.answer(body, at_s)
        elif type(body) in HEARD:
            ref = getattr(body, "ref", None)
            job = body.job_id if isinstance(body, HostExited) else ref.job_id if ref is not None else ""
            store = self.jobs.get(job, self.fleet).store
            with suppress(IdentityMismatch):
                store.commit(hear(store, body, Speaker(node.id, node.id, at_s)), seen_s=at_s)

    # --- signals ---------------------------------------------------------------------------

    def _scan(self) -> None:
        """The sentinel's look at who is silent, and the net under wake-ups."""
        self._kernel.after(SCAN_S, self._scan)
        if self.paused:
            return
        now_s = self._kernel.now_s
        if not self._unsure:
            for node in self.rows.nodes.values():
                for control in self.jobs.values():
                    self._judge_silence(node, control, now_s)
                self._close_unheard(node, now_s)
        for control in self.jobs.values():
            control.look_for_stuck()
        self.rows.webs[self._web] = now_s
        for control in self.jobs.values():
            control.scan()
        if fleet_waits(self.fleet.rows) or self.fleet.rows.budget.waits(self._config, now_s):
            self.fleet.store.of_fleet(load_fleet(self.fleet.rows, now_s, self._unsure), self._config)
        self._call_waiting()
        self._deliver()
        for control in self.jobs.values():
            control.look_at_time()
        self._wake()

    def _close_unheard(self, node: NodeRow, now_s: float) -> None:
        """The web process knows its own connections; of those of one that ended nobody does."""
        if node.connected and node.web == self._web and now_s - node.seen_s >= SOCKET_S:
            node.close(now_s)

    def _judge_silence(self, node: NodeRow, control: Control, now_s: float) -> None:
        store, rows = control.store, control.rows
        found = silence_of(
            node.id,
            rows.job_id,
            silent_s=now_s - node.seen_s,
            allowed_s=rows.spec.resiliency.timeouts.silence_s,
            frame_interval_s=FRAME_INTERVAL_S,
        )
        if found is not None and store.held(node.id):
            store.commit(fell_silent(store, found), seen_s=found.began_s(now_s))
        else:
            control.heard(node.id)

    # --- the queue, of several jobs ------------------------------------------------------------

    def _place(self, rows: Rows, now_s: float) -> QueuePlace | None:
        asks = rows.state in QUEUED_JOB or (rows.attempt is not None and rows.attempt.yielded > 0)
        nodes = load_nodes(self.fleet.rows, now_s, self._unsure) if asks else ()
        return load_queue.place_of(rows, nodes, self._config, now_s, self.projects)

    def _again(self, rows: Rows, now_s: float) -> Again | None:
        nodes = load_nodes(self.fleet.rows, now_s, self._unsure)
        return load_queue.again(rows, nodes, self._config, now_s, self.projects)

    def _front(self) -> list[str]:
        return load_queue.front(self.fleet.rows.jobs, self._config, self._kernel.now_s)

    def _wanting(self) -> list[str]:
        """Who is woken when a device is freed or a node comes."""
        states = ((job_id, control.rows.state) for job_id, control in self.jobs.items())
        return [*(job_id for job_id, state in states if state == JobState.RECOVERING), *self._front()]

    def _wake_front(self) -> None:
        """A job has left the queue."""
        for job_id in self._front():
            self.ring(job_id)

    def _freed(self) -> None:
        for job_id in self._wanting():
            self.ring(job_id)

    def _call_waiting(self) -> None:
        """Of those that have no moment of their own at which they look for devices: the first in line, and whom the
        plan calls."""
        rows, now_s = self.fleet.rows, self._kernel.now_s
        soon_s = now_s + self._config.capacity_retry_s
        asleep = {
            job_id: control.next_pass_s
            for job_id, control in self.jobs.items()
            if control.rows.state in QUEUED_JOB and not control.rows.parked_by
            if control.next_pass_s is None or control.next_pass_s > soon_s
        }
        if not asleep or not self._several:
            return
        first = load_queue.front(rows.jobs, self._config, now_s, 1)
        woken = {job_id for job_id in first if job_id in asleep and asleep[job_id] is None}
        if now_s - self._planned_s >= PLAN_EVERY_S:
            self._planned_s = now_s
            nodes = load_nodes(rows, now_s, self._unsure)
            woken |= called(load_queue.plan_of(rows.jobs, nodes, self._config, now_s, self.projects)) & asleep.keys()
        for job_id in sorted(woken):
            self.ring(job_id)

    # --- decide and deliver ------------------------------------------------------------------

    def _controls(self) -> Iterable[Control]:
        return [*self.jobs.values(), *([self.fleet] if self._several else [])]

    def _wake(self) -> None:
        if self.paused or not any(control.rung for control in self.jobs.values()):
            return
        for control in list(self.jobs.values()):
            if control.rung:
                control.rung = False
                self._passes(control)
        self._deliver()

    def _passes(self, control: Control) -> None:
        for _ in range(MAX_ROUNDS):
            if not control.reconcile(unsure=self._unsure, on_decision=self.on_decision):
                return

    def _deliver(self) -> None:
        """What expires may call for a decision."""
        for control in self._controls():
            if control.outbox.sweep():
                self.ring(control.rows.job_id)


def _seen_by(whole: MutableMapping[str, V], job_id: str) -> Part[V]:
    assert isinstance(whole, Part), "tables of several jobs"
    return whole.seen_by(job_id)
