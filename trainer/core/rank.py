"""A rank's side of the view protocol: events in, effects out.

A step: begun, computed, met (is the epoch over for one of us?), summed (*prepared* when every rank
of the replica holds the sum), passed (phase 2), committed. A finished sum alone never commits: a
zombie can complete one that the others have abandoned.

A view change, seen from one rank:
1. a newer view ends what is built or exchanged; one that names a step is as if it had not come
   until that is committed, unless a change has begun or a view was answered already;
2. answer it: while waiting, and while computing with what is computed as done (only an end keeps
   it from being so); an install that comes meanwhile lets joiners fetch at once;
3. when the install is there, agree with the replica that it is the same for all. While waiting for
   that, newer views are still answered, or two ranks that saw different views would wait for each
   other for ever. Who has done so stands by that answer and enters no older view: its replica
   confirms that nobody has, and else waits for the newer install;
4. prepared, and the install stands one step ahead: roll forward;
5. one that was left out and returns is a joiner again; a joiner goes on with what it has fetched if
   its whole replica can, else it starts to fetch the installed step;
6. serve my joiners, build the group; interrupted by a newer view: start over.
"""

from enum import StrEnum

from controlplane.protocol.membership import Install, MemberRole, View
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.effects import Effect, Peer, Seat, Why
from trainer.core.shares import admitted, held_by, share_of_install
from trainer.core.standing import Standing


class Stage(StrEnum):
    """Where a rank is; `READY`: between two steps."""

    WAITING = "waiting"
    AGREEING = "agreeing"
    CONFIRMING = "confirming"
    BUILDING = "building"
    READY = "ready"
    COMPUTING = "computing"
    MEETING = "meeting"
    SUMMING = "summing"
    PASSING = "passing"
    LEFT = "left"


CHANGING = frozenset({Stage.WAITING, Stage.AGREEING, Stage.CONFIRMING, Stage.BUILDING})
INTERRUPTIBLE = frozenset({Stage.BUILDING, Stage.SUMMING, Stage.PASSING})


