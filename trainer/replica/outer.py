"""The outer group: one raw process group per coordinate, over all replicas of an epoch.

Nothing here is registered with torch.distributed, nothing is waited for in C++: an
operation is issued, then polled, while `interrupted` is asked whether the view has moved
on. Aborting gloo wakes nobody, and dropping a stuck group blocks in its destructor until
its timeout, so what is abandoned goes to the graveyard together with the tensor the
operation may still write to, and is let go of once its timeout has passed.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer import device
from trainer.errors import ExchangeAbandoned, GraveyardFull
from trainer.replica.sockets import connections, shut_down

POLL_S = 0.001
MAX_GRAVES = 32
GRAVE_MARGIN_S = 5.0
BUILD_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class _Grave:
    """Kept alive until `release_s` (monotonic)."""

    release_s: float
    contents: tuple[object, ...]


class OuterFailed(Exception):
    """The operation failed here: a peer's socket closed, or the timeout passed."""


class OuterComm:
    """build, exchange, barrier; each gives up with ExchangeAbandoned when interrupted."""

    def __init__(self, store: dist.TCPStore, *, timeout_s: float, interrupted: Callable[[], bool]) -> None:
        self._spare_store = store.clone()  # type: ignore[attr-defined]
        self._timeout_s = timeout_s
        self._interrupted = interrupted
        self._group: Any = None
        self._members = 1
        self._graves: list[_Grave] = []
        self._sockets: dict[int, str] = {}

    def build(self, prefix: str, *, index: int, members: int) -> None:
        """Join the group of `members` under `prefix` as number `index`.

        The constructor blocks until all members are there, so it runs in a thread with a
        store client of its own; on ExchangeAbandoned or OuterFailed both are buried.
        """
        self.leave()
        self._members = members
        if members == 1:
            return
        store = self._take_store(prefix)
        built: list[Any] = []
        failed: list[Exception] = []

        def construct() -> None:
            try:
                built.append(_make_group(dist.PrefixStore(prefix, store), index, members, self._timeout_s))
            except RuntimeError as error:
                failed.append(error)

        before = connections()
        builder = threading.Thread(target=construct, name="outer-build", daemon=True)
        builder.start()
        while builder.is_alive():
            if self._interrupted():
                self._bury(builder, store, built)
                raise ExchangeAbandoned(f"a newer view arrived while {prefix} was built")
            builder.join(BUILD_POLL_S)
        if failed:
            raise OuterFailed(f"{prefix}: {failed[0]}") from failed[0]
        after = connections()
        self._sockets = {fd: name for fd, name in after.items() if before.get(fd) != name}
        self._group = built[0]

    def _take_store(self, prefix: str) -> dist.TCPStore:
        """A connected client for one builder; a stuck one holds its client for good."""
        try:
            store, self._spare_store = self._spare_store, self._spare_store.clone()
        except RuntimeError as error:
            raise OuterFailed(f"{prefix}: rendezvous store: {error}") from error
        return store

    def cut(self) -> int:
        """Break this rank's connections of the present group, as a failing network would;
        returns how many. Callable from any thread. Operations under way and later ones fail
        here and at the peers, though nobody is dead; a new view builds new connections."""
        group, sockets = self._group, self._sockets
        if group is None:
            return 0
        if device.has_cuda():
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
            if isinstance(error, GraveyardFull):
                raise
            self._bury(self._group, tensor)
            self._group = None
            raise OuterFailed(str(error)) from error
        return tensor

    def barrier(self, on: torch.device) -> None:
        """A one-element exchange."""
        self.sum(torch.zeros(1, device=on))

    def _bury(self, *contents: object) -> None:
        now_s = time.monotonic()
        self._graves = [grave for grave in self._graves if grave.release_s > now_s]
        if len(self._graves) >= MAX_GRAVES:
            raise GraveyardFull(f"{MAX_GRAVES} abandoned exchanges within {self._timeout_s} s")
        self._graves.append(_Grave(now_s + self._timeout_s + GRAVE_MARGIN_S, contents))


def _make_group(store: dist.Store, index: int, members: int, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    if not device.has_cuda():
        return dist.ProcessGroupGloo(store, index, members, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, index, members, options)
