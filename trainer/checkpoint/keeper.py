"""Rank 0's part of keeping checkpoints beyond their retention, as the control plane orders it.

An order is carried out by a thread of its own, from the moment it is heard: a save that is under way
must not remove what a certificate needs, and the storage may take its time beside the training.
Called by the link's thread (`heard`), by the loop before the rank leaves (`wait`), and by the
recomputation when it needs them no more (`let_go`). It never ends a training: what fails is printed.
"""

import threading
from collections.abc import Callable

from controlplane.protocol.keeping import CheckpointsPruned, KeepSaves
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import FromRank
from trainer.checkpoint import retention
from trainer.checkpoint.retention import Held

WAIT_S = 10.0
"""How long a rank that leaves waits for an order that is being carried out."""


class Keeper:
    """Thread-safe; orders are carried out one after another, an older one than that before not at all."""

    def __init__(self, ref: RankRef, config: TrainerConfig, send: Callable[[FromRank], None]) -> None:
        self._ref, self._config, self._send = ref, config, send
        self._one_at_a_time = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._newest = ""

    def heard(self, order: KeepSaves) -> None:
        """Begin to carry it out; returns at once."""
        if self._ref.rank != 0:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._carry_out, args=(order,), name="keeper", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Until what was heard is done, WAIT_S at most."""
        for thread in list(self._threads):
            thread.join(WAIT_S)

    def let_go(self) -> None:
        """This replica has computed again: what was held for it goes if it is too old."""
        if self._ref.rank != 0:
            return
        with self._one_at_a_time:
            try:
                if retention.let_go(self._config.checkpoint_dir, (self._ref.replica, self._ref.incarnation)):
                    self._prune()
            except OSError as error:
                print(f"checkpoint retention: {error}", flush=True)

    def _carry_out(self, order: KeepSaves) -> None:
        wanted = Held(order.command_id, order.saves)
        with self._one_at_a_time:
            if order.command_id <= self._newest:
                return
            self._newest = order.command_id
            try:
                if retention.hold(self._config.checkpoint_dir, wanted):
                    self._prune()
            except OSError as error:
                print(f"checkpoints {', '.join(wanted.names)} not kept: {error}", flush=True)

    def _prune(self) -> None:
        """Those let go now, and not with the next save: there may be none. Told, as a save's are."""
        config = self._config
        planned = retention.prune(config.checkpoint_dir, keep=config.checkpoint.keep, epoch=0)
        self._send(CheckpointsPruned(oldest_kept=planned.oldest_kept, kept=planned.held))
