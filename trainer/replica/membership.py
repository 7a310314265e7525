"""A view change, seen from one rank: flush, wait for the install, enter the epoch.

1. wait for a view newer than the installed one; not named in it: leave, write nothing; one
   that names a step is waited for no longer once a view change has begun (`NewerView`);
2. flush what I hold; a newer view meanwhile: start over. A view that arrives while micro-batches
   are computed is flushed at once, by the link's thread, with these as done: only my end keeps
   them from being so, and the install may be there before they are;
3. when the install is there, agree inside my replica that it is the same for all of us;
   while waiting for that, newer views are still flushed, or two ranks of one replica that
   saw different views would wait for each other for ever;
   an install that arrives while I compute lets my joiners fetch at once (`foresee_install`):
   what they need is the state that I compute with;
4. prepared and the install stands one step ahead: roll forward;
5. one that was left out and returns is a joiner again, and forgets what it had prepared; a
   joiner goes on with what it has fetched, if one of those it fetches from still serves it;
   else it starts to fetch the installed step;
6. a donor serves its joiners: those that are new to it get its state of the installed step;
7. raise the checkpoint fence, enter the outer group, which has been under construction since
   the view arrived (`foresee`); interrupted by a newer view on any
   rank of my replica: start over.

An operation that failed with nobody dead ends here too: the control plane re-issues the
same members under a new epoch.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controlplane.protocol.membership import Install, View
from controlplane.protocol.rank import FromRank, OuterError, ViewInstalled
from controlplane.protocol.store_keys import without_tokens
from trainer.checkpoint import rng
from trainer.checkpoint.fence import Fence
from trainer.control.mailbox import Mailbox
from trainer.control.preemption import Preemption
from trainer.core.shares import held_by, share_of_install
from trainer.engine import Engine
from trainer.errors import EvictedError, ExchangeAbandoned, LeaveUnsaved, MembershipViolated
from trainer.parallel import Votes
from trainer.replica.catch_up import CatchUp
from trainer.replica.donor import Donor
from trainer.replica.donor import Member as DonorMember
from trainer.replica.exchange import MAX_ERROR_CHARS, Exchange
from trainer.replica.newer import NewerView
from trainer.replica.outer import OuterComm, OuterFailed, Seat
from trainer.replica.standing import Commit, Standing

WAIT_S = 0.25
IDLE_WAIT_S = 0.002
REFLUSH_S = 5.0
SIGTERM_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class ViewChange:
    """`commit` is the step that was rolled forward on the way, if any."""

    commit: Commit | None
    waited_s: float


@dataclass(slots=True)
class _Clock:
    """Seconds of one view change: until installs were at hand, and for outer groups."""

    install_s: float = 0.0
    build_s: float = 0.0


class Membership:
    """Runs view changes for one rank; everything it writes is in `Standing`."""

    def __init__(
        self,
        standing: Standing,
        engine: Engine,
        *,
        mailbox: Mailbox,
        newer_view: NewerView,
        preemption: Preemption,
        exchange: Exchange,
        outer: OuterComm,
        votes: Votes,
        donor: Donor,
        catch_up: CatchUp,
        fence: Fence,
        send: Callable[[FromRank], None],
    ) -> None:
        self._standing, self._engine = standing, engine
        self._mailbox, self._newer_view, self._preemption = mailbox, newer_view, preemption
        self._exchange, self._outer, self._votes = exchange, outer, votes
        self._donor, self._catch_up, self._fence = donor, catch_up, fence
        self._send = send
        self._flushed_at_s = 0.0
        self._flushed_connection = 0
        self._flushing = threading.Lock()
        self._computing: tuple[int, ...] | None = None

    def foresee(self, view: View) -> None:
        """A view has arrived: connect its group while the step goes on, and flush it if it is
        due. Callable from any thread."""
        seat = self._seat(view)
        if seat is not None:
            self._promise(view)
            self._outer.prepare(seat)

    def foresee_install(self, install: Install) -> None:
        """An install has arrived: if it is that of the view I have flushed while computing, its
        joiners are served the state of the step before while this one goes on. Callable from
        any thread, and never waits for a copy: the training thread does, when it enters."""
        with self._flushing:
            view, standing = self._mailbox.view(), self._standing
            asked = view is not None and view.epoch == install.epoch == self._newer_view.answered
            stands = self._computing is not None and install.step == standing.committed
            if asked and stands and not self._donor.is_copying:
                assert view is not None, "just seen"
                self._offer(view)

    @contextlib.contextmanager
    def computing(self, todo: tuple[int, ...]) -> Iterator[None]:
        """In the block the training thread computes `todo`, commits nothing, and adds them to
        `Standing.done`; a newer view is flushed from any thread meanwhile, or at the entrance."""
        with self._flushing:
            self._computing = todo
        view = self._mailbox.view()
        if view is not None and self._seat(view) is not None:
            self._promise(view)
        try:
            yield
        finally:
            with self._flushing:
                self._computing = None

    def change_view(self) -> ViewChange:
        """Returns inside the newest epoch, with `Standing` as the install says.

        Raises EvictedError, LeaveUnsaved, MembershipViolated, InnerPeerLost.
        """
        self._newer_view.changing = True
        try:
            return self._change_view()
        finally:
            self._newer_view.changing = False

    def _change_view(self) -> ViewChange:
        commit: Commit | None = None
        clock = _Clock()
        began_s = self._await_view()
        while True:
            asked_s = time.monotonic()
            view, install = self._agree_on_install()
            clock.install_s += time.monotonic() - asked_s
            commit = self._enter(view, install) or commit
            building_s = time.monotonic()
            built = self._votes.all(self._build(view))
            clock.build_s += time.monotonic() - building_s
            if built:
                break
        waited_s = time.monotonic() - began_s
        standing = self._standing
        self._send(
            ViewInstalled(
                epoch=standing.epoch,
                step=standing.committed,
                rolled_forward=commit is not None,
                waited_s=waited_s,
                recomputed_micro_batches=(standing.todo or ()) if standing.done else (),
                install_s=clock.install_s,
                build_s=clock.build_s,
            )
        )
        return ViewChange(commit=commit, waited_s=waited_s)

    def _await_view(self) -> float:
        """Until there is a view to change to; returns when that was (monotonic)."""
        while not self._newer_view():
            self._mailbox.wait(WAIT_S)
            self._check_preemption()
        return time.monotonic()

    def _agree_on_install(self) -> tuple[View, Install]:
        while True:
            view, install = self._await_install()
            if self._votes.same(install.epoch, idle=self._flush_newer):
                return view, install

    def _await_install(self) -> tuple[View, Install]:
        while True:
            view = self._mailbox.view()
            assert view is not None, "called with a view at hand"
            if self._newer_view():
                install = self._mailbox.install_for(view.epoch)
                if install is not None:
                    return view, install
                self._flush(view)
            self._mailbox.wait(WAIT_S)
            self._check_preemption()

    def _flush_newer(self) -> None:
        self._mailbox.wait(IDLE_WAIT_S)
        view = self._mailbox.view()
        if view is not None and self._newer_view():
            self._flush(view)

    def _flush(self, view: View) -> None:
        """Say what I hold: once per view and connection, and again now and then."""
        with self._flushing:
            connection, now_s = self._mailbox.reconnects(), time.monotonic()
            said = view.epoch == self._newer_view.answered and connection == self._flushed_connection
            if said and now_s - self._flushed_at_s < REFLUSH_S:
                return
            self._take_role(view)
            self._say(view, connection, now_s)

    def _promise(self, view: View) -> None:
        """Say what I shall hold, if I compute: before that is done I enter no exchange, and the
        view that is at hand keeps me from the one after it."""
        with self._flushing:
            if self._computing is not None and view.epoch > self._newer_view.answered and self._newer_view():
                self._say(view, self._mailbox.reconnects(), time.monotonic())

    def _say(self, view: View, connection: int, now_s: float) -> None:
        self._newer_view.answered = view.epoch
        self._flushed_at_s, self._flushed_connection = now_s, connection
        self._send(self._standing.flush(view, computing=self._computing or ()))

    def _take_role(self, view: View) -> None:
        ref = self._standing.ref
        mine = [m for m in view.members if (m.replica, m.incarnation) == (ref.replica, ref.incarnation)]
        if not mine:
            raise EvictedError(f"epoch {view.epoch} does not name {ref.replica}.{ref.incarnation}: {view.reason}")
        if self._standing.role is None:
            self._standing.role = mine[0].role

    def _check_preemption(self) -> None:
        if self._preemption.age_s() > SIGTERM_PATIENCE_S:
            raise LeaveUnsaved(f"SIGTERM {self._preemption.age_s():.0f} s ago and no install since")

    def _enter(self, view: View, install: Install) -> Commit | None:
        """Steps 4 to 6, the same on every rank of my replica."""
        standing, commit = self._standing, None
        standing.come_back(view)
        if standing.prepared is not None and install.step == standing.committed + 1:
            commit = self._exchange.commit(rolled_forward=True)
        standing.prepared = None
        standing.epoch, standing.view = view.epoch, view
        standing.contributors = tuple(sorted(install.contributors))
        standing.standbys = tuple(sorted(install.standbys))
        standing.take_role()
        if standing.is_joiner:
            self._catch_up_from(view, install)
        if standing.committed != install.step:
            raise MembershipViolated(f"epoch {view.epoch} stands at step {install.step}, I at {standing.committed}")
        self._keep_done(install)
        standing.todo = share_of_install(install, self._engine.micro_batch_count, standing.ref.replica)
        self._offer(view)
        return commit

    def _catch_up_from(self, view: View, install: Install) -> None:
        """Go on with the state my whole replica has or is fetching, or fetch a newer one.

        Each donor decides for itself, by the same views, whether it still holds what I fetch
        (`Donor.serve`). One that missed the view in which I began offers the state of a later
        view, which is of the same step: without that donor no step was committed in between.
        """
        standing, catch_up = self._standing, self._catch_up
        mine = standing.ref.replica
        incarnations = {member.replica: member.incarnation for member in view.members}
        donors = tuple((pair.donor, incarnations[pair.donor]) for pair in view.donors if pair.joiner == mine)
        if self._votes.all(catch_up.goes_on(donors) and standing.committed == install.step):
            catch_up.turn_to(donors)
            return
        standing.committed = install.step
        catch_up.restart(donors, step=install.step)

    def _keep_done(self, install: Install) -> None:
        """My raw gradient sums must hold exactly what the install counts as mine."""
        standing = self._standing
        held = held_by(install, standing.ref.replica) if standing.ref.replica in install.contributors else ()
        if standing.done_step != install.step or not held:
            self._engine.clear()
            standing.done, standing.done_step = (), install.step
        if set(held) != set(standing.done):
            raise MembershipViolated(f"install counts {held} as mine, I hold {standing.done}")

    def _offer(self, view: View) -> None:
        mine = self._standing.ref.replica
        joiners = {pair.joiner for pair in view.donors if pair.donor == mine and not self._standing.is_joiner}
        members: set[DonorMember] = {(m.replica, m.incarnation) for m in view.members if m.replica in joiners}
        state = [*self._engine.state(), rng.drawn(self._engine.device)]
        self._donor.serve(members, state, step=self._standing.committed)

    def _seat(self, view: View) -> Seat | None:
        """Mine in the outer group of `view`; None where it leaves me out."""
        ref = self._standing.ref
        me = (ref.replica, ref.incarnation)
        places = [number for number, member in enumerate(view.members) if (member.replica, member.incarnation) == me]
        if not places:
            return None
        prefix = f"outer/{ref.job_id}/{ref.attempt}/{view.epoch}/{ref.rank}"
        return Seat(view.epoch, prefix, places[0], len(view.members))

    def _build(self, view: View) -> bool:
        """True when this rank is in the outer group of the newest view. A group that could not
        be built with nobody dead is reported; the re-issued view brings the next try."""
        standing, ref = self._standing, self._standing.ref
        if ref.rank == 0:
            self._fence.raise_to(ref.attempt, view.epoch)
        seat = self._seat(view)
        assert seat is not None, "an installed view names me"
        try:
            self._outer.build(seat)
        except ExchangeAbandoned:
            return False
        except OuterFailed as error:
            self._send(OuterError(view.epoch, standing.committed, without_tokens(str(error))[:MAX_ERROR_CHARS]))
            return False
        return not self._newer_view()
