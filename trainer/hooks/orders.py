"""The mailbox of a program that brings its own loop: views are answered for it.

A view names the replicas that train. The built-in trainer leaves its exchange and waits
for the install; a program that is its job's only replica has no other to exchange with, so
its link answers at once and the loop never notices. Its ranks are rarely at the same step
when the view comes; they all answer with the step they started from, which is the one they
are sure to have in common.
"""

import time
from collections.abc import Callable

from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, MemberRole, View
from controlplane.protocol.rank import (
    FromRank,
    InstallView,
    SetView,
    ViewInstalled,
)
from trainer.control.mailbox import Mailbox, Order


class AnsweringMailbox(Mailbox):
    """`send` queues a message to the agent; `on_installed` is told each new epoch. Both are
    called in the link's thread."""

    def __init__(
        self, ref: RankRef, *, started_at: int, send: Callable[[FromRank], None], on_installed: Callable[[int], None]
    ) -> None:
        super().__init__(ref.job_id, ref.attempt)
        self._ref, self._started_at = ref, started_at
        self._send, self._on_installed = send, on_installed
        self._installed = 0
        self._seen_s = time.monotonic()

    def put(self, message: Order) -> None:
        """Keep the order; answer a view and an install."""
        super().put(message)
        match message:
            case SetView(view=view) if view == self.view() and self._is_member(view):
                self._seen_s = time.monotonic()
                self._send(self._flush(view))
            case InstallView(install=install) if install == self.install_for(self.epoch()):
                self._answer_install(install.epoch, install.step)

    def _answer_install(self, epoch: int, step: int) -> None:
        if epoch <= self._installed:
            return
        self._installed = epoch
        self._on_installed(epoch)
        waited_s = time.monotonic() - self._seen_s
        self._send(ViewInstalled(epoch=epoch, step=step, rolled_forward=False, waited_s=waited_s))

    def _is_member(self, view: View) -> bool:
        mine = (self._ref.replica, self._ref.incarnation)
        return any((member.replica, member.incarnation) == mine for member in view.members)

    def _flush(self, view: View) -> Flush:
        ref = self._ref
        return Flush(
            job_id=ref.job_id,
            attempt=ref.attempt,
            epoch=view.epoch,
            replica=ref.replica,
            incarnation=ref.incarnation,
            rank=ref.rank,
            committed_step=self._started_at,
            prepared=False,
            role=MemberRole.CONTRIBUTOR,
        )
