"""What the agent has told this rank, kept until the training loop looks.

The newest view wins, an install is kept for the newest view only, a save order is
consumed once (repeats of its `command_id` are dropped), a stop stays, of each order to recompute
the first copy. The link's thread
puts, the training loop takes; `wait` is the only place where the loop sleeps for orders.
`on_view` and `on_install` are called by the link's thread with each view and each install that
is newer than those before, once it is kept and no lock is held: who they call may hold one of
its own while it reads here. `on_keep` is called with each order to keep checkpoints: nothing of that
waits for the training loop.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from controlplane.protocol.keeping import KeepSaves
from controlplane.protocol.membership import Install, View
from controlplane.protocol.rank import InstallView, RecomputeSteps, SaveNow, SetView, StopTraining
from controlplane.protocol.recompute import MAX_ORDERS, Recompute

MAX_REMEMBERED_COMMANDS = 256
Order = SetView | InstallView | SaveNow | RecomputeSteps | KeepSaves | StopTraining


class Mailbox:
    """Thread-safe. Orders of another job or attempt are dropped."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self._identity = (job_id, attempt)
        self._changed = threading.Condition()
        self._view: View | None = None
        self._view_since_s = time.monotonic()
        self._install: Install | None = None
        self._save: SaveNow | None = None
        self._stop: StopTraining | None = None
        self._recompute: dict[str, Recompute] = {}
        self._seen_commands: OrderedDict[str, None] = OrderedDict()
        self._reconnects = 0
        self.on_view: Callable[[View], None] = _ignore
        self.on_install: Callable[[Install], None] = _ignore
        self.on_keep: Callable[[KeepSaves], None] = _ignore

    def put(self, message: Order) -> None:
        """Keep one order, then tell of it."""
        newer = False
        with self._changed:
            match message:
                case SetView(view=view):
                    newer = self._put_view(view)
                case InstallView(install=install):
                    newer = self._put_install(install)
                case SaveNow():
                    self._put_save(message)
                case RecomputeSteps(order=order):
                    self._recompute.setdefault(order.order_id, order)
                case KeepSaves():
                    pass  # Not the loop's.
                case StopTraining():
                    self._stop = message
            self._changed.notify_all()
        if newer and isinstance(message, SetView):
            self.on_view(message.view)
        elif newer and isinstance(message, InstallView):
            self.on_install(message.install)
        elif isinstance(message, KeepSaves):
            self.on_keep(message)

    def reconnected(self) -> None:
        """The link has a new connection: what was said on the old one may be lost."""
        with self._changed:
            self._reconnects += 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until something new was put, at most `timeout_s`."""
        with self._changed:
            self._changed.wait(timeout_s)

    def view(self) -> View | None:
        """The newest view."""
        return self._view

    def view_and_age_s(self) -> tuple[View | None, float]:
        """The newest view, and for how long it has been here."""
        with self._changed:
            return self._view, time.monotonic() - self._view_since_s

    def epoch(self) -> int:
        """Epoch of the newest view, 0 before the first."""
        view = self._view
        return view.epoch if view else 0

    def install_for(self, epoch: int) -> Install | None:
        """The install of `epoch`, if it has come."""
        install = self._install
        return install if install is not None and install.epoch == epoch else None

    def reconnects(self) -> int:
        """How often the link has connected."""
        return self._reconnects

    def save(self) -> SaveNow | None:
        """The save order at hand, without taking it."""
        return self._save

    def take_save(self) -> SaveNow | None:
        """Consume the save order."""
        with self._changed:
            taken, self._save = self._save, None
        return taken

    def stop(self) -> StopTraining | None:
        """The stop order, once there is one."""
        return self._stop

    def recompute(self) -> tuple[Recompute, ...]:
        """What to compute again once every step is committed, in the order in which it is done."""
        with self._changed:
            return tuple(self._recompute[order_id] for order_id in sorted(self._recompute)[:MAX_ORDERS])

    def _put_view(self, view: View) -> bool:
        newer = self._is_mine(view) and (self._view is None or view.epoch > self._view.epoch)
        if newer:
            self._view, self._view_since_s = view, time.monotonic()
        return newer

    def _put_install(self, install: Install) -> bool:
        newer = self._is_mine(install) and (self._install is None or install.epoch > self._install.epoch)
        if newer:
            self._install = install
        return newer

    def _is_mine(self, order: View | Install) -> bool:
        return (order.job_id, order.attempt) == self._identity

    def _put_save(self, order: SaveNow) -> None:
        if order.command_id in self._seen_commands:
            return
        self._seen_commands[order.command_id] = None
        while len(self._seen_commands) > MAX_REMEMBERED_COMMANDS:
            self._seen_commands.popitem(last=False)
        self._save = order


def _ignore(order: View | Install | KeepSaves) -> None:
    """Before the rank is assembled nobody looks ahead."""
