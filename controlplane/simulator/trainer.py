"""The toy trainer: every rank runs `trainer.core`, over a virtual clock instead of torch and sockets.

A `Process` is one incarnation of a replica (all its ranks). What its ranks ask together is answered when
the last has asked: micro-batches take their time one by one, the exchange (phase 1) and the barrier
(phase 2) are met by all members. What a replica gives up, for a newer view or a broken exchange, all its ranks give up.
"""

from collections.abc import Callable

from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import MAX_AWAITED_S, Flush, Install, View
from controlplane.protocol.rank import CaughtUp, CheckpointReport, OuterError, StepReport, TrainingDone
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import GIVEN_UP, INTAKE, Group, Process, Rank, core_of
from controlplane.simulator.saving import Saving
from controlplane.simulator.timing import Timing
from trainer.core import effects as do
from trainer.core import events as on
from trainer.core.rank import Stage

Report = Flush | OuterError | CaughtUp | CheckpointReport | StepReport | TrainingDone
UNREAD_MAX = 100
VOTE_S, RETRY_S = 0.02, 0.5


class Trainer(Saving):
    """All processes and groups of the one job. `failed_s`: when an exchange failed that nobody's end explains."""

    def __init__(
        self, kernel: Kernel, checkers: Checkers, said: Callable[[Rank, Report], None], timing: Timing
    ) -> None:
        self.on_commit: Callable[[int], None] = lambda committed: None
        self.late_s: Callable[[Process], float] = lambda process: 0.0
        super().__init__(kernel, said)
        self._checkers = checkers
        self.timing = timing
        self.processes: dict[tuple[int, int, int], Process] = {}
        self.groups: dict[tuple[int, int], Group] = {}
        self.crash_starts, self.failed_s = 0, -1e9

    # --- life of processes --------------------------------------------------------

    def spawn(self, launch: ReplicaLaunch, node: str, joined: Callable[[Rank], None]) -> list[Rank]:
        """Start this node's ranks of a replica; `joined` when one has said hello."""
        key = (launch.attempt, launch.replica, launch.incarnation)
        process = self.processes.get(key)
        if process is None:
            process = Process(launch.attempt, launch.replica, launch.incarnation, launch)
            process.phase_since_s = process.section_since_s = self._kernel.now_s
            resume = launch.config.resume
            process.lineage = list(self.stored[resume.path]) if resume else []
            self.processes[key] = process
        ranks = []
        for placement in launch.ranks:
            ref = RankRef(launch.job_id, launch.attempt, launch.replica, launch.incarnation, placement.rank)
            core = core_of(ref, launch, committed=len(process.lineage))
            rank = Rank(ref=ref, node=node, device=placement.device_index, core=core)
            process.ranks[placement.rank] = rank
            ranks.append(rank)
            setup_s = self.timing.start_s(self._kernel.between, loads=launch.config.resume is not None)
            self._kernel.after(setup_s, self._hello, rank, joined)
        return ranks

    def _hello(self, rank: Rank, joined: Callable[[Rank], None]) -> None:
        if rank.hung and rank.alive:
            self._kernel.after(RETRY_S, self._hello, rank, joined)
        elif rank.alive:
            rank.joined = True
            joined(rank)

    def process_of(self, rank: Rank) -> Process:
        """The incarnation a rank belongs to."""
        return self.processes[(rank.ref.attempt, rank.ref.replica, rank.ref.incarnation)]

    def kill(self, rank: Rank, *, quiet: bool = False) -> None:
        """The process is gone. Peers notice closed sockets unless the host vanished (`quiet`)."""
        if not rank.alive:
            return
        rank.alive = False
        process = self.process_of(rank)
        process.token += 1
        if process.epoch and not quiet:
            self.break_group(process.attempt, process.epoch, but=process)

    def wake(self, rank: Rank) -> None:
        """SIGCONT: it goes on where it was, in whatever epoch it was."""
        process = self.process_of(rank)
        process.resume(rank, self._kernel.now_s)
        token, unread, rank.unread = process.token, rank.unread, []
        for event in unread:
            self._feed(rank, event)
        if process.token == token:
            self._answer(process)
        if (group := self.groups.get((process.attempt, process.epoch))) is not None and group.broken:
            self._notice(process, process.epoch)

    def living(self) -> list[Process]:
        """Every incarnation that there was."""
        return list(self.processes.values())

    def break_group_of(self, process: Process) -> None:
        """The exchange of the epoch that it is in fails for every member."""
        self.break_group(process.attempt, process.epoch)

    def break_group(self, attempt: int, epoch: int, but: Process | None = None) -> None:
        """The exchange of an epoch fails for every member."""
        group = self.groups.get((attempt, epoch))
        if group is None or group.broken:
            return
        group.broken, group.unexplained = True, but is None
        self.failed_s = self.failed_s if but is not None else self._kernel.now_s
        for index, incarnation in sorted(group.members):
            process = self.processes.get((attempt, index, incarnation))
            if process is not None and process is not but:
                self._kernel.after(self._kernel.between(*self.timing.peer_notice_s), self._notice, process, epoch)

    def _notice(self, process: Process, epoch: int) -> None:
        """A member finds the exchange broken, once it runs: it tells, and gives up what it exchanges now, or will."""
        if process.epoch != epoch or process.noticed == epoch or process.interrupted() or not process.able():
            return
        process.noticed = epoch
        self._said(process.first, OuterError(epoch=epoch, step=process.committed, error="connection closed by peer"))
        if process.leavers:
            self._leave(process)
        elif process.first.core.stage in (Stage.SUMMING, Stage.PASSING):
            self._give_up(process)

    # --- a rank and its core --------------------------------------------------------

    def see_view(self, rank: Rank, view: View) -> None:
        """A view reaches a rank."""
        self._feed(rank, on.ViewSeen(view))

    def see_install(self, rank: Rank, order: Install) -> None:
        """An install reaches a rank."""
        self._feed(rank, on.InstallSeen(order))

    def unheard(self, rank: Rank) -> bool:
        """What it said last may be lost. True: it waits, and has said it again."""
        if rank.hung or not rank.alive or rank.core.stage not in (Stage.WAITING, Stage.AGREEING):
            return False
        self._feed(rank, on.Unheard())
        return True

    def _feed(self, rank: Rank, event: on.Event) -> None:
        if rank.hung:
            rank.unread = [*rank.unread, event][-UNREAD_MAX:]
        elif rank.alive:
            process, stage = self.process_of(rank), rank.core.stage
            effects = rank.core.handle(event)  # An answer that nobody waits for any more answers nothing.
            if not isinstance(event, INTAKE) and (effects or rank.core.stage is not stage):
                process.asked.pop(rank.ref.rank, None)
            for effect in effects:
                self._carry_out(process, rank, effect)
            if rank is process.first:
                process.note_place(self._kernel.now_s)

    def _feed_all(self, process: Process, event: on.Event) -> None:
        for _, rank in sorted(process.ranks.items()):
            self._feed(rank, event)

    def _carry_out(self, process: Process, rank: Rank, effect: do.Effect) -> None:
        match effect:
            case do.Say(flush=flush):
                process.stand(self._kernel.now_s)
                self._said(rank, flush)
            case do.Await(epoch=epoch):
                self._kernel.after(MAX_AWAITED_S, self._feed, rank, on.ViewAwaited(epoch))
            case do.Abandon():
                self._give_up(process)
            case do.Leave(why=why, text=text):
                self._checkers.expect(why is do.Why.EVICTED, f"I-held: r{process.index}.{process.incarnation}: {text}")
            case do.Connect() | do.Serve() | do.Entered():
                pass  # Takes no time here.
            case do.Fetch() | do.GoOn() | do.CommitStep() | do.Welcome():
                if rank is process.first:
                    self._for_all(process, effect)
                if isinstance(effect, do.CommitStep):
                    trained = self.groups[(process.attempt, effect.epoch)].trained(effect.step)
                    self._said(rank, process.committed_by(rank, effect, trained, self._kernel.now_s))
            case _:
                process.asked[rank.ref.rank] = effect
                self._answer(process)

    def _for_all(self, process: Process, effect: do.Fetch | do.GoOn | do.CommitStep | do.Welcome) -> None:
        """What all its ranks do alike."""
        match effect:
            case do.Fetch(donors=donors, step=step):
                process.lineage, process.fetch_step = [], step
                process.loaded, process.fetch_began_s = False, self._kernel.now_s
                self._fetch(process, donors)
            case do.GoOn(donors=donors):
                if not process.loaded and process.donor not in donors:
                    self._fetch(process, donors)
            case do.CommitStep():
                if not effect.rolled_forward:
                    own = self.groups[(process.attempt, effect.epoch)].batches[effect.step]
                    self._checkers.committed(process, effect.step, own)
                process.lineage.append(effect.epoch)
                self.on_commit(process.committed)
            case do.Welcome(role=role):
                if role is not None:
                    self._said(process.first, process.caught_up())

    def _give_up(self, process: Process) -> None:
        """What it builds or exchanges comes to nothing."""
        process.token, process.regroups_until_s = process.token + 1, None
        process.stand(self._kernel.now_s)
        for _, rank in sorted(process.ranks.items()):
            if rank.core.stage in GIVEN_UP:
                self._feed(rank, GIVEN_UP[rank.core.stage])

    def _answer(self, process: Process) -> None:
        """Do what its ranks ask together, once they all do."""
        asks = list(process.asked.values())
        if (
            len(asks) < process.launch.world_size
            or process.left_s is not None
            or not process.able()
            or len({type(ask) for ask in asks}) > 1
        ):
            return
        process.token += 1
        match process.asked[process.first.ref.rank]:
            case do.Agree() if len(set(asks)) == 1:
                self._feed_all(process, on.Agreed(same=True))
            case do.Agree():
                # They ask again until the slower one has heard of the newer view.
                self._kernel.after(VOTE_S, self._disagreed, process, process.token)
            case do.Confirm():
                claims = [ask for ask in asks if isinstance(ask, do.Confirm)]
                stands, keeps = all(ask.stands for ask in claims), all(ask.keeps for ask in claims)
                self._feed_all(process, on.Confirmed(stands=stands, keeps=keeps))
            case do.Meet():
                self._feed_all(process, on.Met(over=any(isinstance(ask, do.Meet) and ask.over for ask in asks)))
            case do.Build():
                self._build(process)
            case do.Compute() as ask:
                self._compute(process, ask)
            case do.Sum() if process.noticed == process.epoch:
                self._give_up(process)
            case do.Sum():
                self._later(process, self.timing.exchange_s, self._arrive)
            case do.Barrier(joins=joins):
                self._prepared(process, joins=joins)

    def _disagreed(self, process: Process, token: int) -> None:
        if process.token == token:
            self._feed_all(process, on.Agreed(same=False))

    def _later(self, process: Process, span: tuple[float, float], call: Callable[[Process, int], None]) -> None:
        took_s = self._kernel.between(*span)
        process.due_s = self._kernel.now_s + took_s
        self._kernel.after(took_s, call, process, process.token)

    # --- into an epoch ----------------------------------------------------------------

    def _build(self, process: Process) -> None:
        """It builds its groups and does nothing else; a newer view ends that, whatever it names."""
        now_s, agreed = self._kernel.now_s, process.first.core.agreed
        if agreed is not None and process.regroups_until_s is None:
            view, order = agreed
            process.regroups_until_s = now_s + self._regroup_s(process, view)
            members = frozenset((member.replica, member.incarnation) for member in view.members)
            self.groups.setdefault((process.attempt, order.epoch), Group(members=members))
            process.grouped = order.epoch
            self._checkers.installed(process, order)
            self._kernel.log("install", f"r{process.index}.{process.incarnation} epoch {order.epoch} step {order.step}")
        if self.timing.meets and not self._all_here(process):
            return
        left_s = (process.regroups_until_s or now_s) - now_s
        if left_s > 0.0:
            self._kernel.after(left_s, self._built, process, process.token)
        else:
            self._built(process, process.token)

    def _all_here(self, process: Process) -> bool:
        """Every member has come to build; the last to come lets the others go on."""
        group, me = self.groups[(process.attempt, process.grouped)], (process.index, process.incarnation)
        last = me not in group.here and len(group.here) + 1 == len(group.members)
        group.here.add(me)
        for index, incarnation in sorted(group.members - {me}) if last else ():
            other = self.processes[(process.attempt, index, incarnation)]
            if other.grouped == process.grouped and other.regroups_until_s is not None:
                self._kernel.after(0.0, self._answer, other)
        return len(group.here) == len(group.members)

    def _regroup_s(self, process: Process, view: View) -> float:
        """How long this member builds groups: whether one is left out, or new. Its first are part of its setup."""
        before = self.groups.get((process.attempt, process.grouped))
        if before is None:
            return 0.0
        lost = before.members - {(member.replica, member.incarnation) for member in view.members}
        return self.timing.regroup_s if lost else self.timing.rejoin_s

    def _built(self, process: Process, token: int) -> None:
        if self._goes_on(process, token) and not (self.timing.meets and self._misses_one(process)):
            process.regroups_until_s = None
            process.go_on(self._kernel.now_s)
            self._feed_all(process, on.Built(inside=True))
            self._next_step(process)

    def _misses_one(self, process: Process) -> bool:
        """A member whose processes are gone: nobody's group is ever built."""
        members = self.groups[(process.attempt, process.grouped)].members
        peers = (self.processes[(process.attempt, *member)] for member in members)
        return any(not rank.alive for peer in peers for rank in peer.ranks.values())

    def _fetch(self, process: Process, donors: tuple[do.Peer, ...]) -> None:
        """From the first of its donors."""
        process.fetches += 1
        process.donor = donors[0] if donors else None
        self._kernel.after(self._kernel.between(*self.timing.fetch_s), self._fetched, process, process.fetches)

    def _fetched(self, process: Process, number: int) -> None:
        """The donor's state is here, once it stands at that step; what was committed since is replayed on it."""
        if process.fetches != number or process.loaded or process.donor is None:
            return
        source, step = self.processes[(process.attempt, *process.donor)], process.fetch_step
        if not all(rank.alive for rank in (*source.ranks.values(), *process.ranks.values())):
            return
        if not (source.able() and process.able()) or len(source.lineage) < step:
            self._kernel.after(RETRY_S, self._fetched, process, number)
            return
        process.lineage = source.lineage[:step] + process.lineage
        process.loaded, process.fetch_s = True, self._kernel.now_s - process.fetch_began_s
        self._feed_all(process, on.Fetched())

    # --- the step ---------------------------------------------------------------------

    def _next_step(self, process: Process) -> None:
        if process.committed < process.launch.config.training.steps:
            self._feed_all(process, on.Begun())
            return
        for rank in process.ranks.values():
            self._said(rank, TrainingDone(step=process.committed))

    def _goes_on(self, process: Process, token: int) -> bool:
        return process.token == token and process.able() and process.left_s is None

    def _compute(self, process: Process, ask: do.Compute) -> None:
        """The next micro-batch; one that was stopped goes on with what is left."""
        if process.computing is not ask:
            process.computing, process.left, process.owed_s = ask, list(ask.todo), 0.0
        if process.left:
            more_s = self.late_s(process) + process.held_s(self._kernel.now_s)
            self._later(process, process.takes_s(self.timing.micro_batch_s, more_s), self._computed)
        else:
            self._feed_all(process, on.Computed())

    def _computed(self, process: Process, token: int) -> None:
        if self._goes_on(process, token):
            del process.left[0]
            self._answer(process)

    def _arrive(self, process: Process, token: int) -> None:
        """Phase 1."""
        if not self._goes_on(process, token):
            return
        group, step = self.groups[(process.attempt, process.epoch)], process.committed
        group.batches.setdefault(step, {})[process.index] = tuple(process.done)
        self._meet(group, group.summed.setdefault(step, set()), process, self._summed)

    def _summed(self, process: Process, token: int) -> None:
        if self._goes_on(process, token):
            self._feed_all(process, on.Summed(held=True))

    def _prepared(self, process: Process, *, joins: bool) -> None:
        """All its ranks hold the sum; phase 2, with which a joiner that is loaded raises its ready flag."""
        group, step = self.groups[(process.attempt, process.epoch)], process.committed
        if joins and process.loaded:
            group.ready.setdefault(step, set()).add(process.index)
        self._meet(group, group.barrier.setdefault(step, set()), process, self._passed)

    def _meet(self, group: Group, here: set[int], process: Process, call: Callable[[Process, int], None]) -> None:
        """The last to arrive lets all go on; one that comes again (it had been stopped) finds the exchange complete
        and goes on alone. Who has left the epoch does not listen to its exchange any more."""
        again = process.index in here
        here.add(process.index)
        if len(here) < len(group.members) or (group.broken and not again):
            return
        members = [(process.index, process.incarnation)] if again else sorted(group.members)
        for index, incarnation in members:
            member = self.processes[(process.attempt, index, incarnation)]
            if member.epoch == process.epoch:
                self._kernel.after(self._kernel.between(*self.timing.exchange_s), call, member, member.token)

    def _passed(self, process: Process, token: int) -> None:
        """The step is committed; the first contributor commits the marker of every interval's checkpoint."""
        if not self._goes_on(process, token):
            return
        ready = self.groups[(process.attempt, process.epoch)].ready.get(process.committed, set())
        self._feed_all(process, on.Passed(level=tuple(sorted(ready))))
        if process.leavers:
            self._leave(process)
            return
        self._save(process)
        self._next_step(process)
