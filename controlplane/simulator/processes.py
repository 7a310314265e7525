"""Ranks and devices of the store in memory: what moves them, and what follows for their places."""

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.changes import kinds, outbox
from controlplane.changes.acts import FOR_DEVICES
from controlplane.changes.assembly.snapshot import End
from controlplane.changes.diagnostics import SCHEDULED
from controlplane.changes.due.kinds import AskReader, CloseSession, Deadline, EndReading, MoveSave, ObserveSave
from controlplane.changes.kinds import RankKey
from controlplane.policy import bars
from controlplane.policy.errors import IllegalTransition
from controlplane.policy.plan import AnswerRequest, Decision, StartReplica
from controlplane.policy.requests import RULES as ASKED
from controlplane.policy.signals.ranks import SlowRank
from controlplane.policy.snapshot import Placement
from controlplane.policy.transitions import check
from controlplane.protocol.commands import (
    Body,
    CommandEnvelope,
    EndVerification,
    InjectDeviceFault,
    InjectLinkFault,
    RequestSave,
    VerifyCheckpoint,
    WarmHost,
)
from controlplane.protocol.states import CheckpointState, CommandState, NodeState, RankState, RequestState
from controlplane.simulator.due import DueRows
from controlplane.simulator.load import places
from controlplane.simulator.rows import CommandRow, NodeRow, ReplicaRow
from controlplane.simulator.shared import Numbers

SAVE_COLUMNS = {"verify_due_s": "due_s", "state_reason": "reason"}
"""What `SaveRow` calls them."""


UNFENCED = (VerifyCheckpoint, EndVerification, InjectDeviceFault, InjectLinkFault)
"""What is right to ask at any time."""
BESIDE_TTL_S = 60.0


