"""The outer group: one raw process group per coordinate, over all replicas of an epoch.

Nothing here is registered with torch.distributed, nothing is waited for in C++: an
operation is issued, then polled, while `interrupted` is asked whether the view has moved
on. Aborting gloo wakes nobody, and dropping a stuck group blocks in its destructor until
its timeout, so what is abandoned goes to the graveyard together with the tensor the
operation may still write to, and is let go of once its timeout has passed.

Connecting the members takes longer than all else of a view change, so a group is prepared
in the background as soon as its view is seen, while the group before it still works.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.core.effects import Seat
from trainer.errors import ExchangeAbandoned, TooManyAbandoned
from trainer.parallel import port_of
from trainer.replica.sockets import connections, shut_down
from trainer.store.client import OwnClient

POLL_S = 0.001
MAX_ABANDONED = 32
ABANDONED_MARGIN_S = 5.0
BUILD_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class _Abandoned:
    """Kept alive until `release_s` (monotonic)."""

    release_s: float
    contents: tuple[object, ...]


class OuterFailed(Exception):
    """The operation failed here: a peer's socket closed, or the timeout passed."""


class _Building:
    """A group under construction. The constructor blocks until all members are there, so it
    runs in a thread, with a store client of its own: a stuck one holds its client for good."""

    def __init__(self, seat: Seat, spare: OwnClient, timeout_s: float, backend: str) -> None:
        self.seat = seat
        self.group: Any = None
        self.sockets: dict[int, str] = {}
        self.failed: Exception | None = None
        self._spare, self._timeout_s, self._backend = spare, timeout_s, backend
        self.thread = threading.Thread(target=self._run, name="outer-build", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            store = self._spare.clone()
            before = connections()
            self.group = _make_group(store, self.seat, self._timeout_s, self._backend)
        except RuntimeError as error:
            self.failed = error
            return
        after = connections(but_to_port=port_of(store))
        self.sockets = {fd: name for fd, name in after.items() if before.get(fd) != name}


class OuterComm:
    """build, exchange, barrier; each gives up with ExchangeAbandoned when interrupted. `backend` is
    nccl or gloo; gloo takes tensors on a GPU through host memory."""

    def __init__(
        self, store: dist.Store, *, timeout_s: float, interrupted: Callable[[], bool], backend: str = "gloo"
    ) -> None:
        self._store = OwnClient(store)
        self._timeout_s, self._backend = timeout_s, backend
        self._interrupted = interrupted
        self._group: Any = None
        self._members = 1
        self._abandoned: list[_Abandoned] = []
        self._sockets: dict[int, str] = {}
        self._prepared: _Building | None = None
        self._prepared_epoch = 0
        self._outdated: list[_Building] = []
        self._prepared_lock = threading.Lock()

    def prepare(self, seat: Seat) -> None:
        """Begin to connect the group of a view that was seen and may be installed. Callable from
        any thread; each epoch once, and none that is older than one before."""
        with self._prepared_lock:
            if seat.epoch <= self._prepared_epoch:
                return
            self._prepared_epoch = seat.epoch
            if self._prepared is not None:
                self._outdated.append(self._prepared)
            self._prepared = _Building(seat, self._store, self._timeout_s, self._backend) if seat.members > 1 else None

    def build(self, seat: Seat) -> None:
        """Enter the group of `seat`. Raises ExchangeAbandoned or OuterFailed; what was begun is
        buried then."""
        self.leave()
        self._members = seat.members
        self.prepare(seat)
        building = self._take(seat)
        if building is None:
            return
        while building.thread.is_alive():
            if self._interrupted():
                self._bury(building)
                raise ExchangeAbandoned(f"a newer view arrived while {seat.prefix} was built")
            building.thread.join(BUILD_POLL_S)
        if building.failed is not None:
            raise OuterFailed(f"{seat.prefix}: {building.failed}") from building.failed
        self._group, self._sockets = building.group, building.sockets

    def _take(self, seat: Seat) -> _Building | None:
        """What was prepared for `seat`; None where it is the only member's."""
        with self._prepared_lock:
            outdated, self._outdated = self._outdated, []
            building = None
            if self._prepared_epoch == seat.epoch:
                building, self._prepared = self._prepared, None
        if outdated:
            self._bury(*outdated)
        if building is None and seat.members > 1:
            raise ExchangeAbandoned(f"a newer view arrived before {seat.prefix} was built")
        return building

    def cut(self) -> int:
        """Break this rank's connections of the present group, as a failing network would;
        returns how many. Callable from any thread. Operations under way and later ones fail
        here and at the peers, though nobody is dead; a new view builds new connections."""
        group, sockets = self._group, self._sockets
        if group is None:
            return 0
        if self._backend == "nccl":
            group.abort()
            return 1
        return sum(shut_down(descriptor, name) for descriptor, name in sockets.items())

    def leave(self) -> None:
        """Give the group up (its peers may still be stuck in it)."""
        if self._group is not None:
            self._bury(self._group)
            self._group = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """All-reduce in place over the members; returns `tensor`.

        Raises ExchangeAbandoned or OuterFailed; then `tensor` must not be used again.
        """
        if self._interrupted():
            raise ExchangeAbandoned("the view moved on before the exchange")
        if self._members == 1:
            return tensor
        if self._group is None:
            raise ExchangeAbandoned("this epoch's group is given up")
        try:
            work = self._group.allreduce([tensor])
            while not work.is_completed():
                if self._interrupted():
                    self._bury(self._group, work, tensor)
                    self._group = None
                    raise ExchangeAbandoned("the view moved on during the exchange")
                time.sleep(POLL_S)
            work.wait()
        except RuntimeError as error:
            if isinstance(error, TooManyAbandoned):
                raise
            self._bury(self._group, tensor)
            self._group = None
            raise OuterFailed(str(error)) from error
        return tensor

    def barrier(self, flags: Sequence[bool], *, on: torch.device) -> tuple[bool, ...]:
        """Passed once every member is here; each flag, if any member has raised it."""
        return tuple(number > 0 for number in self.sum(torch.tensor(flags, dtype=torch.float32, device=on)).tolist())

    def _bury(self, *contents: object) -> None:
        now_s = time.monotonic()
        self._abandoned = [group for group in self._abandoned if group.release_s > now_s]
        if len(self._abandoned) >= MAX_ABANDONED:
            raise TooManyAbandoned(f"{MAX_ABANDONED} abandoned exchanges within {self._timeout_s} s")
        self._abandoned.append(_Abandoned(now_s + self._timeout_s + ABANDONED_MARGIN_S, contents))


def _make_group(store: dist.Store, seat: Seat, timeout_s: float, backend: str) -> Any:
    timeout = timedelta(seconds=timeout_s)
    meeting = dist.PrefixStore(seat.prefix, store)
    if backend == "gloo":
        return dist.ProcessGroupGloo(meeting, seat.index, seat.members, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(meeting, seat.index, seat.members, options)
