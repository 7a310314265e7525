"""One attempt to commit the step in progress: two phases and the replica's votes.

1. agree on the replica's flags (ready, leaving, save orders);
2. phase 1: all-reduce a clone of the finished gradients over the outer group; vote: the
   step is *prepared* only if every rank of my replica holds the sum;
3. phase 2: a one-element barrier over the outer group; vote: if it passed anywhere, every
   rank of every replica is prepared, so the step is committed here;
4. commit: the optimizer steps (a joiner keeps the vector instead).

A finished exchange alone never commits: a zombie can complete one that the others have
abandoned. Whatever fails ends in `None`, and the caller goes to the next view.
"""

from collections.abc import Callable, Sequence

import torch

from controlplane.protocol.membership import MemberRole
from controlplane.protocol.rank import CaughtUp, FromRank, OuterError
from trainer.engine import Applied, Engine
from trainer.errors import ExchangeAbandoned
from trainer.parallel import Votes
from trainer.replica import snapshot
from trainer.replica.catch_up import CatchUp
from trainer.replica.donor import Donor
from trainer.replica.outer import OuterComm, OuterFailed
from trainer.replica.standing import Commit, Intent, Standing

MAX_ERROR_CHARS = 500


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
        send: Callable[[FromRank], None],
        wishes: Callable[[], Sequence[bool]],
    ) -> None:
        """`wishes` gives this rank's (leaving, leave_now, leave_save, save_emergency, save_manual)."""
        self._standing, self._engine = standing, engine
        self._outer, self._votes = outer, votes
        self._donor, self._catch_up = donor, catch_up
        self._send, self._wishes = send, wishes

    def attempt(self) -> Commit | None:
        """None: the view must change first. Raises InnerPeerLost."""
        standing = self._standing
        standing.intent = self._agree()
        reduced = self._reduce(self._stage())
        if not self._votes.all(reduced is not None):
            return None
        standing.prepared = reduced
        if not self._votes.any(self._barrier()):
            return None
        return self.commit(rolled_forward=False)

    def commit(self, *, rolled_forward: bool) -> Commit:
        """Make the prepared step the state. A step that is rolled forward changes nobody's
        role: its flags were raised among the members of an older epoch, and the install
        has said who contributes."""
        standing, reduced = self._standing, self._standing.prepared
        assert reduced is not None, "only a prepared step can be committed"
        tail = self._engine.tail(reduced)
        self._donor.wait_copied()
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
        )
        standing.committed += 1
        standing.prepared = None
        standing.todo = None
        if not rolled_forward:
            self._welcome(tail.ready)
        return commit

    def _agree(self) -> Intent:
        joiner_ready = self._standing.is_joiner and self._catch_up.has_snapshot
        ready, *wishes = self._votes.counts([joiner_ready, *self._wishes()])
        return Intent(ready == self._votes.size, *(count > 0 for count in wishes))

    def _stage(self) -> torch.Tensor:
        standing = self._standing
        mine = [member.replica == standing.ref.replica for member in standing.members]
        ready = [flag and standing.intent.ready for flag in mine]
        leaving = [flag and standing.intent.leaving for flag in mine]
        if standing.is_joiner:
            return self._engine.stage_zeros(ready=ready, leaving=leaving)
        return self._engine.stage(standing.done, ready=ready, leaving=leaving)

    def _reduce(self, stage: torch.Tensor) -> torch.Tensor | None:
        try:
            return self._outer.sum(stage)
        except ExchangeAbandoned:
            return None
        except OuterFailed as error:
            self._report(error)
            return None

    def _barrier(self) -> bool:
        try:
            self._outer.barrier(self._engine.device)
        except ExchangeAbandoned:
            return False
        except OuterFailed as error:
            self._report(error)
            return False
        return True

    def _report(self, error: OuterFailed) -> None:
        standing = self._standing
        self._send(OuterError(standing.epoch, standing.committed, str(error)[:MAX_ERROR_CHARS]))

    def _everyone(self, leaving: Sequence[bool]) -> bool:
        return all(
            flag
            for member, flag in zip(self._standing.members, leaving, strict=True)
            if member.replica in self._standing.contributors
        )

    def _welcome(self, ready: Sequence[bool]) -> None:
        """Joiners whose ready flag was committed contribute from the next step."""
        standing = self._standing
        joined = {member.replica for member, flag in zip(standing.members, ready, strict=True) if flag}
        if not joined:
            return
        standing.contributors = tuple(sorted(joined.union(standing.contributors)))
        if standing.is_joiner and standing.ref.replica in joined:
            self._replay()
        if all(member.replica in standing.contributors for member in standing.members):
            self._donor.withdraw()

    def _replay(self) -> None:
        """Restore the snapshot and take every step since, in lock-step with my replica."""
        standing, engine = self._standing, self._engine
        fetch, taken, backlog = self._catch_up.take()
        snapshot.restore(taken, engine.state())
        engine.stand_at(taken.step)
        for reduced in backlog:
            engine.apply(reduced)
        standing.role = MemberRole.CONTRIBUTOR
        self._send(
            CaughtUp(
                epoch=standing.epoch,
                step=standing.committed,
                replayed_steps=len(backlog),
                fetch_s=fetch.took_s,
                fetch_bytes=taken.nbytes,
                donor=fetch.donor,
            )
        )
