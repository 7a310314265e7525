"""Rows in memory behind the write side's core: the commit of its changes.

What a change means is the core's to say, as in the product; here it is written down, and checked: moves against the
state tables, incarnations, epochs and devices against the invariants (I1, I4, I5).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from controlplane.changes import kinds
from controlplane.changes import rows as facts
from controlplane.changes.acts import carry_out, counted
from controlplane.changes.answers import frees
from controlplane.changes.assembly.counted import is_act
from controlplane.changes.behind import at_once
from controlplane.changes.disruption_kinds import BreakerChange, CloseBreaker, CountActs, OpenBreaker
from controlplane.changes.due import kinds as due
from controlplane.changes.end_kinds import NoteEnd
from controlplane.changes.kinds import (
    AttemptKey,
    DeviceKey,
    IncidentKey,
    JobKey,
    NodeKey,
    RankKey,
    ReplicaKey,
    RequestKey,
    ViewKey,
)
from controlplane.changes.turn import Turn, end_stopping
from controlplane.policy.causes import findings_of
from controlplane.policy.config import PolicyConfig
from controlplane.policy.faulty import opens_incident
from controlplane.policy.findings import KINDS
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import Action, AnnounceView, Decision, stored_key
from controlplane.policy.requests import RULES as ASKED
from controlplane.policy.rules import rehearsal
from controlplane.policy.signals.base import Finding
from controlplane.policy.snapshot import Placement, SignalFact
from controlplane.protocol.states import CheckpointState, NodeState, RankState, ReplicaState
from controlplane.simulator.asked import Asked, recommend
from controlplane.simulator.budget import CLOSED_AFTER_S
from controlplane.simulator.certificates import closed, decided, opened
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kept import keep, let_go, refuse
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.known import noted
from controlplane.simulator.load import places, there
from controlplane.simulator.processes import Processes
from controlplane.simulator.rows import AttemptRow, ReplicaRow, Rows
from controlplane.simulator.shared import Numbers, put
from controlplane.simulator.truth import stated_of

Sick = Callable[[int, int, int, str], str | None]


class Store(Processes):
    """One job's rows and their only writer by decision. `sick` tells the checkers the truth about a replica;
    `on_wake` is called where a change wakes a job ("": every one), `on_freed` where it frees a device, `on_final`
    before a decision ends the job."""

    def __init__(
        self,
        rows: Rows,
        kernel: Kernel,
        checkers: Checkers,
        sick: Sick,
        asked: Asked,
        numbers: Numbers | None = None,
    ) -> None:
        super().__init__(rows, kernel, checkers)
        self._sick, self._asked, self._numbers = sick, asked, numbers or Numbers()
        self._seen_s: float | None = None
        self.on_wake: Callable[[str], None] = lambda job: None
        self.on_freed: Callable[[], None] | None = None
        self.on_final: Callable[[], None] = lambda: None

    def decision(self, decision: Decision) -> bool:
        """Apply once a key. False: it was applied before."""
        if stored_key(decision.key) in self._rows.keys:
            return False
        if (recorded := recommend(self._rows, decision, self.now_s)) is not None:
            return recorded
        self._checkers.decided(decision)
        self._rows.keys.add(stored_key(decision.key))
        self._rows.budget.acts_s += [self.now_s] if is_act(decision) else []
        self._rows.last_wait = decision.sentence if decision.choice == "wait" else self._rows.last_wait
        self._rows.history.append(f"{decision.rule}:{decision.choice}:{decision.reason_code}")
        self._rows.faults_fired += decision.rule == rehearsal.RULE
        self._incident(decision)
        self._kernel.log(
            "decision",
            f"{self._rows.label}{decision.rule}/{decision.choice}/{decision.reason_code}: {decision.sentence}",
        )
        self._decisions += 1
        decided(self._rows, decision)
        self.carry(decision, at_once(decision))
        self.commit(counted(decision))
        return True

    def carry(self, decision: Decision, actions: Iterable[Action]) -> None:
        """These of its actions, one after the other."""
        self._decision, turn = decision, Turn(decision, self)
        if turn.final:
            self.on_final()
        for action in actions:
            if isinstance(action, AnnounceView):
                view, epoch = action.view, self._rows.epoch
                self._checkers.expect(view.epoch == epoch + 1, f"I1: view {view.epoch} after epoch {epoch}")
                self._checkers.expect(bool(view.members), f"I1: view {view.epoch} has no members")
            self.commit(carry_out(turn, action))

    def of_fleet(self, snapshot: FleetSnapshot, config: PolicyConfig) -> None:
        """The fleet's own pass."""
        for decision in decide_fleet(snapshot, config):
            self.decision(decision)

    def settle(self) -> None:
        """End an attempt of which nothing is left to stop."""
        self.commit(end_stopping(self))

    # --- what it writes ----------------------------------------------------------------------

    def commit(self, changes: Iterable[kinds.Change | due.Deadline], *, seen_s: float | None = None) -> None:
        """In their order. `seen_s`: when what is found showed itself, now unless said."""
        self._seen_s = seen_s
        for change in changes:
            self._change(change)
            if self.on_freed is not None and not isinstance(change, due.Deadline) and frees(change):
                self.on_freed()

    def _change(self, change: kinds.Change | due.Deadline) -> None:
        rows = self._rows
        match change:
            case kinds.Transition():
                self._transition(change)
            case kinds.Observe(subject=subject, columns=columns):
                self._observe(subject, columns)
            case kinds.Fence(epoch=epoch):
                self._checkers.expect(epoch > rows.epoch, f"I1: epoch {epoch} after {rows.epoch}")
                rows.epoch = epoch
            case kinds.CreateAttempt(attempt=attempt):
                self._new_attempt(attempt)
            case kinds.CreateReplica(key=key, placements=placements):
                self._new_replica(key, placements)
            case kinds.CreateView(view=view):
                rows.announce(view, self.now_s)
            case kinds.Enqueue(commands=commands, attempt=number, ttl_s=ttl_s):
                for node, body in commands:
                    self._command(node, body, number, ttl_s)
            case kinds.Settle() | kinds.Raise() | kinds.Amend() | kinds.Mark() | kinds.KeepDiagnostic():
                self._findings(change)
            case kinds.Reserve(nodes=nodes):
                for node in nodes:
                    rows.nodes[node].reserved_for = rows.job_id
            case kinds.Release(nodes=named):
                for each in (rows.nodes[node] for node in (rows.nodes if named is None else named)):
                    each.reserved_for = "" if each.reserved_for == rows.job_id else each.reserved_for
            case kinds.Demote(checkpoint=gone):
                let_go(rows.saves[gone], CheckpointState.CORRUPT, self.now_s)
            case kinds.Suspect(checkpoint=of, step=step):
                save = rows.saves[of]
                if save.fact is not None:
                    save.fact = msgspec.structs.replace(save.fact, suspect_step=step)
            case kinds.CreateEviction() | kinds.CreatePreemption() | kinds.Withdraw():
                self._of_request(change)
            case kinds.Close(command=command, state=state, detail=detail):
                over = rows.commands[command]
                self._check("command", over.state, state)
                over.state, over.detail = state, detail
            case kinds.Wake() | kinds.Free():
                self.on_wake(getattr(change, "job", "") or rows.job_id)
            case kinds.Keep(subject=key, said=said):
                fenced = self.is_fenced(self.row(key.replica, key.incarnation))
                node = next(place.node_id for place in self._placed(key) if place.rank == key.rank)
                at_s = self.now_s if self._seen_s is None else self._seen_s
                keep(rows, key, said, node=node, at_s=at_s, now_s=self.now_s, fenced=fenced)
            case kinds.Resolve(outcome=outcome):
                closed(rows, self.open_incident(), outcome, self.now_s)
            case kinds.Lose() | kinds.Bar() | kinds.Judge():
                self._of_device(change)
            case kinds.Refuse(path=path, said=words):
                refuse(rows, path, words, self.now_s)
            case due.CloseSession() | due.ObserveSave() | due.MoveSave() | due.AskReader() | due.EndReading():
                self._of_deadline(change)
            case CountActs() | OpenBreaker() | CloseBreaker() | NoteEnd():
                self._of_fleet(change)
            case kinds.Publish() | kinds.Audit() | kinds.Count():
                pass  # Events, the audit log and counters are not simulated.

    def _of_fleet(self, change: BreakerChange | NoteEnd) -> None:
        if isinstance(change, NoteEnd):
            noted(self._rows.nodes[change.node], change, self.now_s)
            self.on_wake("")
        elif (made := self._rows.budget.take(change, self.now_s)) is not None:
            self._kernel.after(CLOSED_AFTER_S, self.close_breaker, made.id)

    def close_breaker(self, breaker: str) -> None:
        """A person has looked at it."""
        if self._rows.budget.close(breaker, self.now_s, by_person=True):
            self._kernel.log("person", f"closes the breaker {breaker}")
            self.on_wake("")

    def _of_request(self, change: kinds.CreateEviction | kinds.CreatePreemption | kinds.Withdraw) -> None:
        match change:
            case kinds.CreateEviction(key=key, drain=drain):
                self._asked.evict_for(key, drain)
            case kinds.CreatePreemption():
                self._asked.ask_to_yield(change)
            case kinds.Withdraw(request=request, by=by):
                self._asked.withdraw(request, by)

    def _findings(self, change: kinds.Change) -> None:
        rows = self._rows
        match change:
            case kinds.Settle(signals=ids):
                gone = [signal for each in ids if (signal := rows.signals.pop(each, None)) is not None]
                rows.settled += [signal for signal in gone if signal.kind in KINDS]
            case kinds.Raise(found=found):
                self._raise(found)
            case kinds.Amend(signal=signal_id, evidence=evidence):
                rows.signals[signal_id] = msgspec.structs.replace(rows.signals[signal_id], evidence=dict(evidence))
            case kinds.Mark(marked=marked):
                rows.marks[marked.marker] = marked
            case kinds.KeepDiagnostic(found=diagnostic):
                rows.diagnostics.append(diagnostic)

    def _transition(self, change: kinds.Transition) -> None:
        subject, to = change.subject, change.to
        match subject:
            case RequestKey(id=request):
                self._asked.move(request, to, change.reason)
                return
            case RankKey():
                self._rank_moves(subject, RankState(to), change.columns)
                return
            case NodeKey(id=node):
                row: Any = self._rows.nodes[node]
            case AttemptKey():
                row = self._rows.attempt
            case ReplicaKey(index=index, incarnation=incarnation):
                row = self.row(index, incarnation)
            case JobKey():
                row = self._rows
        if row.state == to and isinstance(subject, NodeKey):
            return
        self._check(kinds.MACHINES[type(subject)], row.state, to)
        row.state = type(row.state)(to)
        _write(row, change.columns)
        if isinstance(subject, NodeKey):
            row.reason = change.reason
            self._emptied(subject.id)
        elif isinstance(subject, ReplicaKey):
            row.state_since_s = self.now_s
            if to == ReplicaState.EVICTED:
                self._evicted(row)

    def _observe(self, subject: kinds.Observed, columns: Mapping[str, Any]) -> None:
        rows = self._rows
        match subject:
            case JobKey():
                _write(rows, columns)
            case AttemptKey():
                _write(rows.attempt, columns)
            case RankKey():
                self._begun(subject, columns)
            case ReplicaKey(index=index, incarnation=incarnation):
                row = self.row(index, incarnation)
                _write(row, columns)
                if "caught_up" in columns:
                    self._caught_up(row, columns["caught_up"])
            case IncidentKey(id=incident):
                rows.verdicts[incident] = columns["findings"]
            case ViewKey() if "install" in columns:
                order = columns["install"]
                rows.install, rows.commanded, rows.installed_s = order, order, columns["ordered_s"]
                rows.committed_step = max(rows.committed_step, order.step)
            case ViewKey():
                # When its first rank was in it is evidence alone.
                pass
            case DeviceKey(node_id=node, index=index):
                wanted_s = columns["reset_wanted_s"]
                rows.nodes[node].resets.pop(index, None)
                rows.nodes[node].resets |= {index: wanted_s} if wanted_s is not None else {}
            case _:
                raise AssertionError(f"{subject} is not simulated")

    def _incident(self, decision: Decision) -> None:
        """One at a time is simulated: the first fault opens it, what follows joins it."""
        rows, named = self._rows, findings_of(decision)
        found = [rows.signals[each] for each in named if each in rows.signals]
        if rows.incident_s is None and opens_incident(decision):
            rows.incident_s = min((signal.seen_s for signal in found), default=self.now_s)
            opened(rows, rows.incident_s)
        if rows.incident_s is not None and decision.rule not in ASKED:
            joined = self.open_incident()
            rows.signals.update({s.id: msgspec.structs.replace(s, incident_id=s.incident_id or joined) for s in found})

    # --- attempts, replicas and commands ------------------------------------------------------------

    def _new_attempt(self, new: facts.Attempt) -> None:
        rows, now_s = self._rows, self.now_s
        if rows.attempt is not None:
            rows.restarts += 1
            rows.attempts.append(rows.attempt)
        rows.attempt = AttemptRow(
            new.number,
            new.state,
            new.layout,
            new.replicas,
            now_s,
            new.resume_step,
            resume_path=new.resume_path,
            checkpoint_dir=new.checkpoint_dir,
            max_contributors=new.max_contributors,
            yielded=new.yielded,
        )
        rows.committed_step = new.resume_step
        rows.view, rows.install, rows.commanded, rows.installed_s, rows.views = None, None, None, None, {}
        rows.flushes = {}
        rows.ghosts += [row for row in rows.replicas.values() if not row.stopped]
        rows.replicas, rows.older = {}, []

    def _new_replica(self, key: ReplicaKey, placements: tuple[Placement, ...]) -> None:
        rows, row, name = self._rows, self._rows.replicas.get(key.index), f"r{key.index}.{key.incarnation}"
        newest = max(rows.lives.get(key.index, 0), rows.ahead.get("incarnations", {}).get(str(key.index), 0))
        self._checkers.expect(key.incarnation == newest + 1, f"I4: {name} skips an incarnation")
        wanted = {(place.node_id, place.device_index) for place in placements}
        for other in self.all_replicas():
            held = {(place.node_id, place.device_index) for place in there(other)} & wanted
            kin = other.index == key.index or other.attempt < key.attempt
            self._checkers.expect(kin or not held, f"I5: {name} is placed on {held} of r{other.index}")
        for each in (each for each in rows.jobs.values() if each is not rows):
            held = wanted & {(place.node_id, place.device_index) for place in places(each)}
            self._checkers.expect(not held, f"I5: {name} of {rows.name} is placed on {held} of {each.name}")
        if row is not None:
            self._check("replica", row.state, ReplicaState.FORMING)
            rows.ghosts += [] if row.stopped else [row]
            rows.older.append(row)
        rows.lives[key.index], rows.course.attempts[key.index, key.incarnation] = key.incarnation, key.attempt
        rows.replicas[key.index] = ReplicaRow(
            key.index,
            key.incarnation,
            ReplicaState.FORMING,
            self.now_s,
            placements,
            attempt=key.attempt,
        )

    def _raise(self, found: Finding) -> None:
        """Unless one with its key is open. What is the fleet's own affair is decided here with the job's."""
        if self.finding(found.key) is not None:
            return
        if found.job_id is None and found.KIND in KINDS:
            self.on_wake("")
        signal_id = f"{found.key}#{self._numbers.next('finding'):04d}"
        place = {name: value for name, value in found.place.items() if name != "job_id"}
        signal = SignalFact(
            id=signal_id,
            kind=found.KIND,
            seen_s=self.now_s if self._seen_s is None else self._seen_s,
            came_s=self.now_s,
            value=found.value,
            threshold=found.threshold,
            evidence=found.evidence,
            **place,
        )
        put(self._rows.signals, signal_id, signal, found.job_id or "")

    # --- what the checkers are told --------------------------------------------------------------

    def _emptied(self, node_id: str) -> None:
        """A node of which a drain says that nothing runs there."""
        node, decision = self._rows.nodes[node_id], self._decision
        if decision is None or decision.rule not in ASKED:
            return
        node.emptied = node.state is NodeState.CORDONED
        busy = [row.index for row in self._rows.everywhere() if any(place.node_id == node_id for place in there(row))]
        self._checkers.expect(not (node.emptied and busy), f"I-drain: {node_id} is called empty with {busy} on it")

    def _evicted(self, row: ReplicaRow) -> None:
        decision = self._decision
        assert decision is not None, "an eviction belongs to a decision"
        self._rows.evictions += 1
        self._bar_slow(row)
        if row.relieved and decision.choice == "retire":
            sick = self._place_taken(row)
        elif row.ordered_out and decision.choice == "end":
            sick = self._nobody_waits(row)
        else:
            sick = self._sick(row.attempt, row.index, row.incarnation, stated_of(decision, row.index))
        self._checkers.evicted(f"r{row.index}.{row.incarnation}", sick, decision)


def _write(row: Any, columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        setattr(row, name, value)
