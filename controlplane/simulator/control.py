"""What the simulated server does for one job: its rows and their writer, its outbox, its passes.

Level-triggered: a wake-up (an event, a signal) or the stored deadline has the job looked at, which loads, decides and
applies. In a world of several jobs `place` says where the job stands in their queue, and `again` what its project's
quota has for its next attempt.
"""

from collections.abc import Callable, Iterable

from controlplane.changes.behind import entered_at_once, entered_behind, starts_behind, still_wanted
from controlplane.changes.due.findings import report_unknown, settle_old
from controlplane.changes.due.sessions import close_dead
from controlplane.changes.marks import tell_marked
from controlplane.changes.silence import is_heard
from controlplane.policy.asked import Again
from controlplane.policy.budget import Entry
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.elsewhere import decide_asking, parted
from controlplane.policy.plan import Decision, Plan
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.stuck import Alone, alone_at_work
from controlplane.protocol.frames import Acked, Welcome
from controlplane.protocol.states import QUEUED_JOB, AttemptState, Mode
from controlplane.simulator.asked import Asked
from controlplane.simulator.budget import Charge
from controlplane.simulator.certificates import Certificates
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.keeping import Keeping
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.load import load
from controlplane.simulator.outbox import Outbox
from controlplane.simulator.readings import Readings
from controlplane.simulator.rows import Order, Rows
from controlplane.simulator.shared import Numbers
from controlplane.simulator.storage import Storage
from controlplane.simulator.store import Sick, Store

Downlink = Callable[[str, Order | Acked | Welcome], None]
Decide = Callable[[JobSnapshot, PolicyConfig], Plan]


class Control:
    """Of one job. `wake`: a job is looked at ("": every one); `sick` is the checkers' truth; `decide` is the policy,
    around which a roll-out puts a way out of its own; `on_left`: it is in the queue no more,
    `on_made`: a decision was carried out."""

    def __init__(
        self,
        rows: Rows,
        config: PolicyConfig,
        kernel: Kernel,
        checkers: Checkers,
        sick: Sick,
        storage: Storage,
        downlink: Downlink,
        wake: Callable[[str], None],
        numbers: Numbers,
    ) -> None:
        self.rows, self.checkers, self._config, self._kernel = rows, checkers, config, kernel
        self.decide: Decide = decide
        self.place: Callable[[Rows, float], QueuePlace | None] = lambda rows, now_s: None
        self.again: Callable[[Rows, float], Again | None] = lambda rows, now_s: None
        self.on_left: Callable[[], None] = lambda: None
        self.on_made: Callable[[Decision], None] = lambda decision: None
        self.asked = Asked(rows, kernel, checkers, wake, numbers)
        self.store = Store(rows, kernel, checkers, sick, self.asked, numbers)
        self.store.on_wake = wake
        self.readings, self.keeping = Readings(rows, self.store, storage), Keeping(rows, self.store)
        self.store.on_final = self.keeping.end
        self.certificates = Certificates(rows, kernel, checkers)
        self.outbox = Outbox(rows, self.store, downlink)
        self.forget()

    def forget(self) -> None:
        """What the server's process had in memory is gone with it."""
        self.next_pass_s: float | None = 0.0
        self.rung = True
        self._alone: frozenset[Alone] = frozenset()

    def scan(self) -> None:
        """The sentinel's deadlines of the job."""
        for due in (tell_marked, close_dead, settle_old, report_unknown):
            self.store.commit(due(self.store))
        self.readings.sweep()
        self.keeping.sweep(self.certificates.sweep())

    def heard(self, node_id: str) -> None:
        """That ends its silence; of a job of which nothing was found there is none."""
        if self.rows.signals:
            self.store.commit(is_heard(self.store, node_id))

    def look_for_stuck(self) -> None:
        """The sentinel's look at who works while all others wait."""
        alone = alone_at_work(status for row in self.rows.replicas.values() for status in row.told.values())
        self.rung = self.rung or bool(alone - self._alone)
        self._alone = alone

    def look_at_time(self) -> None:
        """Its moment has come, or something of it is to end."""
        stopping = self.rows.attempt is not None and self.rows.attempt.state is AttemptState.STOPPING
        due = self.next_pass_s is not None and self._kernel.now_s >= self.next_pass_s
        self.rung = self.rung or stopping or due

    def reconcile(self, *, unsure: bool, on_decision: Callable[[str], None]) -> bool:
        """One pass; True if it changed something."""
        now_s, waited = self._kernel.now_s, self.rows.state in QUEUED_JOB
        self.store.settle()
        self.rows.decided_on = self.rows.view
        snapshot = load(self.rows, now_s, unsure, self.place(self.rows, now_s))
        part, answer = parted(snapshot, lambda: self.again(self.rows, now_s))
        snapshot, plan = decide_asking(part, self._config, answer, judge=self.decide)
        self.next_pass_s = plan.next_pass_s
        changed, behind = False, list[tuple[Decision, int]]()
        for decision in plan.decisions:
            if why := self.rows.budget.refuses(decision, self._config, now_s):
                self._kernel.log("undone", f"{self.rows.label}{decision.rule}: {why}")
                continue
            if self.store.decision(decision) and decision.mode is Mode.ENFORCE:
                changed = changed or bool(decision.actions)
                self._charge(entered_at_once(decision, snapshot))
                behind += [(decision, self.rows.epoch)] if starts_behind(decision) else []
                self.on_made(decision)
                on_decision(decision.choice)
        # What one pass decides is one transaction: in between nobody sees anything.
        self.checkers.counted(self.rows)
        if waited and self.rows.state not in QUEUED_JOB:
            self.on_left()
        for decision, epoch in behind:
            self._follow(decision, snapshot, epoch)
        return changed

    def _follow(self, decision: Decision, snapshot: JobSnapshot, epoch: int) -> None:
        """What a decision starts in the slots that it emptied: another transaction. Who ends before loses it."""
        assert snapshot.attempt is not None, "slots are an attempt's"
        starts = still_wanted(self.store, starts_behind(decision), attempt=snapshot.attempt.number, epoch=epoch)
        if taken := self.store.taken(starts):
            # As `recovery.holding` refuses it: the slot stands empty for whoever decides next.
            self._kernel.log("undone", f"{self.rows.label}{decision.rule}: {taken}")
            return
        self.store.carry(decision, starts)
        self._charge(entered_behind(decision, snapshot, starts))
        self.checkers.counted(self.rows)

    def _charge(self, entered: Iterable[Entry]) -> None:
        number = self.rows.attempt.number if self.rows.attempt is not None else 0
        self.rows.charged += [
            Charge(self._kernel.now_s, number, entry.rung, entry.program) for entry in entered if entry.charged
        ]
