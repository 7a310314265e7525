"""Carries a view change of one rank out; what it comes to, its core decides (`trainer.core.rank`).

While it waits for its replica to agree on an install, newer views are still answered. Only one rank's
operations are here: what is asked of the replica ends in a vote of all of its ranks.
An operation that failed with nobody dead ends here too: the control plane re-issues the
same members under a new epoch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.protocol.rank import FromRank, OuterError, ViewInstalled
from controlplane.protocol.store_keys import without_tokens
from trainer.checkpoint import rng
from trainer.checkpoint.fence import Fence
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.core import effects as do
from trainer.core import events as on
from trainer.engine import Engine
from trainer.errors import ExchangeAbandoned, LeaveUnsaved
from trainer.parallel import Votes
from trainer.replica.catch_up import CatchUp
from trainer.replica.commit import Commit
from trainer.replica.donor import Donor
from trainer.replica.exchange import MAX_ERROR_CHARS, Exchange
from trainer.replica.outer import OuterComm, OuterFailed
from trainer.replica.pilot import Pilot

WAIT_S = 0.25
IDLE_WAIT_S = 0.002
SIGTERM_PATIENCE_S = 20.0


@dataclass(slots=True)
class _Clock:
    """Seconds of one view change: until installs were at hand, and for outer groups."""

    began_s: float
    install_s: float = 0.0
    build_s: float = 0.0


class Membership:
    """Runs view changes for one rank."""

    def __init__(
        self,
        pilot: Pilot,
        engine: Engine,
        *,
        mailbox: Mailbox,
        preemption: Preemption,
        exchange: Exchange,
        outer: OuterComm,
        votes: Votes,
        donor: Donor,
        catch_up: CatchUp,
        fence: Fence,
        send: Callable[[FromRank], None],
    ) -> None:
        self._pilot, self._engine = pilot, engine
        self._mailbox, self._preemption = mailbox, preemption
        self._exchange, self._outer, self._votes = exchange, outer, votes
        self._donor, self._catch_up, self._fence = donor, catch_up, fence
        self._send = send
        self._pause_s = IDLE_WAIT_S

    def serve(self, wanted: do.Serve) -> None:
        """The state that this rank has, to these joiners. Early, nothing waits for a copy: the
        training thread does, when it enters."""
        if wanted.early and self._donor.is_copying:
            return
        state = [*self._engine.state(), rng.drawn(self._engine.device)]
        self._donor.serve(set(wanted.joiners), state, step=wanted.step)

    def change_view(self) -> Commit | None:
        """Returns inside the newest epoch: the step that was rolled forward on the way, if any.

        Raises EvictedError, LeaveUnsaved, MembershipViolated, InnerPeerLost.
        """
        commit: Commit | None = None
        clock = self._await_view()
        while True:
            since_s = time.monotonic()
            ask = self._next_ask()
            answer = self._answer(ask)
            if isinstance(ask, do.Build):
                clock.build_s += time.monotonic() - since_s
            else:
                clock.install_s += time.monotonic() - since_s
            for effect in self._pilot.bring(answer):
                if isinstance(effect, do.Entered):
                    self._report(effect, clock, rolled_forward=commit is not None)
                    return commit
                commit = self._carry_out(effect) or commit

    def _await_view(self) -> _Clock:
        """Until there is a view to change to."""
        while not self._pilot.is_over():
            self._mailbox.wait(WAIT_S)
            self._check_preemption()
        return _Clock(time.monotonic())

    def _next_ask(self) -> do.Ask:
        while True:
            self._pilot.read_mail()
            ask = self._pilot.take(do.Agree, do.Confirm, do.Build)
            if ask is not None:
                return ask
            self._pilot.repeat()
            self._mailbox.wait(WAIT_S)
            self._check_preemption()

    def _check_preemption(self) -> None:
        if self._preemption.age_s() > SIGTERM_PATIENCE_S:
            raise LeaveUnsaved(f"SIGTERM {self._preemption.age_s():.0f} s ago and no install since")

    def _answer(self, ask: do.Ask) -> on.Event:
        match ask:
            case do.Agree(epoch=epoch):
                if self._catch_up.is_whole:
                    self._pilot.bring(on.Fetched())
                return on.Agreed(self._agree(epoch))
            case do.Confirm(stands=stands, keeps=keeps):
                all_stand, all_keep = (count == self._votes.size for count in self._votes.counts([stands, keeps]))
                return on.Confirmed(all_stand, all_keep)
            case do.Build(seat=seat):
                self._exchange.forget()
                return on.Built(self._votes.all(self._build(seat)))
            case _:
                raise AssertionError(f"{ask} is no part of a view change")

    def _agree(self, epoch: int) -> bool:
        """Where another rank has named another epoch, one of us lacks a view: it is given time to come, twice as
        long with each vote, at most `WAIT_S`. Raises EvictedError."""
        if self._votes.same(epoch, idle=self._idle):
            self._pause_s = IDLE_WAIT_S
            return True
        self._idle(self._pause_s)
        self._pause_s = min(2 * self._pause_s, WAIT_S)
        return False

    def _idle(self, wait_s: float = IDLE_WAIT_S) -> None:
        """While my replica agrees. Raises EvictedError."""
        self._mailbox.wait(wait_s)
        self._pilot.read_mail()
        self._pilot.repeat()
        self._pilot.take()

    def _carry_out(self, effect: do.Effect) -> Commit | None:
        match effect:
            case do.CommitStep():
                return self._exchange.commit(effect)
            case do.Fetch(donors=donors, step=step):
                self._catch_up.restart(donors, step=step)
            case do.GoOn(donors=donors):
                self._catch_up.turn_to(donors)
            case do.Serve():
                self.serve(effect)
        return None

    def _build(self, seat: do.Seat) -> bool:
        """True when this rank is in the outer group of the newest view. A group that could not
        be built with nobody dead is reported; the re-issued view brings the next try."""
        standing = self._pilot.standing
        if standing.ref.rank == 0:
            self._fence.raise_to(standing.ref.attempt, seat.epoch)
        try:
            self._outer.build(seat)
        except ExchangeAbandoned:
            return False
        except OuterFailed as error:
            self._send(OuterError(seat.epoch, standing.committed, without_tokens(str(error))[:MAX_ERROR_CHARS]))
            return False
        return not self._pilot.is_over()

    def _report(self, entered: do.Entered, clock: _Clock, *, rolled_forward: bool) -> None:
        self._send(
            ViewInstalled(
                epoch=entered.epoch,
                step=entered.step,
                rolled_forward=rolled_forward,
                waited_s=time.monotonic() - clock.began_s,
                recomputed_micro_batches=entered.recomputed,
                install_s=clock.install_s,
                build_s=clock.build_s,
            )
        )
