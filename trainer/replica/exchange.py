"""One attempt to commit the step in progress: two phases and the replica's votes.

1. agree on the replica's flags (leaving, save orders), and on whether a newer view is
   at hand: then nothing is staged for an exchange that will not be;
2. phase 1: all-reduce a clone of the finished gradients over the outer group; vote: the
   step is *prepared* only if every rank of my replica holds the sum;
3. phase 2: a barrier over the outer group; vote: if it passed anywhere, every rank of every
   replica is prepared, so the step is committed here. With it a joiner says whether it is
   level: the others have computed until now, and it may have fetched until now;
4. commit: the optimizer steps (a joiner keeps the vector instead).

A finished exchange alone never commits: a zombie can complete one that the others have
abandoned. Whatever fails ends in `None`, and the caller goes to the next view.
"""

import time
from collections.abc import Callable, Sequence

import torch

from controlplane.protocol.rank import CaughtUp, FromRank, OuterError
from controlplane.protocol.store_keys import without_tokens
from trainer.checkpoint.fence import Fence
from trainer.core.shares import admitted
from trainer.engine import Applied, Engine
from trainer.errors import ExchangeAbandoned
from trainer.parallel import Votes
from trainer.replica.catch_up import CatchUp
from trainer.replica.donor import Donor
from trainer.replica.outer import OuterComm, OuterFailed
from trainer.replica.standing import Commit, Intent, Standing

MAX_ERROR_CHARS = 500
REPLAY_RATIO = 0.5
"""Share of a step's time that a joiner may spend on its backlog before it has to be in the exchange."""
MIN_REPLAYED = 2
"""Steps replayed in each step at least, so that a backlog shrinks however short a step is."""


class Exchange:
    """Commits steps of one rank."""

    def __init__(
        self,
        standing: Standing,
        engine: Engine,
        *,
        outer: OuterComm,
        votes: Votes,
        donor: Donor,
        catch_up: CatchUp,
        fence: Fence,
        send: Callable[[FromRank], None],
        wishes: Callable[[], Sequence[bool]],
    ) -> None:
        """`wishes` gives this rank's (leaving, leave_now, leave_save, save_emergency, save_manual)."""
        self._standing, self._engine = standing, engine
        self._outer, self._votes = outer, votes
        self._donor, self._catch_up, self._fence = donor, catch_up, fence
        self._send, self._wishes = send, wishes
        self._committed_s = time.monotonic()
        self._step_s = 0.0

    def attempt(self) -> Commit | None:
        """None: the view must change first. Raises InnerPeerLost."""
        standing = self._standing
        if standing.is_joiner:
            self._replay_some()
        intent = self._agree()
        if intent is None:
            return None
        standing.intent = intent
        reduced = self._reduce(self._stage())
        if not self._votes.all(reduced is not None):
            return None
        standing.prepared = reduced
        ready = self._barrier()
        if ready is None:
            return None
        commit = self.commit(rolled_forward=False)
        self._welcome(ready)
        return commit

    def commit(self, *, rolled_forward: bool) -> Commit:
        """Make the prepared step the state. A step that is rolled forward changes nobody's
        role: its flags were raised among the members of an older epoch, and the install
        has said who contributes."""
        standing, reduced = self._standing, self._standing.prepared
        assert reduced is not None, "only a prepared step can be committed"
        tail = self._engine.tail(reduced)
        self._fence.wait_raised()
        copy_wait_s = self._donor.wait_copied()
        applied: Applied | None = None
        if standing.is_joiner:
            self._catch_up.keep(reduced)
        else:
            applied = self._engine.apply(reduced)
        commit = Commit(
            step=standing.committed,
            epoch=standing.epoch,
            micro_batches=standing.done,
            trained=tail.trained,
            applied=applied,
            leaving=not rolled_forward and tail.leaving[standing.my_index],
            everyone_leaves=not rolled_forward and self._everyone(tail.leaving),
            copy_wait_s=copy_wait_s,
        )
        standing.committed += 1
        now_s = time.monotonic()
        self._step_s, self._committed_s = now_s - self._committed_s, now_s
        standing.prepared = None
        standing.todo = None
        return commit

    def _agree(self) -> Intent | None:
        over, *wishes = self._votes.counts([self._outer.is_over, *self._wishes()])
        if over:
            return None
        return Intent(*(count > 0 for count in wishes))

    def _stage(self) -> torch.Tensor:
        standing = self._standing
        leaving = self._my_flag(standing.intent.leaving)
        if standing.is_contributor:
            return self._engine.stage(standing.done, leaving=leaving)
        return self._engine.stage_zeros(leaving=leaving)

    def _my_flag(self, raised: bool) -> list[bool]:
        """One for each member; mine as it is."""
        mine = self._standing.ref.replica
        return [raised and member.replica == mine for member in self._standing.members]

    def _reduce(self, stage: torch.Tensor) -> torch.Tensor | None:
        try:
            return self._outer.sum(stage)
        except ExchangeAbandoned:
            return None
        except OuterFailed as error:
            self._report(error)
            return None

    def _barrier(self) -> tuple[bool, ...] | None:
        """For each member whether it is a joiner that is level now; None where the barrier has
        passed on no rank of my replica."""
        level = self._standing.is_joiner and self._votes.all(self._catch_up.is_level)
        found: tuple[bool, ...] | None = None
        try:
            found = self._outer.barrier(self._my_flag(level), on=self._engine.device)
        except ExchangeAbandoned:
            pass
        except OuterFailed as error:
            self._report(error)
        flags = found or (False,) * len(self._standing.members)
        passed, *ready = (count > 0 for count in self._votes.counts([found is not None, *flags]))
        return tuple(ready) if passed else None

    def _report(self, error: OuterFailed) -> None:
        standing = self._standing
        self._send(OuterError(standing.epoch, standing.committed, without_tokens(str(error))[:MAX_ERROR_CHARS]))

    def _everyone(self, leaving: Sequence[bool]) -> bool:
        return all(
            flag
            for member, flag in zip(self._standing.members, leaving, strict=True)
            if member.replica in self._standing.holders
        )

    def _welcome(self, ready: Sequence[bool]) -> None:
        """Joiners that were level with the step before hold the state from now on: they contribute
        from the next step, or stand by where enough others do."""
        standing = self._standing
        joined = {member.replica for member, flag in zip(standing.members, ready, strict=True) if flag}
        if not joined:
            return
        standing.contributors, standing.standbys = admitted(
            joined, standing.contributors, standing.standbys, self._engine.config.max_contributors
        )
        if standing.is_joiner and standing.ref.replica in joined:
            self._catch_up.replay_one()
            standing.take_role()
            self._tell_caught_up()
        self._donor.release(joined)

    def _replay_some(self) -> None:
        """Work off the backlog in lock-step with my replica, while the contributors compute."""
        if not self._votes.all(self._catch_up.has_state):
            return
        until_s = time.monotonic() + REPLAY_RATIO * self._step_s
        replayed = 0
        while self._votes.all(replayed < MIN_REPLAYED or time.monotonic() < until_s):
            if not self._catch_up.replay_one():
                return
            replayed += 1

    def _tell_caught_up(self) -> None:
        standing = self._standing
        assert standing.role is not None, "just taken"
        received = self._catch_up.finish()
        self._send(
            CaughtUp(
                epoch=standing.epoch,
                step=standing.committed,
                replayed_steps=self._catch_up.replayed_steps,
                fetch_s=received.took_s,
                fetch_bytes=received.nbytes,
                donor=min(received.donors, default=-1),
                donor_count=len(received.donors),
                harmed_chunks=received.harmed,
                role=standing.role,
            )
        )
