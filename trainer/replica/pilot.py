"""The core of this rank between its two threads.

The link's thread brings views and installs, the training thread brings answers. What says, connects
or serves early is done at once by whoever brought the event, under the lock: so nothing is served
from a state that the training thread has gone on to change. What is asked is kept for the training
thread, which carries it out and brings the answer; all else that a core wants comes of answers.
"""

import threading
import time
from collections.abc import Callable

from controlplane.protocol.membership import MAX_AWAITED_S, Install, View
from controlplane.protocol.rank import FromRank
from trainer.control.mailbox import Mailbox
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.effects import Ask, Effect, Seat, Why
from trainer.core.rank import RankCore
from trainer.core.standing import Standing
from trainer.errors import EvictedError, MembershipViolated

REFLUSH_S = 5.0


class Pilot:
    """`connect` and `serve` are set before the link may bring anything."""

    def __init__(self, core: RankCore, mailbox: Mailbox, *, send: Callable[[FromRank], None]) -> None:
        self._core, self._mailbox, self._send = core, mailbox, send
        self._lock = threading.RLock()
        self._asked: Ask | None = None
        self._said_at_s = 0.0
        self._said_connection = 0
        self.connect: Callable[[Seat], None] = lambda seat: None
        self.serve: Callable[[do.Serve], None] = lambda wanted: None

    @property
    def standing(self) -> Standing:
        """Where this rank stands; the training thread may read it."""
        return self._core.standing

    def see_view(self, view: View) -> None:
        """Callable from any thread."""
        self.bring(on.ViewSeen(view))

    def see_install(self, install: Install) -> None:
        """Callable from any thread; never waits for a copy."""
        self.bring(on.InstallSeen(install))

    def bring(self, event: on.Event) -> list[Effect]:
        """What is left for the training thread to do, in this order."""
        left: list[Effect] = []
        with self._lock:
            for effect in self._core.handle(event):
                match effect:
                    case do.Say(flush=flush):
                        self._said_at_s, self._said_connection = time.monotonic(), self._mailbox.reconnects()
                        self._send(flush)
                    case do.Connect(seat=seat):
                        self.connect(seat)
                    case do.Serve(early=True):
                        self.serve(effect)
                    case do.Await() | do.Abandon():
                        pass  # Who waits asks `is_over` all the time.
                    case _ if isinstance(effect, do.ASKS):
                        self._asked = effect
                    case _:
                        left.append(effect)
        return left

    def take(self, *kinds: type[Ask]) -> Ask | None:
        """What is asked, if it is one of these. Raises EvictedError, MembershipViolated."""
        with self._lock:
            asked = self._asked
            if isinstance(asked, do.Leave):
                raise (EvictedError if asked.why is Why.EVICTED else MembershipViolated)(asked.text)
            if not isinstance(asked, kinds):
                return None
            self._asked = None
        return asked

    def is_over(self) -> bool:
        """The installed epoch is: a newer view is at hand, and due. Callable from any thread."""
        self.read_mail()
        return self._core.is_over

    def read_mail(self) -> None:
        """Bring what is in the mailbox, and its age; what came before changes nothing."""
        view, age_s = self._mailbox.view_and_age_s()
        if view is None or view.epoch <= self.standing.epoch:
            return
        self.see_view(view)
        if age_s >= MAX_AWAITED_S and not self._core.is_over:
            self.bring(on.ViewAwaited(view.epoch))
        install = self._mailbox.install_for(view.epoch)
        if install is not None:
            self.see_install(install)

    def repeat(self) -> None:
        """Say again what may be lost: on a new connection, and now and then."""
        lost = self._said_connection != self._mailbox.reconnects()
        if lost or time.monotonic() - self._said_at_s >= REFLUSH_S:
            self.bring(on.Unheard())
