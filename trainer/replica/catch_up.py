"""The joiner's side: fetch the state in the background, keep a backlog, replay it bit by bit.

From its first view on a joiner takes part in every exchange with zeros and keeps each
committed reduced gradient. Its own state is written by nobody else, so the chunks go
straight into it. Once every rank of the replica has all of them, the backlog goes through
the optimizer while the others compute; when none is left, the replica raises its ready
flag in the barrier of a step, replays that one step as everybody does, and contributes from
the next. The others wait neither for the transfer nor for the replay.
"""

from collections import deque

import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from trainer.checkpoint import rng
from trainer.engine import Engine
from trainer.errors import CatchUpFailed
from trainer.replica.donor import Member
from trainer.replica.fetch import Fetch, Received
from trainer.store.client import OwnClient

MAX_BACKLOG_STEPS = 4096
MAX_BACKLOG_BYTES = 8 << 30


class CatchUp:
    """Fetch and backlog of one rank."""

    def __init__(self, ref: RankRef, store: dist.Store, engine: Engine) -> None:
        self._ref, self._engine = ref, engine
        self._store = OwnClient(store)
        self._fetch: Fetch | None = None
        self._backlog: deque[torch.Tensor] = deque()
        self._started = False
        self._random = rng.drawn(self._engine.device)
        self.replayed_steps = 0

    @property
    def has_state(self) -> bool:
        """The fetch of this rank is over. Raises CatchUpFailed when it never will be."""
        if self._fetch is not None:
            self._fetch.check()
        return self.is_whole

    @property
    def is_level(self) -> bool:
        """The state is here and nothing is left to replay."""
        return self.has_state and not self._backlog

    @property
    def is_whole(self) -> bool:
        """As `has_state`, but for those who only want to know."""
        return self._fetch is not None and self._fetch.whole

    def turn_to(self, donors: tuple[Member, ...]) -> None:
        """Go on with these, which hold what I fetch."""
        assert self._fetch is not None, "there is something to go on with"
        self._fetch.turn_to(donors)

    def restart(self, donors: tuple[Member, ...], *, step: int) -> None:
        """Fetch the state of `step`, forgetting what was kept so far; waits for threads that
        still write to the state."""
        if self._fetch is not None:
            self._fetch.cancel()
        self._backlog.clear()
        self._started, self.replayed_steps = False, 0
        self._random = rng.drawn(self._engine.device)
        state = [*self._engine.state(), self._random]
        self._fetch = Fetch(self._ref, self._store, state, step=step, donors=donors)

    def keep(self, reduced: torch.Tensor) -> None:
        """A step was committed without me. Raises CatchUpFailed when the backlog is full."""
        self._backlog.append(reduced)
        nbytes = reduced.nbytes * len(self._backlog)
        if len(self._backlog) > MAX_BACKLOG_STEPS or nbytes > MAX_BACKLOG_BYTES:
            raise CatchUpFailed(f"backlog of {len(self._backlog)} steps ({nbytes} bytes) and still no snapshot")

    def replay_one(self) -> bool:
        """Take the oldest step of the backlog, with all ranks of my replica. False: none is left."""
        assert self._fetch is not None, "replay begins when the state is here"
        if not self._started:
            self._engine.stand_at(self._fetch.step)
            rng.draw_from(self._random, self._engine.device)
            self._started = True
        if not self._backlog:
            return False
        self._engine.apply(self._backlog.popleft())
        self.replayed_steps += 1
        return True

    def finish(self) -> Received:
        """I am level with the others; what it cost."""
        assert self._fetch is not None, "ready is only raised after a fetch"
        received, self._fetch = self._fetch.received, None
        return received
