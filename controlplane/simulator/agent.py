"""A small model of the node agent: journal, fencing, spool, ranks.

It keeps the promises of `protocol.commands` and `protocol.frames` (effect once, refused
when stale, events resent until acknowledged). `agents.core` is the real one; both sit
behind `receive` and the frames they send.
"""

from collections.abc import Callable

from controlplane.protocol.commands import (
    CommandEnvelope,
    DeliverInstall,
    DeliverView,
    StartRanks,
    StopRanks,
)
from controlplane.protocol.frames import (
    Acked,
    AgentEvent,
    AgentFrame,
    AnswerState,
    CommandAnswer,
    DeviceLost,
    EventBody,
    RankExited,
    RankJoined,
    RankOverdue,
    RankSaid,
    RankStatus,
    XidSeen,
)
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import View
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Rank
from controlplane.simulator.rows import Order
from controlplane.simulator.trainer import Report, Trainer

FRAME_INTERVAL_S = 1.0
HANG_TIMEOUT_S = 5.0
MAX_SPOOL = 10_000

Uplink = Callable[[str, int, AgentFrame], None]


class Agent:
    """One node. `boot` counts its lives; `uplink` sends a frame to the server."""

    def __init__(self, node: str, kernel: Kernel, trainer: Trainer, checkers: Checkers, uplink: Uplink) -> None:
        self.node = node
        self.boot = 0
        self.dead = False
        self.ranks: list[Rank] = []
        self.broken: set[int] = set()
        self._kernel, self._trainer, self._checkers, self._uplink = kernel, trainer, checkers, uplink
        self._forget()

    def _forget(self) -> None:
        """What a lost disk forgets."""
        self._answers: dict[str, AnswerState] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._attempts: dict[str, int] = {}
        self._stopped: dict[tuple[int, int], int] = {}
        self._spool: list[AgentEvent] = []
        self._told_s: dict[int, float] = {}
        self._seq = 0
        self._frames = 0
        self._overdue: set[RankRef] = set()

    def start(self) -> None:
        """Begin to send frames."""
        self._kernel.after(self._kernel.between(0.0, FRAME_INTERVAL_S), self._beat, self.boot)

    # --- up ---------------------------------------------------------------------------

    def _beat(self, boot: int) -> None:
        if self.dead or boot != self.boot:
            return
        self._look_for_hangs()
        self._send()
        self._kernel.after(FRAME_INTERVAL_S, self._beat, boot)

    def _send(self) -> None:
        self._frames += 1
        statuses = tuple(self._status(rank) for rank in self.ranks if rank.alive)
        now_s = self._kernel.now_s
        events = tuple(AgentEvent(event.seq, now_s - self._told_s[event.seq], event.body) for event in self._spool)
        frame = AgentFrame(seq=self._frames, uptime_s=now_s, ranks=statuses, events=events)
        self._uplink(self.node, self.boot, frame)

    def _status(self, rank: Rank) -> RankStatus:
        process = self._trainer.process_of(rank)
        stood_s = self._kernel.now_s - rank.hung_since_s if rank.hung else 0.0
        return RankStatus(
            ref=rank.ref,
            state=RankState.TRAINING if rank.joined else RankState.INITIALIZING,
            pid=1,
            device_index=rank.device,
            section=Section.SETUP if process.epoch == 0 else Section.STEP,
            phase=process.phase(),
            step=process.committed,
            phase_age_s=stood_s,
            silent_s=0.0 if rank.beats else stood_s,
        )

    def emit(self, body: EventBody) -> None:
        """A fact: kept until the server has acknowledged it."""
        if self.dead:
            return
        self._seq += 1
        self._told_s[self._seq] = self._kernel.now_s
        self._spool = [*self._spool, AgentEvent(self._seq, 0.0, body)][-MAX_SPOOL:]
        self._send()

    def said(self, rank: Rank, report: Report) -> None:
        """A rank's own report, passed on unchanged."""
        self.emit(RankSaid(rank.ref, report))

    def _look_for_hangs(self) -> None:
        for rank in self.ranks:
            age_s = self._kernel.now_s - rank.hung_since_s
            if not rank.hung:
                self._overdue.discard(rank.ref)
            if rank.alive and rank.hung and age_s >= HANG_TIMEOUT_S and rank.ref not in self._overdue:
                self._overdue.add(rank.ref)
                step = self._trainer.process_of(rank).committed
                overdue = RankOverdue(rank.ref, Section.STEP, Phase.COMPUTE, step, age_s, HANG_TIMEOUT_S, age_s)
                self.emit(overdue)

    # --- down -------------------------------------------------------------------------

    def receive(self, message: tuple[int, Order | Acked]) -> None:
        """What the server sent to this life of the agent; repeats and late arrivals included."""
        boot, body = message
        if self.dead or boot != self.boot:
            return
        self._take(body)

    def _take(self, message: Order | Acked) -> None:
        if isinstance(message, Acked):
            self._spool = [event for event in self._spool if event.seq > message.seq]
            return
        for envelope in message.commands:
            self._obey(envelope)

    def _obey(self, envelope: CommandEnvelope) -> None:
        known = self._answers.get(envelope.command_id)
        if known is not None:
            self._answer(envelope, known)
            return
        refusal = self._refuse(envelope)
        if refusal:
            self._answers[envelope.command_id] = "superseded"
            self._answer(envelope, "superseded", refusal)
            return
        key = (envelope.job_id, envelope.attempt)
        self._epochs[key] = max(envelope.epoch, self._epochs.get(key, 0))
        self._attempts[envelope.job_id] = max(envelope.attempt, self._attempts.get(envelope.job_id, 0))
        self._answers[envelope.command_id] = "succeeded"
        self._checkers.effect(f"{self.node}/{self.boot}/{envelope.command_id}")
        self._carry_out(envelope)
        self._answer(envelope, "succeeded")

    def _refuse(self, envelope: CommandEnvelope) -> str:
        """Stale orders change nothing. Ending an old incarnation is never stale: it names
        the incarnation, and a newer epoch is the very reason for it."""
        if envelope.age_s > envelope.ttl_s:
            return "expired"
        if isinstance(envelope.body, StopRanks):
            return ""
        if envelope.attempt < self._attempts.get(envelope.job_id, 0):
            return "older attempt"
        newest = self._epochs.get((envelope.job_id, envelope.attempt), 0)
        # Epochs fence membership. A start is fenced by its incarnation instead: views come
        # and go while it is on its way.
        if isinstance(envelope.body, StartRanks):
            return "older incarnation" if self._has_newer(envelope.body) else ""
        return "older epoch" if envelope.epoch < newest else ""

    def _has_newer(self, body: StartRanks) -> bool:
        """Or has ended it: a socket keeps the order of what is sent, so that no start comes after its stop."""
        launch = body.launch
        if self._stopped.get((launch.attempt, launch.replica), 0) >= launch.incarnation:
            return True
        return any(
            rank.ref.replica == launch.replica and rank.ref.incarnation >= launch.incarnation for rank in self.ranks
        )

    def _answer(self, envelope: CommandEnvelope, state: AnswerState, detail: str = "") -> None:
        self.emit(CommandAnswer(envelope.command_id, state, detail))

    def _carry_out(self, envelope: CommandEnvelope) -> None:
        match envelope.body:
            case StartRanks():
                self._start_ranks(envelope.body)
            case StopRanks():
                self._stop_ranks(envelope.body)
            case DeliverView(view=view):
                self._deliver_view(view)
            case DeliverInstall(install=order):
                for rank in list(self.ranks):
                    if rank.ref.attempt == order.attempt:
                        self._trainer.see_install(rank, order)
            case _:
                pass

    def _start_ranks(self, body: StartRanks) -> None:
        launch = body.launch
        for rank in self.ranks:
            older = rank.ref.attempt < launch.attempt
            same_slot = rank.ref.replica == launch.replica and rank.ref.incarnation < launch.incarnation
            if older or same_slot:
                self.end(rank, expected=True)
        for placement in launch.ranks:
            holder = next((r for r in self.ranks if r.alive and r.device == placement.device_index), None)
            name = f"r{holder.ref.replica}.{holder.ref.incarnation}" if holder else None
            self._checkers.device_taken(self.node, placement.device_index, name)
        new = self._trainer.spawn(launch, self.node, self._joined)
        self.ranks = [rank for rank in self.ranks if rank.alive] + new
        if self._trainer.crash_starts > 0:
            self._trainer.crash_starts -= 1
            self._kernel.after(0.5, self.end, new[0])

    def _joined(self, rank: Rank) -> None:
        self.emit(RankJoined(rank.ref))

    def _stop_ranks(self, body: StopRanks) -> None:
        life = (body.attempt, body.replica)
        self._stopped[life] = max(body.incarnation, self._stopped.get(life, 0))
        for rank in self.ranks:
            ref = rank.ref
            whole = body.replica == -1 and ref.attempt <= body.attempt
            if whole or (ref.replica == body.replica and ref.incarnation <= body.incarnation):
                self.end(rank, expected=True)

    def _deliver_view(self, view: View) -> None:
        """Members get it; former members of this or an older view are told to leave, but for those
        that it leaves out for now. A rank that never was in a view is still on its way in and is
        left alone."""
        members = {(member.replica, member.incarnation) for member in view.members}
        for rank in list(self.ranks):
            if rank.ref.attempt == view.attempt and (rank.ref.replica, rank.ref.incarnation) in members:
                self._trainer.see_view(rank, view)
            elif view.attempt == rank.ref.attempt and view.waits(rank.ref.replica, rank.ref.incarnation):
                continue
            elif rank.view is not None and not rank.hung:
                self.end(rank, expected=True)

    def end(self, rank: Rank, expected: bool = False) -> None:
        """SIGKILL; the exit is a fact."""
        if not rank.alive:
            return
        self._trainer.kill(rank)
        self.emit(RankExited(rank.ref, None, 9, expected))

    # --- what can happen to a node ------------------------------------------------------

    def crash(self) -> None:
        """Power loss: every process and the agent vanish without a word."""
        self.dead = True
        for rank in self.ranks:
            self._trainer.kill(rank, quiet=True)
        self.ranks = []

    def reboot(self) -> None:
        """Back with an empty disk."""
        self.dead = False
        self.boot += 1
        self._forget()
        self.start()

    def xid(self, device: int, xid: int) -> None:
        """The driver reports an XID; a fatal one takes the process on the device with it."""
        self.emit(XidSeen(XidEvent(index=device, xid=xid)))
        self._end_on(device)

    def lose_device(self, device: int) -> None:
        """The device falls off the bus."""
        self.emit(DeviceLost(device, f"{self.node}-{device}"))
        self._end_on(device)

    def _end_on(self, device: int) -> None:
        self.broken.add(device)
        for rank in self.ranks:
            if rank.device == device:
                self.end(rank)
