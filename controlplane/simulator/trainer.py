"""The trainer's two-phase step protocol, at the granularity of micro-batches.

A `Process` is one incarnation of a replica (all its ranks). In a step it computes its
micro-batches one by one, meets the other members of its view in the exchange (phase 1),
is *prepared* when all its ranks hold the sum, meets them again in the barrier (phase 2),
and commits. A newer view interrupts it anywhere in between; it then flushes what it has
and waits for the install. While it computes it flushes what it will have, and goes on until
it has that. A view that names a step is kept until that is committed, or nothing can be.
`lineage` notes in which epoch each step was committed: two members of one view with
different lineages have diverged.
"""

from collections.abc import Callable

from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import MAX_AWAITED_S, Flush, Install, MemberRole, View
from controlplane.protocol.rank import CaughtUp, CheckpointReport, OuterError, TrainingDone
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Group, Process, Rank
from controlplane.simulator.timing import Timing

Report = Flush | OuterError | CaughtUp | CheckpointReport | TrainingDone
UNREAD_MAX = 100
STORED_MAX = 64
RETRY_S = 0.5


class Trainer:
    """All processes and groups of the one job. `said` hands a rank's report to its agent."""

    def __init__(
        self, kernel: Kernel, checkers: Checkers, said: Callable[[Rank, Report], None], timing: Timing
    ) -> None:
        self.on_commit: Callable[[int], None] = lambda committed: None
        self._kernel = kernel
        self._checkers = checkers
        self._said = said
        self.timing = timing
        self.processes: dict[tuple[int, int, int], Process] = {}
        self.groups: dict[tuple[int, int], Group] = {}
        self.stored: dict[str, list[int]] = {}
        self.crash_starts = 0

    # --- life of processes --------------------------------------------------------

    def spawn(self, launch: ReplicaLaunch, node: str, joined: Callable[[Rank], None]) -> list[Rank]:
        """Start this node's ranks of a replica; `joined` when one has said hello."""
        key = (launch.attempt, launch.replica, launch.incarnation)
        process = self.processes.get(key)
        if process is None:
            process = Process(launch.attempt, launch.replica, launch.incarnation, launch)
            resume = launch.config.resume
            process.lineage = list(self.stored[resume.path]) if resume else []
            process.committed = len(process.lineage)
            self.processes[key] = process
        ranks = []
        for placement in launch.ranks:
            ref = RankRef(launch.job_id, launch.attempt, launch.replica, launch.incarnation, placement.rank)
            rank = Rank(ref=ref, node=node, device=placement.device_index)
            process.ranks[placement.rank] = rank
            ranks.append(rank)
            self._kernel.after(self._setup_s(launch), self._hello, rank, joined)
        return ranks

    def _setup_s(self, launch: ReplicaLaunch) -> float:
        setup_s, load_s = self._kernel.between(*self.timing.setup_s), self.timing.load_s
        loads = launch.config.resume is not None and load_s[1] > 0.0
        return setup_s + (self._kernel.between(*load_s) if loads else 0.0)

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
        rank.hung, rank.woke_s = False, self._kernel.now_s
        process = self.process_of(rank)
        unread, rank.unread = rank.unread, []
        for message in unread:
            if isinstance(message, View):
                self.see_view(rank, message)
            else:
                self.see_install(rank, message)
        if process.epoch and process.able() and (process.computes() or not process.interrupted()):
            process.token += 1
            if process.regroups_until_s is None:
                self._work(process)
            else:
                self._regroup(process, process.regroups_until_s)

    def break_group(self, attempt: int, epoch: int, but: Process | None = None) -> None:
        """The exchange of an epoch fails for every member."""
        group = self.groups.get((attempt, epoch))
        if group is None or group.broken:
            return
        group.broken = True
        for index, incarnation in sorted(group.members):
            process = self.processes.get((attempt, index, incarnation))
            if process is not None and process is not but:
                self._kernel.after(self._kernel.between(*self.timing.peer_notice_s), self._notice, process, epoch)

    def _notice(self, process: Process, epoch: int) -> None:
        """A member finds the exchange broken; it keeps what it has and waits for a view."""
        if process.epoch != epoch or process.interrupted() or not process.able():
            return
        process.waiting = process.broken = True
        first = process.ranks[0]
        self._said(first, OuterError(epoch=epoch, step=process.committed, error="connection closed by peer"))
        self._all_due(process)

    # --- views ----------------------------------------------------------------------

    def see_view(self, rank: Rank, view: View) -> None:
        """A rank learns of a view: abandon the exchange, flush, wait; or flush and compute on."""
        if rank.hung:
            rank.unread = [*rank.unread, view][-UNREAD_MAX:]
            return
        if not rank.alive or view.epoch <= rank.newest_epoch:
            return
        process = self.process_of(rank)
        changing = process.interrupted() or process.broken or process.regroups_until_s is not None
        trains = process.epoch > 0 and not changing
        if trains and not view.is_due(committed=process.committed, awaited_s=0.0):
            rank.later = view
            self._kernel.after(MAX_AWAITED_S, self._due, rank, view.epoch)
            return
        self._take_view(process, rank, view)

    def _due(self, rank: Rank, epoch: int) -> None:
        """The view of `epoch` is awaited no longer, if it still is."""
        if rank.later is None or rank.later.epoch != epoch or not rank.alive:
            return
        if rank.hung:
            self._kernel.after(RETRY_S, self._due, rank, epoch)
        else:
            self._take_view(self.process_of(rank), rank, rank.later)

    def _all_due(self, process: Process) -> None:
        """Those views whose step is committed or, where the exchange is broken, every view."""
        for rank in process.ranks.values():
            if rank.later and (process.broken or rank.later.is_due(committed=process.committed, awaited_s=0.0)):
                self._due(rank, rank.later.epoch)

    def _take_view(self, process: Process, rank: Rank, view: View) -> None:
        rank.view, rank.later = view, None
        if not process.computes():
            process.token += 1
            process.waiting = True
        self._said(
            rank,
            Flush(
                job_id=view.job_id,
                attempt=view.attempt,
                epoch=view.epoch,
                replica=process.index,
                incarnation=process.incarnation,
                rank=rank.ref.rank,
                committed_step=process.committed,
                prepared=process.prepared and process.index not in view.returning,
                role=process.role_in(view),
                done_step=process.committed,
                done_micro_batches=tuple(sorted({*process.done, *(process.todo if process.computes() else ())})),
            ),
        )

    def see_install(self, rank: Rank, order: Install) -> None:
        """The last rank of a replica to learn of an install moves the replica on."""
        if rank.hung:
            rank.unread = [*rank.unread, order][-UNREAD_MAX:]
            return
        if not rank.alive or rank.view is None or rank.view.epoch != order.epoch:
            return
        if rank.install_epoch >= order.epoch:
            return
        rank.install_epoch = order.epoch
        process = self.process_of(rank)
        if all(other.install_epoch == order.epoch for other in process.ranks.values()) and process.able():
            process.ordered = (rank.view, order)
            if not process.computes():
                self._enter_ordered(process)

    def _enter_ordered(self, process: Process) -> None:
        """The install that is at hand, unless a rank has seen a newer view since."""
        ordered, process.ordered = process.ordered, None
        if ordered is None:
            return
        epoch = ordered[1].epoch
        if all(rank.view is not None and rank.view.epoch == epoch for rank in process.ranks.values()):
            self._install(process, *ordered)

    def _install(self, process: Process, view: View, order: Install) -> None:
        fresh = process.epoch == 0 or process.index in view.returning
        holds = process.index in (*order.contributors, *order.standbys)
        if holds or not fresh:
            self._roll_forward(process, order.step)
        process.contributors, process.standbys = order.contributors, order.standbys
        process.role = process.role_in_group()
        if not holds:
            self._follow(process, view, order, fresh)
        pause_s = self._regroup_s(process, view)
        process.epoch, process.prepared, process.waiting = order.epoch, False, pause_s > 0.0
        process.broken = False
        kept = {done.replica: list(done.micro_batches) for done in order.done}
        self._checkers.expect(
            set(kept.get(process.index, ())) <= set(process.done),
            f"I-held: r{process.index} is counted on for {kept.get(process.index)}, it holds {process.done}",
        )
        process.done = kept.get(process.index, [])
        taken = {batch for batches in kept.values() for batch in batches}
        process.todo = process.share(taken)
        members = frozenset((member.replica, member.incarnation) for member in view.members)
        self.groups.setdefault((process.attempt, order.epoch), Group(members=members))
        self._checkers.installed(process, order)
        self._kernel.log("install", f"r{process.index}.{process.incarnation} epoch {order.epoch} step {order.step}")
        process.token += 1
        process.regroups_until_s = None
        if pause_s > 0.0:
            self._regroup(process, self._kernel.now_s + pause_s)
        else:
            self._work(process)

    def _regroup_s(self, process: Process, view: View) -> float:
        """How long this member builds groups for the view: by whether one it trained with is
        left out, or one is new. Its first groups are part of its setup."""
        before = self.groups.get((process.attempt, process.epoch))
        if before is None:
            return 0.0
        lost = before.members - {(member.replica, member.incarnation) for member in view.members}
        return self.timing.regroup_s if lost else self.timing.rejoin_s

    def _regroup(self, process: Process, until_s: float) -> None:
        """It builds its groups and does nothing else; a newer view ends that, whatever it names."""
        process.regroups_until_s = until_s
        left_s = max(0.0, until_s - self._kernel.now_s)
        self._kernel.after(left_s, self._regrouped, process, process.token)

    def _regrouped(self, process: Process, token: int) -> None:
        if self._goes_on(process, token):
            process.regroups_until_s, process.waiting = None, False
            self._work(process)

    def _roll_forward(self, process: Process, step: int) -> None:
        """A member that had prepared the step behind commits it now."""
        if process.committed == step:
            return
        self._checkers.expect(
            process.committed == step - 1 and process.prepared,
            f"I-step: r{process.index} at {process.committed} cannot reach {step}",
        )
        process.lineage.append(process.epoch)
        process.committed += 1
        process.done = []

    def _follow(self, process: Process, view: View, order: Install, fresh: bool) -> None:
        """A joiner starts its fetch, or goes on with it if its donor is the same."""
        pair = next(pair for pair in view.donors if pair.joiner == process.index)
        donor = next((m.replica, m.incarnation) for m in view.members if m.replica == pair.donor)
        if not fresh and (process.loaded or process.donor == donor):
            return
        process.fetches += 1
        process.donor, process.loaded, process.fetch_step = donor, False, order.step
        process.committed, process.lineage = order.step, []
        process.fetch_began_s = self._kernel.now_s
        self._kernel.after(self._kernel.between(*self.timing.fetch_s), self._fetched, process, process.fetches)

    def _fetched(self, process: Process, number: int) -> None:
        """The donor's state is here; what was committed since is replayed on it."""
        if process.fetches != number or process.loaded or process.donor is None:
            return
        source, step = self.processes[(process.attempt, *process.donor)], process.fetch_step
        if not all(rank.alive for rank in (*source.ranks.values(), *process.ranks.values())):
            return
        if not (source.able() and process.able()):
            self._kernel.after(RETRY_S, self._fetched, process, number)
            return
        process.lineage = source.lineage[:step] + process.lineage
        process.loaded, process.fetch_s = True, self._kernel.now_s - process.fetch_began_s

    # --- the step ---------------------------------------------------------------------

    def _work(self, process: Process) -> None:
        """Next micro-batch, or the exchange."""
        timing = self.timing
        span, call = (timing.micro_batch_s, self._computed) if process.todo else (timing.exchange_s, self._arrive)
        took_s = self._kernel.between(*span)
        process.due_s = self._kernel.now_s + took_s
        self._kernel.after(took_s, call, process, process.token)

    def _goes_on(self, process: Process, token: int) -> bool:
        return process.token == token and process.able() and not process.interrupted()

    def _computed(self, process: Process, token: int) -> None:
        if process.token != token or not process.able():
            return
        process.done.append(process.todo.pop(0))
        if process.todo or not process.interrupted():
            self._work(process)
            return
        process.token += 1
        process.waiting = True
        self._enter_ordered(process)

    def _arrive(self, process: Process, token: int) -> None:
        """Phase 1."""
        if not self._goes_on(process, token):
            return
        process.waiting = True
        group, step = self.groups[(process.attempt, process.epoch)], process.committed
        group.batches.setdefault(step, {})[process.index] = tuple(process.done)
        here = group.summed.setdefault(step, set())
        self._meet(group, here, process, self._prepared)

    def _prepared(self, process: Process, token: int) -> None:
        """All its ranks hold the sum; phase 2, with which a joiner that is loaded raises its ready flag."""
        if not self._goes_on(process, token):
            return
        group, step = self.groups[(process.attempt, process.epoch)], process.committed
        process.prepared = True
        if process.role is MemberRole.JOINER and process.loaded:
            group.ready.setdefault(step, set()).add(process.index)
        here = group.barrier.setdefault(step, set())
        self._meet(group, here, process, self._commit)

    def _meet(self, group: Group, here: set[int], process: Process, call: Callable[[Process, int], None]) -> None:
        """The last to arrive lets all go on; one that comes again (it had been stopped)
        finds the exchange complete and goes on alone. Who has left the epoch does not
        listen to its exchange any more."""
        again = process.index in here
        here.add(process.index)
        if len(here) < len(group.members) or (group.broken and not again):
            return
        members = [(process.index, process.incarnation)] if again else sorted(group.members)
        for index, incarnation in members:
            member = self.processes[(process.attempt, index, incarnation)]
            if member.epoch == process.epoch:
                self._kernel.after(self._kernel.between(*self.timing.exchange_s), call, member, member.token)

    def _commit(self, process: Process, token: int) -> None:
        if not self._goes_on(process, token):
            return
        group, step = self.groups[(process.attempt, process.epoch)], process.committed
        self._checkers.committed(process, step, group.batches[step])
        process.lineage.append(process.epoch)
        process.committed, process.prepared, process.waiting, process.done = step + 1, False, False, []
        process.token += 1
        self.on_commit(process.committed)
        ready = group.ready.get(step, set())
        process.admit(ready)
        if process.index in ready:
            process.role = process.role_in_group()
            self._said(process.ranks[0], process.caught_up())
        if self._finished(process):
            return
        self._maybe_save(process)
        process.todo = process.share(set())
        self._all_due(process)
        if process.computes() or not process.interrupted():
            self._work(process)

    def _finished(self, process: Process) -> bool:
        finished = process.committed >= process.launch.config.training.steps
        for rank in process.ranks.values() if finished else ():
            self._said(rank, TrainingDone(step=process.committed))
        return finished

    def _maybe_save(self, process: Process) -> None:
        """The first contributor commits the marker of every interval's checkpoint."""
        interval = process.launch.config.checkpoint.interval_steps
        if process.committed % interval == 0 and process.index == process.contributors[0]:
            state = (process.committed, list(process.lineage), process.epoch)
            self._kernel.after(self._kernel.between(*self.timing.save_s), self._saved, process, *state)

    def _saved(self, process: Process, step: int, lineage: list[int], epoch: int) -> None:
        """Durable, if the process lived that long."""
        if not process.able():
            return
        path = f"{process.launch.config.checkpoint_dir}/{process.attempt}/{epoch}/{step}"
        self.stored[path] = lineage
        if len(self.stored) > STORED_MAX:
            del self.stored[next(iter(self.stored))]
        report = CheckpointReport(step=step, path=path, state="complete", kind="interval", epoch=epoch)
        self._said(process.ranks[0], report)
