"""Checkpoints whose time to be read back has come, and what the server's own machine reads: the edge of
`changes.due.readback`."""

from controlplane.changes.due.kinds import ReadHere
from controlplane.changes.due.readback import LEASE_S, due, found_here
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CheckpointState
from controlplane.simulator.rows import Rows
from controlplane.simulator.storage import Storage
from controlplane.simulator.store import Store


class Readings:
    """Of one server. What its machine reads goes on without the server's process."""

    def __init__(self, rows: Rows, store: Store, storage: Storage) -> None:
        self._rows, self._store, self._storage = rows, store, storage

    def sweep(self) -> None:
        """Everything that is due."""
        now_s = self._store.now_s
        for path, save in list(self._rows.saves.items()):
            if save.due_s is None or save.due_s > now_s:
                continue
            save.due_s = now_s + LEASE_S
            for change in due(self._store, path):
                if isinstance(change, ReadHere):
                    self._store.commit(found_here(self._store, change, self._read(path)))
                else:
                    self._store.commit([change])

    def _read(self, path: str) -> Verdict | None:
        """None: it takes longer."""
        rows, now_s = self._rows, self._store.now_s
        until_s = rows.reads_here.setdefault(path, now_s + self._storage.lasts_s())
        if now_s < until_s:
            return None
        del rows.reads_here[path]
        loads = rows.spec.checkpoint.restore_test and rows.saves[path].state == CheckpointState.VERIFIED
        return self._storage.read(path, loads=loads)
