"""The simulated control plane: ingest, detectors, the reconcile loop, delivery.

Level-triggered: a wake-up (an event, a signal) or the stored deadline wakes `_reconcile`,
which loads, decides and applies. Commands are delivered at once and again until answered.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields

from controlplane.changes.behind import entered_at_once, entered_behind, starts_behind, still_wanted
from controlplane.changes.due.findings import report_unknown, settle_old
from controlplane.changes.due.sessions import close_dead
from controlplane.changes.hearing import HEARD, hear
from controlplane.changes.marks import tell_marked
from controlplane.changes.silence import fell_silent, is_heard, silence_of
from controlplane.changes.speaker import Speaker
from controlplane.policy.budget import Entry
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.elsewhere import decide_asking, parted
from controlplane.policy.plan import Decision, Plan
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.policy.stuck import Alone, alone_at_work
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import (
    Acked,
    AgentFrame,
    AgentHello,
    CommandAnswer,
    EventBody,
    Welcome,
)
from controlplane.protocol.launch import RankRef
from controlplane.protocol.spec import TrainSpec
from controlplane.protocol.states import AttemptState, Mode
from controlplane.simulator.asked import Asked
from controlplane.simulator.certificates import Certificates
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.hello import FRAME_INTERVAL_S, greet, welcome
from controlplane.simulator.keeping import Keeping
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.load import fleet_waits, load, load_fleet
from controlplane.simulator.outbox import Outbox
from controlplane.simulator.readings import Readings
from controlplane.simulator.rows import JOB_ID, NodeRow, Order, ReplicaRow, Rows
from controlplane.simulator.storage import Storage
from controlplane.simulator.store import Sick, Store

SCAN_S = 0.5
SOCKET_S = 3.0
"""A web process closes a connection on which nothing came for so long; here all ends of a connection look so."""
BLIND_AFTER_PAUSE_S = 5.0
WELCOMED_S = 0.05
MAX_ROUNDS = 20

Downlink = Callable[[str, Order | Acked | Welcome], None]
Value = str | int | float | bool | None
Decide = Callable[[JobSnapshot, PolicyConfig], Plan]


class Server:
    """One job's control plane. `downlink` sends to an agent; `sick` is the checkers' truth; `decide`
    is the policy, around which a roll-out puts a way out of its own."""

    def __init__(
        self,
        spec: TrainSpec,
        nodes: dict[str, int],
        config: PolicyConfig,
        kernel: Kernel,
        checkers: Checkers,
        downlink: Downlink,
        sick: Sick,
        storage: Storage,
    ) -> None:
        self.rows = Rows(spec=spec, nodes={name: NodeRow(name, devices) for name, devices in nodes.items()})
        self.paused_until_s = 0.0
        self.blind_until_s = 0.0
        self.pauses: list[tuple[float, float]] = []
        self.decide: Decide = decide
        self.on_decision: Callable[[str], None] = lambda choice: None
        self._config, self._kernel, self._checkers, self._downlink = config, kernel, checkers, downlink
        self.asked = Asked(self.rows, kernel, checkers, self.ring)
        self.store = Store(self.rows, kernel, checkers, sick, self.asked)
        self.store.on_wake = self.ring
        self.readings, self.keeping = Readings(self.rows, self.store, storage), Keeping(self.rows, self.store)
        self.store.on_final = self.keeping.end
        self._certificates = Certificates(self.rows, kernel, checkers)
        self._outbox = Outbox(self.rows, self.store, downlink)
        self._next_pass_s: float | None = 0.0
        self._rung = True
        self._alone: frozenset[Alone] = frozenset()
        self._starts = 0
        self._web = ""
        self._begin()

    def _begin(self) -> None:
        """A process of its own, which holds no connection yet."""
        self._starts += 1
        self._web = f"web-{self._starts}"
        self.rows.webs[self._web] = self._kernel.now_s

    def start(self) -> None:
        """Begin to scan."""
        self._kernel.after(SCAN_S, self._scan)

    def find(self, signal: SignalFact) -> None:
        """A finding of a detector that is not simulated."""
        self.rows.signals[signal.id] = signal
        self.ring()

    def ring(self) -> None:
        """Something was written that somebody must look at."""
        self._rung = True
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
        self._rung, self._next_pass_s, self._alone = True, 0.0, frozenset()
        self._begin()

    def set_back(self, kept: Rows, seconds: float) -> None:
        """Its database is restored to what it was (`kept`), and its process is back so much later. Only its nodes know
        what was decided since."""
        for each in fields(Rows):
            setattr(self.rows, each.name, getattr(kept, each.name))
        self._checkers.set_back()
        self.restart(seconds)

    @property
    def paused(self) -> bool:
        """Stopped now."""
        return self._kernel.now_s < self.paused_until_s

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
        row.ranks_s = row.seen_s if frame.ranks else row.ranks_s
        self.store.commit(is_heard(self.store, row.id))
        for status in frame.ranks:
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
        if self._rung:
            self._kernel.after(0.001, self._wake)

    def _hello(self, row: NodeRow, session: int, hello: AgentHello) -> None:
        self.store.commit(is_heard(self.store, row.id))
        greet(self.store, row, hello)
        self._rung = True
        row.session, row.seen_s = session, self._kernel.now_s
        row.open(self._web, self._kernel.now_s)
        self._kernel.after(WELCOMED_S, self._welcomed, row)
        self._downlink(row.id, welcome(row))
        if self._rung:
            self._kernel.after(0.001, self._wake)

    def _welcomed(self, row: NodeRow) -> None:
        """A socket keeps the order of what was sent on it, which this network does not: commands follow the welcome."""
        if not self.paused:
            self._outbox.requeue(row.id)
            self._deliver()

    def _replica(self, ref: RankRef) -> ReplicaRow | None:
        """The row, if this incarnation is still the newest of the current attempt."""
        row, attempt = self.rows.replicas.get(ref.replica), self.rows.attempt
        if row is None or attempt is None or ref.attempt != attempt.number or row.incarnation != ref.incarnation:
            return None
        return row

    def _event(self, node: NodeRow, body: EventBody, at_s: float) -> None:
        """Of a life that is proved gone and followed nothing is kept here: a word about it is put aside."""
        if isinstance(body, CommandAnswer):
            self._outbox.answer(body, at_s)
        elif type(body) in HEARD:
            with suppress(IdentityMismatch):
                self.store.commit(hear(self.store, body, Speaker(node.id, node.id, at_s)), seen_s=at_s)

    # --- signals ---------------------------------------------------------------------------

    def _scan(self) -> None:
        """The sentinel's look at who is silent, and the net under wake-ups."""
        self._kernel.after(SCAN_S, self._scan)
        if self.paused:
            return
        now_s = self._kernel.now_s
        if now_s >= self.blind_until_s:
            for node in self.rows.nodes.values():
                self._judge_silence(node, now_s)
                self._close_unheard(node, now_s)
        self._look_for_stuck()
        self.rows.webs[self._web] = now_s
        for due in (tell_marked, close_dead, settle_old, report_unknown):
            self.store.commit(due(self.store))
        self.readings.sweep()
        self.keeping.sweep(self._certificates.sweep())
        if fleet_waits(self.rows):
            self.store.of_fleet(load_fleet(self.rows, now_s, now_s < self.blind_until_s), self._config)
        self._deliver()
        stopping = self.rows.attempt is not None and self.rows.attempt.state is AttemptState.STOPPING
        if stopping or (self._next_pass_s is not None and now_s >= self._next_pass_s):
            self._rung = True
        self._wake()

    def _look_for_stuck(self) -> None:
        """The sentinel's look at who works while all others wait."""
        alone = alone_at_work(status for row in self.rows.replicas.values() for status in row.told.values())
        self._rung = self._rung or bool(alone - self._alone)
        self._alone = alone

    def _close_unheard(self, node: NodeRow, now_s: float) -> None:
        """The web process knows its own connections; of those of one that ended nobody does."""
        if node.connected and node.web == self._web and now_s - node.seen_s >= SOCKET_S:
            node.close(now_s)

    def _judge_silence(self, node: NodeRow, now_s: float) -> None:
        found = silence_of(
            node.id,
            JOB_ID,
            silent_s=now_s - node.seen_s,
            allowed_s=self.rows.spec.resiliency.timeouts.silence_s,
            frame_interval_s=FRAME_INTERVAL_S,
        )
        if found is not None and self.store.held(node.id):
            self.store.commit(fell_silent(self.store, found), seen_s=found.began_s(now_s))
        else:
            self.store.commit(is_heard(self.store, node.id))

    # --- decide and deliver ------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._rung or self.paused:
            return
        self._rung = False
        for _ in range(MAX_ROUNDS):
            if not self._reconcile():
                break
        self._deliver()

    def _reconcile(self) -> bool:
        """One pass; True if it changed something."""
        now_s = self._kernel.now_s
        self.store.settle()
        self.rows.decided_on = self.rows.view
        snapshot = load(self.rows, now_s, now_s < self.blind_until_s)
        part, answer = parted(snapshot)
        snapshot, plan = decide_asking(part, self._config, answer, judge=self.decide)
        self._next_pass_s = plan.next_pass_s
        changed, behind = False, list[tuple[Decision, int]]()
        for decision in plan.decisions:
            if self.store.decision(decision) and decision.mode is Mode.ENFORCE:
                changed = changed or bool(decision.actions)
                self._charge(entered_at_once(decision, snapshot))
                behind += [(decision, self.rows.epoch)] if starts_behind(decision) else []
                self.on_decision(decision.choice)
        # What one pass decides is one transaction: in between nobody sees anything.
        self._checkers.counted(self.rows)
        for decision, epoch in behind:
            self._follow(decision, snapshot, epoch)
        return changed

    def _follow(self, decision: Decision, snapshot: JobSnapshot, epoch: int) -> None:
        """What a decision starts in the slots that it emptied: another transaction. Who ends before loses it."""
        assert snapshot.attempt is not None, "slots are an attempt's"
        starts = still_wanted(self.store, starts_behind(decision), attempt=snapshot.attempt.number, epoch=epoch)
        self.store.carry(decision, starts)
        self._charge(entered_behind(decision, snapshot, starts))
        self._checkers.counted(self.rows)

    def _charge(self, entered: Iterable[Entry]) -> None:
        self.rows.charged_s += [self._kernel.now_s for entry in entered if entry.charged]

    def _deliver(self) -> None:
        """What expires may call for a decision."""
        if self._outbox.sweep():
            self.ring()
