"""What is kept beyond its retention, as rows in memory: the edge of `changes.due.keeping`."""

from collections.abc import Iterable

from controlplane.changes.due import keeping as core
from controlplane.changes.due.kinds import KeepFor, KeepNext, Keeps, LetGo, Rebase
from controlplane.changes.kinds import Enqueue
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.simulator.rows import NeedRow, Rows
from controlplane.simulator.store import Store


class Keeping:
    """Of one server."""

    def __init__(self, rows: Rows, store: Store) -> None:
        self._rows, self._store = rows, store
        self._known = ""

    def sweep(self, judged: Iterable[str] = ()) -> None:
        """What is due: an incident that has opened, those that are `judged`, and what ranks shall hear."""
        rows, now_s, incident = self._rows, self._store.now_s, self._store.open_incident()
        if incident and incident != self._known:
            self._commit(core.needed(self._store, incident))
        self._known = incident or self._known
        for each in judged:
            self._commit(core.let_go(self._store, each))
        over = rows.state in TERMINAL_JOB
        if over or any(need.due_s is not None and need.due_s <= now_s for need in rows.needs.values()):
            self._commit(core.tended(self._store))

    def end(self) -> None:
        """A decision ends the job."""
        self._commit(core.ended(self._store))

    def _commit(self, changes: Iterable[Keeps]) -> None:
        for change in changes:
            self._carry_out(change)

    def _carry_out(self, change: Keeps) -> None:
        rows, now_s = self._rows, self._store.now_s
        match change:
            case KeepFor(incident=incident, checkpoint=path):
                attempt = rows.attempt.number if rows.attempt is not None else 0
                rows.needs[incident] = NeedRow(path, attempt, now_s)
            case LetGo(incidents=incidents, why=why):
                for each in incidents:
                    rows.needs[each].let_go, rows.needs[each].why, rows.needs[each].due_s = True, why, now_s
            case Rebase(incidents=incidents, checkpoint=path):
                for each in incidents:
                    rows.needs[each].path = path
            case KeepNext(held_s=held_s, rest_s=rest_s):
                for need in (need for need in rows.needs.values() if need.due_s is not None):
                    in_s = rest_s if need.let_go else held_s
                    need.due_s = None if in_s is None else now_s + in_s
            case Enqueue(commands=commands, attempt=number):
                for node, body in commands:
                    self._store.send(node, body, number or 0)
