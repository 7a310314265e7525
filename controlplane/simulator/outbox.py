"""The simulated outbox: commands are sent until they are journaled, answered once, or expire (`changes.outbox`)."""

from collections.abc import Callable

import msgspec

from controlplane.changes.answers import Answered, answered, calls
from controlplane.changes.due import readback
from controlplane.changes.outbox import LIVE, RESEND_S, heard, is_overdue, is_sent_now
from controlplane.policy.transitions import check
from controlplane.protocol.commands import StartRanks, VerifyCheckpoint, WarmHost
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.states import CommandState
from controlplane.simulator.memory import answered_of
from controlplane.simulator.rows import CommandRow, Order, Rows
from controlplane.simulator.store import Store

EXPIRED = "not answered in time"


class Outbox:
    """Of one server. `send` hands an order to a node's link."""

    def __init__(self, rows: Rows, store: Store, send: Callable[[str, Order], None]) -> None:
        self._rows, self._store, self._send = rows, store, send

    def answer(self, answer: CommandAnswer, at_s: float) -> None:
        """An agent's, which may come late or again, or to what is not known any more."""
        row = self._rows.commands.get(answer.command_id)
        found = heard(row.state, answer.state, answer.data, ttl_s=row.envelope.ttl_s) if row is not None else None
        if row is None or found is None:
            return
        row.detail, row.data = answer.detail, answer.data
        if found.due_in_s is not None:
            row.due_s = self._store.now_s + found.due_in_s
        if not found.again:
            self._move(row, found.to, at_s)
        elif isinstance(row.envelope.body, VerifyCheckpoint):
            self._store.commit(readback.answered(self._store, self._answered(row)))
        if calls(self._answered(row).kind, answer.state):
            self._store.on_wake(self._store.job_id)

    def sweep(self) -> bool:
        """Expire and send what is due; True if something has expired."""
        now_s, due, expired = self._store.now_s, dict[str, list[CommandRow]](), False
        rows = [self._rows.commands[command_id] for command_id in self._rows.outbox]
        self._rows.outbox = [row.envelope.command_id for row in rows if row.state in LIVE]
        for row in rows:
            if is_overdue(row.state, row.due_s, now_s):
                row.detail, row.data, expired = EXPIRED, "", True
                self._move(row, CommandState.EXPIRED, now_s)
            elif is_sent_now(row.state, row.send_due_s, row.due_s, now_s):
                due.setdefault(row.envelope.node_id, []).append(row)
        for node, mine in due.items():
            for row in mine:
                row.state, row.send_due_s = CommandState.DELIVERED, now_s + RESEND_S
            aged = (msgspec.structs.replace(row.envelope, age_s=now_s - row.made_s) for row in mine)
            self._send(node, Order(tuple(aged)))
        return expired

    def requeue(self, node: str) -> None:
        """A new session: what was sent on the old one and not journaled is due at once."""
        for command_id in self._rows.outbox:
            row = self._rows.commands[command_id]
            if row.envelope.node_id == node and row.state == CommandState.DELIVERED:
                row.send_due_s = self._store.now_s

    def _move(self, row: CommandRow, to: CommandState, at_s: float) -> None:
        check("command", row.state, to)
        row.state = to
        if to == CommandState.SUCCEEDED:
            self._succeeded(row, at_s)
        self._store.commit(answered(self._store, self._answered(row)), seen_s=at_s)
        if isinstance(row.envelope.body, VerifyCheckpoint):
            self._store.commit(readback.answered(self._store, self._answered(row)))

    def _succeeded(self, row: CommandRow, at_s: float) -> None:
        """Where a rank host is up."""
        match row.envelope.body:
            case StartRanks():
                self._rows.started.add(row.envelope.node_id)
            case WarmHost():
                self._rows.warmed[row.envelope.node_id] = at_s

    def _answered(self, row: CommandRow) -> Answered:
        return answered_of(row, self._store.job_id)
