"""Carries an attempt to commit the step in progress out: two phases and the replica's votes.

What each of them comes to, the core decides (`trainer.core.rank`).
1. meet: agree on the replica's flags (leaving, save orders), and on whether a newer view is
   at hand: then nothing is staged for an exchange that will not be;
2. phase 1: all-reduce a clone of the finished gradients over the outer group; vote;
3. phase 2: a barrier over the outer group; vote: if it passed anywhere, every rank of every
   replica is prepared, so the step is committed here. With it a joiner says whether it is
   level: the others have computed until now, and it may have fetched until now;
4. commit: the optimizer steps (a joiner keeps the vector instead).

Whatever fails ends in `None`, and the caller goes to the next view.
"""

import time
from collections.abc import Callable, Sequence

import torch

from controlplane.protocol.membership import MemberRole
from controlplane.protocol.rank import CaughtUp, FromRank, OuterError
from controlplane.protocol.store_keys import without_tokens
from trainer.checkpoint.fence import Fence
from trainer.core import effects as do
from trainer.core import events as on
from trainer.engine import Applied, Engine
from trainer.errors import ExchangeAbandoned
from trainer.parallel import Votes
from trainer.replica.catch_up import CatchUp
from trainer.replica.commit import Commit, Intent
from trainer.replica.donor import Donor
from trainer.replica.outer import OuterComm, OuterFailed
from trainer.replica.pilot import Pilot

MAX_ERROR_CHARS = 500
REPLAY_RATIO = 0.5
"""Share of a step's time that a joiner may spend on its backlog before it has to be in the exchange."""
MIN_REPLAYED = 2
"""Steps replayed in each step at least, so that a backlog shrinks however short a step is."""


class Exchange:
    """Commits steps of one rank."""

    def __init__(
        self,
        pilot: Pilot,
        engine: Engine,
        *,
        outer: OuterComm,
        votes: Votes,
        donor: Donor,
        catch_up: CatchUp,
        fence: Fence,
        send: Callable[[FromRank], None],
        pending: Callable[[], Sequence[bool]],
    ) -> None:
        """`pending` gives this rank's (leaving, leave_now, leave_save, save_emergency, save_manual)."""
        self._pilot, self._standing, self._engine = pilot, pilot.standing, engine
        self._intent = Intent()
        self._reduced: torch.Tensor | None = None
        self._outer, self._votes = outer, votes
        self._donor, self._catch_up, self._fence = donor, catch_up, fence
        self._send, self._wishes = send, pending
        self._committed_s = time.monotonic()
        self._step_s = 0.0

    def attempt(self) -> Commit | None:
        """None: the view must change first. Raises InnerPeerLost."""
        commit: Commit | None = None
        while (ask := self._pilot.take(do.Meet, do.Sum, do.Barrier)) is not None:
            for effect in self._pilot.bring(self._answer(ask)):
                if isinstance(effect, do.CommitStep):
                    commit = self.commit(effect)
                elif isinstance(effect, do.Welcome):
                    self._welcome(effect)
        return commit

    def _answer(self, ask: do.Ask) -> on.Event:
        match ask:
            case do.Meet(over=over):
                if self._standing.is_joiner:
                    self._replay_some()
                return on.Met(self._meet(over=over or self._pilot.is_over()))
            case do.Sum(counts=counts):
                reduced = self._reduce(self._stage(counts=counts))
                held = self._votes.all(reduced is not None)
                self._reduced = reduced if held else None
                return on.Summed(held)
            case do.Barrier(joins=joins):
                return on.Passed(self._barrier(joins=joins))
            case _:
                raise AssertionError(f"{ask} is no part of an exchange")

    def forget(self) -> None:
        """What was summed and not committed is void in another epoch."""
        self._reduced = None

    def commit(self, wanted: do.CommitStep) -> Commit:
        """Make the prepared step the state."""
        reduced, self._reduced = self._reduced, None
        assert reduced is not None, "only a prepared step can be committed"
        tail = self._engine.tail(reduced)
        self._fence.wait_raised()
        copy_wait_s = self._donor.wait_copied()
        applied: Applied | None = None
        if wanted.keeps:
            self._catch_up.keep(reduced)
        else:
            applied = self._engine.apply(reduced)
        leaving = {replica for replica, flag in zip(wanted.members, tail.leaving, strict=True) if flag}
        if wanted.rolled_forward:
            leaving = set()  # Its flags were raised among the members of an older epoch.
        now_s = time.monotonic()
        self._step_s, self._committed_s = now_s - self._committed_s, now_s
        return Commit(
            step=wanted.step,
            epoch=wanted.epoch,
            micro_batches=wanted.micro_batches,
            trained=tail.trained,
            applied=applied,
            intent=self._intent,
            leaving=self._standing.ref.replica in leaving,
            everyone_leaves=bool(leaving) and leaving >= set(wanted.holders),
            copy_wait_s=copy_wait_s,
        )

    def _meet(self, *, over: bool) -> bool:
        someone, *pending = self._votes.counts([over, *self._wishes()])
        if not someone:
            self._intent = Intent(*(count > 0 for count in pending))
        return someone > 0

    def _stage(self, *, counts: bool) -> torch.Tensor:
        leaving = self._my_flag(self._intent.leaving)
        if counts:
            return self._engine.stage(self._standing.done, leaving=leaving)
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

    def _barrier(self, *, joins: bool) -> tuple[int, ...] | None:
        """The joiners that are level now; None where the barrier has passed on no rank of my replica."""
        level = joins and self._votes.all(self._catch_up.is_level)
        found: tuple[bool, ...] | None = None
        try:
            found = self._outer.barrier(self._my_flag(level), on=self._engine.device)
        except ExchangeAbandoned:
            pass
        except OuterFailed as error:
            self._report(error)
        flags = found or (False,) * len(self._standing.members)
        passed, *ready = (count > 0 for count in self._votes.counts([found is not None, *flags]))
        if not passed:
            return None
        return tuple(member.replica for member, flag in zip(self._standing.members, ready, strict=True) if flag)

    def _report(self, error: OuterFailed) -> None:
        standing = self._standing
        self._send(OuterError(standing.epoch, standing.committed, without_tokens(str(error))[:MAX_ERROR_CHARS]))

    def _welcome(self, wanted: do.Welcome) -> None:
        """Joiners that were level with the step before hold the state from now on."""
        if wanted.role is not None:
            self._catch_up.replay_one()
            self._tell_caught_up(wanted.role)
        self._donor.release(set(wanted.joined))

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

    def _tell_caught_up(self, role: MemberRole) -> None:
        standing = self._standing
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
                harmed_chunks=received.corrupt,
                role=role,
            )
        )