class Processes(DueRows):
    """The part of the store that is about what runs where, and about commands. `_decision`: what is being carried out,
    one of `_decisions`."""

    _decision: Decision | None = None
    _decisions = 0
    _numbers: Numbers

    def send(self, node: str, body: Body, attempt: int) -> str:
        """A command beside all decisions; its id."""
        decision, self._decision = self._decision, None
        command_id = self._command(node, body, attempt, BESIDE_TTL_S)
        self._decision = decision
        return command_id

    def _command(self, node: str, body: Body, attempt: int | None, ttl_s: float) -> str:
        command_id = f"cmd_{self._numbers.next('command'):05d}"
        envelope = CommandEnvelope(
            command_id=command_id,
            node_id=node,
            epoch=self._rows.epoch if attempt is not None and not isinstance(body, UNFENCED) else 0,
            age_s=0.0,
            ttl_s=ttl_s,
            body=body,
            job_id=self.job_id if attempt is not None else "",
            attempt=attempt or 0,
            decision_id=f"dec_{self._decisions:05d}" if self._decision is not None else "",
        )
        for act in self._decision.actions if self._decision is not None else ():
            if isinstance(act, AnswerRequest) and act.to is RequestState.TAKEN:
                self._rows.carriers.setdefault(act.request, []).append(command_id)
        self._void(envelope)
        row = self._rows.commands[command_id] = CommandRow(envelope, self.now_s, self.now_s + ttl_s)
        if self._decision is not None:
            row.rule = self._decision.rule
            row.incident = "" if row.rule in (SCHEDULED, *ASKED) else self.open_incident()
        self._rows.outbox.append(command_id)
        if isinstance(body, WarmHost):
            self._rows.warm_asked[node] = self.now_s
        if isinstance(body, RequestSave) and body.save_kind == "emergency":
            self._rows.emergency_s = self.now_s
        return command_id

    def _void(self, envelope: CommandEnvelope) -> None:
        """What it makes void of that node."""
        new = outbox.sent(envelope.body, epoch=envelope.epoch)
        for row in (self._rows.commands[command_id] for command_id in self._rows.outbox if new is not None):
            old = outbox.sent(row.envelope.body, epoch=row.envelope.epoch)
            there = row.envelope.node_id == envelope.node_id and row.state in outbox.UNSENT
            if there and new is not None and old is not None and outbox.is_void(old, new):
                self._check("command", row.state, CommandState.SUPERSEDED)
                row.state = CommandState.SUPERSEDED

    def taken(self, starts: Iterable[StartReplica]) -> str:
        """A device of theirs that another job has, in words; "" where none has."""
        wanted = {(place.node_id, place.device_index) for start in starts for place in start.placements}
        for rows in (each for each in self._rows.jobs.values() if each is not self._rows):
            if held := wanted & {(place.node_id, place.device_index) for place in places(rows)}:
                return f"{sorted(held)} is held by {rows.name}"
        return ""

    def _placed(self, key: RankKey) -> tuple[Placement, ...]:
        return self.row(key.replica, key.incarnation).placements

    def _of_deadline(self, change: Deadline) -> None:
        saves = self._rows.saves
        match change:
            case CloseSession(node_id=node):
                self._rows.nodes[node].close(self.now_s)
            case ObserveSave(save=path, columns=columns):
                for name, value in columns.items():
                    setattr(saves[path], SAVE_COLUMNS.get(name, name), value)
            case MoveSave(save=path, to=to, reason=reason):
                self._check("checkpoint", saves[path].state, to)
                self._checkers.read_back(path, to)
                saves[path].state, saves[path].reason = CheckpointState(to), reason
            case AskReader(save=path, node_id=node, body=body, attempt=attempt, words=words, within_s=within_s):
                save = saves[path]
                save.reader, save.heard_s = self.send(node, body, attempt), self.now_s
                save.due_s, save.reason = self.now_s + within_s, words
            case EndReading(command=command, node_id=node):
                self.send(node, EndVerification(order=command), 0)

    def _check(self, machine: str, before: str, after: str) -> None:
        try:
            check(machine, before, after)
        except IllegalTransition as error:
            self._checkers.expect(False, f"I-state: {error}")

    def _rank_moves(self, key: RankKey, to: RankState, columns: Mapping[str, Any]) -> None:
        row = self.row(key.replica, key.incarnation)
        processes = self.ranks(key.attempt, of=(key.replica, key.incarnation))
        self._check("rank", next(each.state for each in processes if each.rank == key.rank), to)
        row.states[key.rank] = to
        if to == RankState.EXITED:
            row.prove_gone(key.rank)
            self._accuse(row, key.rank, columns)
        else:
            row.started.add(key.rank)
            self._begun(key, columns)

    def _accuse(self, row: ReplicaRow, rank: int, columns: Mapping[str, Any]) -> None:
        """An end that bars the place where it was."""
        told = columns.get("exit_code")
        code = told if told is not None else -(columns.get("exit_signal") or 0)
        if bars.accuses(code):
            home = next(place.node_id for place in row.placements if place.rank == rank)
            beside = tuple(place for place in row.placements if place.node_id == home)
            self._rows.ends.append(End(rank=rank, code=code, at_s=self.now_s, beside=beside))

    def _begun(self, key: RankKey, columns: Mapping[str, Any]) -> None:
        """Its process exists, or has said hello; how long the start of a replica takes is learned of it."""
        row = self.row(key.replica, key.incarnation)
        if "started_s" in columns:
            row.started.add(key.rank)
        if "joined_s" in columns and key.rank not in row.joined:
            row.joined.add(key.rank)
            row.started.add(key.rank)
            if len(row.joined) == len(row.placements):
                self._rows.starts.append(self.now_s - row.state_since_s)

    def _caught_up(self, row: ReplicaRow, report: Mapping[str, Any] | None) -> None:
        """It has, or it was left out. How long a transfer takes is learned of it."""
        row.caught_up = report["role"] if report is not None else ""
        if report is None:
            self._checkers.left_out += 1
            if not (row.ordered_out or row.relieved):
                self._checkers.leaves_out(row.attempt, row.index, row.incarnation, self._decision)
        elif report["fetch_s"] > 0.0:
            self._rows.catch_ups.append(report["fetch_s"])

    def _of_device(self, change: kinds.Lose | kinds.Bar | kinds.Judge) -> None:
        node, index = self._rows.nodes[change.subject.node_id], change.subject.index
        match change:
            case kinds.Lose():
                node.lost_devices.add(index)
            case kinds.Bar(reset=reset):
                node.barred.add(index)
                if reset:
                    node.resets.setdefault(index, self.now_s)
            case kinds.Judge(works=works):
                self._judge_device(node, index, works)

    def _judge_device(self, node: NodeRow, index: int, works: bool) -> None:
        """A device works again, and its node may follow."""
        if not works:
            node.barred.add(index)
            return
        node.resets.pop(index, None)
        node.barred.discard(index)
        left = node.state in (NodeState.CORDONED, NodeState.DEGRADED) and FOR_DEVICES in node.reason
        if left and not node.barred:
            self._check("node", node.state, NodeState.READY)
            node.state, node.reason = NodeState.READY, ""

    def _bar_slow(self, row: ReplicaRow) -> None:
        """As `recovery.load` finds it in the rows."""
        for found in self._rows.signals.values():
            mine = found.kind == SlowRank.KIND and (found.replica, found.incarnation) == (row.index, row.incarnation)
            device = found.device_index
            if mine and device is not None and bars.is_slow(found.evidence["score"], found.evidence["cause"]):
                self._rows.bars.append(bars.of_slow(str(found.node_id), device, since_s=self.now_s))

    def _place_taken(self, row: ReplicaRow) -> str | None:
        """Why one that is relieved may end: it is out of the view that was installed last and of the newest, and
        as many members of the installed one as were placed hold the state, from its beginning or caught up since. The
        same pass may have announced it once more, as its exchange has failed."""
        rows, attempt = self._rows, self._rows.attempt
        if rows.commanded is None or rows.view is None or attempt is None or self._is_member(row):
            return None
        caught_up = {each.index for each in rows.replicas.values() if each.contributing or each.caught_up}
        holders = {*rows.commanded.contributors, *rows.commanded.standbys} | caught_up
        members = {member.replica: member.incarnation for member in rows.announced[rows.commanded.epoch].members}
        gone = members.get(row.index) != row.incarnation
        enough = len(holders & members.keys()) >= attempt.replicas - attempt.yielded
        return "its place is taken" if gone and enough else None

    def _nobody_waits(self, row: ReplicaRow) -> str | None:
        """Why one that was ordered out may end: no member of the view counts on it."""
        return None if self._is_member(row) else "it was ordered out, and nobody waits for it"

    def _is_member(self, row: ReplicaRow) -> bool:
        members = self._rows.view.members if self._rows.view is not None else ()
        return any((m.replica, m.incarnation) == (row.index, row.incarnation) for m in members)