class RankCore:
    """`view` and `install`: the newest that have come; `answered`: the newest epoch whose view was
    answered. Answers that nobody waits for any more change nothing."""

    def __init__(self, standing: Standing, *, micro_batch_count: int, max_contributors: int | None) -> None:
        self.standing = standing
        self.stage = Stage.WAITING
        self.view: View | None = None
        self.install: Install | None = None
        self.answered = 0
        self._micro_batch_count, self._max_contributors = micro_batch_count, max_contributors
        self._awaited = 0
        self._todo: tuple[int, ...] = ()
        self.agreed: tuple[View, Install] | None = None
        self._fetch: do.Fetch | None = None
        self._fetched = False

    @property
    def is_over(self) -> bool:
        """The installed epoch is: a newer view is at hand, and due."""
        view, standing = self.view, self.standing
        if view is None or view.epoch <= standing.epoch:
            return False
        stopped = self.stage in CHANGING or self.answered > standing.epoch or self._awaited >= view.epoch
        return stopped or view.is_due(committed=standing.committed, awaited_s=0.0)

    @property
    def is_changing(self) -> bool:
        """In a view change, from its first view on."""
        return self.stage in CHANGING

    def handle(self, event: on.Event) -> list[Effect]:
        """What is to be done, in this order."""
        if self.stage is Stage.LEFT:
            return []
        match event:
            case on.ViewSeen(view=view):
                return self._see_view(view)
            case on.ViewAwaited(epoch=epoch):
                self._awaited = max(epoch, self._awaited)
                return self._react()
            case on.InstallSeen(install=install):
                return self._see_install(install)
            case on.Unheard():
                said = self.view is not None and self.view.epoch == self.answered
                return self._say() if said and self.stage in (Stage.WAITING, Stage.AGREEING) else []
            case on.Fetched():
                self._fetched = self._fetch is not None
                return []
            case _:
                return self._answer(event)

    def _answer(self, event: on.Event) -> list[Effect]:
        match event, self.stage:
            case on.Agreed(same=same), Stage.AGREEING:
                return self._confirm() if same else self._wait()
            case on.Confirmed(stands=stands, keeps=keeps), Stage.CONFIRMING:
                return self._enter(keeps=keeps) if stands else self._wait()
            case on.Built(inside=inside), Stage.BUILDING:
                return self._ready() if inside else self._wait()
            case on.Begun(), Stage.READY:
                return self._begin()
            case on.Computed(), Stage.COMPUTING:
                standing = self.standing
                standing.done, standing.todo = tuple(sorted({*standing.done, *self._todo})), ()
                return self._meet()
            case on.Met(over=over), Stage.MEETING:
                return self._wait() if over else self._ask(Stage.SUMMING, do.Sum(self.standing.is_contributor))
            case on.Summed(held=held), Stage.SUMMING:
                self.standing.prepared = held
                return self._ask(Stage.PASSING, do.Barrier(self.standing.is_joiner)) if held else self._wait()
            case on.Passed(level=level), Stage.PASSING:
                return self._pass(level) if level is not None else self._wait()
            case _:
                return []

    def _ask(self, stage: Stage, ask: do.Ask) -> list[Effect]:
        self.stage = stage
        return [ask]

    def _leave(self, why: Why, text: str) -> list[Effect]:
        return self._ask(Stage.LEFT, do.Leave(why, text))

    # --- views and installs -------------------------------------------------------------

    def _see_view(self, view: View) -> list[Effect]:
        if self.view is not None and view.epoch <= self.view.epoch:
            return []
        self.view = view
        connect = [do.Connect(self._seat(view))] if self.standing.place_in(view) is not None else []
        reaction = self._react()
        wait = [] if self.is_over or self.stage is Stage.LEFT else [do.Await(view.epoch)]
        return [*connect, *wait, *reaction]

    def _see_install(self, install: Install) -> list[Effect]:
        if self.install is not None and install.epoch <= self.install.epoch:
            return []
        self.install = install
        if self.stage is not Stage.COMPUTING:
            return self._react() if self.stage is Stage.WAITING else []
        asked = self.view is not None and self.view.epoch == install.epoch == self.answered
        if self.view is None or not asked or install.step != self.standing.committed:
            return []
        return [self._serve(self.view, early=True)]

    def _react(self) -> list[Effect]:
        """What the newest view asks of me where I am."""
        if not self.is_over or self.view is None:
            return []
        if self.stage in INTERRUPTIBLE:
            return [do.Abandon()]
        if self.stage not in (Stage.WAITING, Stage.AGREEING, Stage.COMPUTING):
            return []
        if self.standing.place_in(self.view) is None:
            return [] if self.stage is Stage.COMPUTING else self._evicted(self.view)
        said = self._say() if self.view.epoch > self.answered else []
        install = self.install
        if self.stage is not Stage.WAITING or install is None or install.epoch != self.view.epoch:
            return said
        self.agreed = (self.view, install)
        return [*said, *self._ask(Stage.AGREEING, do.Agree(install.epoch))]

    def _evicted(self, view: View) -> list[Effect]:
        ref = self.standing.ref
        return self._leave(
            Why.EVICTED, f"epoch {view.epoch} does not name {ref.replica}.{ref.incarnation}: {view.reason}"
        )

    def _say(self) -> list[Effect]:
        view, standing = self.view, self.standing
        assert view is not None, "there is something to answer"
        place = standing.place_in(view)
        assert place is not None, "it names me"
        if standing.role is None:
            standing.role = view.members[place].role
        self.answered = view.epoch
        computing = self._todo if self.stage is Stage.COMPUTING else ()
        return [do.Say(standing.flush(view, computing=computing))]

    def _wait(self) -> list[Effect]:
        """Until there is a newer view and its install."""
        self.stage, self.agreed = Stage.WAITING, None
        return self._react()

    def _seat(self, view: View) -> Seat:
        ref, place = self.standing.ref, self.standing.place_in(view)
        assert place is not None, "it names me"
        return Seat(view.epoch, f"outer/{ref.job_id}/{ref.attempt}/{view.epoch}/{ref.rank}", place, len(view.members))

    # --- into an epoch --------------------------------------------------------------------

    def _confirm(self) -> list[Effect]:
        assert self.agreed is not None, "agreed on it"
        view, install = self.agreed
        standing = self.standing
        ahead = standing.prepared and not standing.returns_in(view) and install.step == standing.committed + 1
        level = standing.committed + int(ahead) == install.step
        keeps = level and self._goes_on(self._donors(view))
        return self._ask(Stage.CONFIRMING, do.Confirm(stands=self.answered <= view.epoch, keeps=keeps))

    def _goes_on(self, donors: tuple[Peer, ...]) -> bool:
        """All of the state is here, or one of them has been asked for it and so still holds it."""
        fetch = self._fetch
        return fetch is not None and (self._fetched or any(donor in fetch.donors for donor in donors))

    def _donors(self, view: View) -> tuple[Peer, ...]:
        peers = {member.replica: member.incarnation for member in view.members}
        mine = self.standing.ref.replica
        return tuple((pair.donor, peers[pair.donor]) for pair in view.donors if pair.joiner == mine)

    def _enter(self, *, keeps: bool) -> list[Effect]:
        """The same on every rank of my replica."""
        assert self.agreed is not None, "agreed on it"
        view, install = self.agreed
        standing = self.standing
        if self.answered > view.epoch:
            return self._leave(Why.VIOLATED, f"asked into epoch {view.epoch}, I have answered {self.answered}")
        if standing.returns_in(view):
            standing.role, standing.prepared = MemberRole.JOINER, False
        done: list[Effect] = []
        if standing.prepared and install.step == standing.committed + 1:
            done.append(self._commit(rolled_forward=True))
        standing.prepared = False
        standing.epoch, standing.view = view.epoch, view
        standing.contributors, standing.standbys = tuple(sorted(install.contributors)), tuple(sorted(install.standbys))
        standing.role = standing.role_from(standing.contributors, standing.standbys)
        if standing.is_joiner:
            done.append(self._fetch_from(self._donors(view), install.step, keeps=keeps))
        held = held_by(install, standing.ref.replica) if standing.ref.replica in install.contributors else ()
        if standing.done_step != install.step or not held:
            standing.done, standing.done_step = (), install.step
        if standing.committed != install.step:
            return self._leave(
                Why.VIOLATED, f"epoch {view.epoch} stands at step {install.step}, I at {standing.committed}"
            )
        if set(held) != set(standing.done):
            return self._leave(Why.VIOLATED, f"install counts {held} as mine, I hold {standing.done}")
        standing.todo = share_of_install(install, self._micro_batch_count, standing.ref.replica)
        done.append(self._serve(view))
        return [*done, *self._ask(Stage.BUILDING, do.Build(self._seat(view)))]

    def _fetch_from(self, donors: tuple[Peer, ...], step: int, *, keeps: bool) -> Effect:
        """Each donor decides for itself, by the same views, whether it still holds what I fetch. One
        that missed the view in which I began offers the state of a later view, which is of the same
        step: without that donor no step was committed in between."""
        if keeps and self._fetch is not None:
            kept = tuple(donor for donor in donors if donor in self._fetch.donors)
            self._fetch = do.Fetch(kept, self._fetch.step)
            return do.GoOn(kept)
        self.standing.committed = step
        self._fetch, self._fetched = do.Fetch(donors, step), False
        return self._fetch

    def _serve(self, view: View, *, early: bool = False) -> Effect:
        standing = self.standing
        mine = {pair.joiner for pair in view.donors if pair.donor == standing.ref.replica and not standing.is_joiner}
        peers = frozenset((m.replica, m.incarnation) for m in view.members if m.replica in mine)
        return do.Serve(peers, standing.committed, early)

    def _ready(self) -> list[Effect]:
        self.stage, self.agreed = Stage.READY, None
        standing = self.standing
        recomputed = (standing.todo or ()) if standing.done else ()
        entered = do.Entered(standing.epoch, standing.committed, recomputed)
        # A view that came while this was built was due then; from here on its step is awaited.
        waits = self.view is not None and self.view.epoch > standing.epoch and not self.is_over
        return [do.Await(self.view.epoch), entered] if self.view is not None and waits else [entered]

    # --- the step -------------------------------------------------------------------------

    def _begin(self) -> list[Effect]:
        standing = self.standing
        if standing.is_joiner:
            return self._meet()
        if standing.done_step != standing.committed:
            standing.done, standing.done_step = (), standing.committed
        self.stage, self._todo = Stage.COMPUTING, standing.share_of_step(self._micro_batch_count)
        return [*self._react(), do.Compute(standing.committed, self._todo, fresh=not standing.done)]

    def _meet(self) -> list[Effect]:
        return self._ask(Stage.MEETING, do.Meet(self.is_over))

    def _pass(self, level: tuple[int, ...]) -> list[Effect]:
        standing = self.standing
        self.stage = Stage.READY
        commit = self._commit(rolled_forward=False)
        joined = frozenset(level)
        if not joined:
            return [commit]
        standing.contributors, standing.standbys = admitted(
            joined, standing.contributors, standing.standbys, self._max_contributors
        )
        role = None
        if standing.is_joiner and standing.ref.replica in joined:
            standing.role = role = standing.role_from(standing.contributors, standing.standbys)
            self._fetch, self._fetched = None, False
        return [commit, do.Welcome(joined, role)]

    def _commit(self, *, rolled_forward: bool) -> Effect:
        """A step that is rolled forward changes nobody's role: its flags were raised among the
        members of an older epoch, and the install has said who contributes."""
        standing = self.standing
        commit = do.CommitStep(
            step=standing.committed,
            epoch=standing.epoch,
            micro_batches=standing.done,
            keeps=standing.is_joiner,
            rolled_forward=rolled_forward,
            members=tuple(member.replica for member in standing.members),
            holders=standing.holders,
        )
        standing.committed += 1
        standing.prepared, standing.todo = False, None
        standing.done, standing.done_step = (), standing.committed
        return commit
