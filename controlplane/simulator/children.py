"""The ranks of one simulated node, as its agent meets them: forked, connected, told, heard, ended."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from agents.core import effects as fx
from agents.core import events as ev
from agents.core.state import Rank as Known
from controlplane.policy.exits import EXIT_RESUME_FAILED
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import (
    Evicted,
    FromRank,
    InstallView,
    RankForked,
    RankHello,
    RankProgress,
    SaveNow,
    SetView,
    ToRank,
)
from controlplane.protocol.rank_commands import CarriedOut, CarryOut
from controlplane.protocol.states import Phase, Section
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.machine import Child, Machine
from controlplane.simulator.process import Rank
from controlplane.simulator.storage import Reader
from controlplane.simulator.trainers import Trainers

RECONNECT_S = 0.5
REFLUSH_S = 5.0
HOST_IMPORTS_S = 0.05
BAD_START_S = 0.5
RESET_S = 2.0
SOON_S = (0.001, 0.01)
SIGKILL, SIGTERM = 9, 15
LEFT, SAVED_AND_LEFT = 1, 15
Work = fx.TakeStacks | fx.Reset | fx.ReadCheckpoint | fx.StopReading | fx.InjectDevice | fx.DropLink
WORK = (fx.TakeStacks, fx.Reset, fx.ReadCheckpoint, fx.StopReading, fx.InjectDevice, fx.DropLink)


class Owner(Protocol):
    """The agent of the node. `after` calls in this run of it alone."""

    def dispatch(self, event: ev.Event) -> None:
        """Something has happened."""

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Later, if the agent still lives."""

    def known(self, ref: RankRef) -> Known | None:
        """The rank in the agent's state."""

    def hang_up(self, for_s: float = 0.0) -> None:
        """The connection to the server is gone, for so long."""

    def xid(self, device: int, xid: int) -> None:
        """The driver reports an XID."""

    def lose_device(self, device: int) -> None:
        """The device falls off the bus."""


class Children:
    """Processes outlive the agent; connections do not."""

    def __init__(self, machine: Machine, kernel: Kernel, trainer: Trainers, checkers: Checkers, agent: Owner) -> None:
        self._machine, self._kernel, self._trainer = machine, kernel, trainer
        self._checkers, self._agent = checkers, agent
        self.reader = Reader(machine, agent)
        self._conns = 0

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """In a moment, if the agent still lives."""
        self._agent.after(self._kernel.between(*SOON_S), call, *args)

    def read_node(self, command_id: str) -> None:
        """Its checks, of which `Machine.failing` do."""
        failed = self._machine.failing
        self._agent.dispatch(ev.NodeRead(now_s=self._machine.now_s, failed=failed, command_id=command_id))

    def read_memory(self) -> None:
        """No device gives a reading."""
        self._agent.dispatch(ev.MemoryRead(now_s=self._machine.now_s, used_bytes={}))

    # --- the host ---------------------------------------------------------------------------

    def to_host(self, effect: fx.StartHost | fx.AskHost | fx.ShutdownHost) -> None:
        """Start it, ask it, or send it home."""
        match effect:
            case fx.StartHost():
                self.start_host(effect.job_id)
            case fx.AskHost():
                self.ask_host(effect.job_id)
            case fx.ShutdownHost():
                self.end_host(effect.job_id)

    def start_host(self, job_id: str) -> None:
        """Its process exists; it imports."""
        identity = self._machine.hosts[job_id] = self._machine.identity()
        self._agent.dispatch(ev.HostStarted(now_s=self._machine.now_s, job_id=job_id, identity=identity))
        self._agent.after(HOST_IMPORTS_S, self._ready, job_id)

    def _ready(self, job_id: str) -> None:
        self._agent.dispatch(ev.HostReadied(now_s=self._machine.now_s, job_id=job_id, import_s=HOST_IMPORTS_S))

    def ask_host(self, job_id: str) -> None:
        """It is ready, tells whom it has forked, and how those ended who are gone."""
        if job_id not in self._machine.hosts:
            return
        now_s = self._machine.now_s
        children = self._forked_by(job_id)
        alive = tuple(
            RankForked(c.rank.ref, c.identity.pid, c.identity.start_time_ticks) for c in children if c.rank.alive
        )
        self._ready(job_id)
        for child in children:
            if not child.rank.alive:
                self.gone(child.rank.ref)
        self._agent.dispatch(ev.HostListed(now_s=now_s, job_id=job_id, ranks=alive))

    def end_host(self, job_id: str) -> None:
        """It leaves if no rank is left."""
        if not any(child.rank.alive for child in self._forked_by(job_id)):
            self._machine.hosts.pop(job_id, None)
            self._agent.dispatch(ev.HostProcessGone(now_s=self._machine.now_s, job_id=job_id, exit_code=0))

    def lose_host(self, job_id: str) -> None:
        """It is killed; whom it has forked lives on."""
        self._machine.hosts.pop(job_id, None)
        self._agent.dispatch(ev.HostProcessGone(now_s=self._machine.now_s, job_id=job_id, exit_code=-SIGKILL))

    def _forked_by(self, job_id: str) -> tuple[Child, ...]:
        return tuple(child for ref, child in self._machine.children.items() if ref.job_id == job_id)

    def fork(self, ref: RankRef) -> None:
        """A process of the rank, if its host is there; a repeated order gets the same answer."""
        known, machine = self._agent.known(ref), self._machine
        if known is None or ref.job_id not in machine.hosts:
            return
        if ref in machine.children:
            self._forked(machine.children[ref])
            return
        held = machine.on(known.device_index)
        holder = f"r{held.rank.ref.replica}.{held.rank.ref.incarnation}" if held else None
        self._checkers.device_taken(machine.node, known.device_index, holder)
        self._checkers.effect(f"{machine.boot_id}/fork {ref}")
        placed = tuple(place for place in known.launch.ranks if place.rank == ref.rank)
        launch = msgspec.structs.replace(known.launch, ranks=placed)
        (rank,) = self._trainer.spawn(launch, machine.node, self._joined)
        child = machine.children[ref] = Child(rank, machine.identity())
        self._forked(child)
        self.soon(self.connect, ref)
        resume = launch.config.resume
        if self._trainer.crash_starts > 0:
            self._trainer.crash_starts -= 1
            self._kernel.after(BAD_START_S, self.end, rank)
        elif resume is not None and resume.path in self.reader.storage.rotten:
            self._kernel.after(BAD_START_S, self.end, rank, (EXIT_RESUME_FAILED, None))

    def _forked(self, child: Child) -> None:
        ref, identity = child.rank.ref, child.identity
        self._agent.dispatch(ev.RankForkedHere(now_s=self._machine.now_s, ref=ref, identity=identity, took_s=0.0))

    # --- connections ------------------------------------------------------------------------

    def connect(self, ref: RankRef) -> None:
        """It says hello, and what it had to say while no agent was there; one that is stopped tries later."""
        child = self._machine.children.get(ref)
        if child is None or not child.rank.alive or child.conn_id:
            return
        if child.rank.hung:
            self._agent.after(RECONNECT_S, self.connect, ref)
            return
        self._conns += 1
        child.conn_id = self._conns
        hello = RankHello(ref, child.identity.pid, child.rank.core.standing.epoch)
        pid = child.identity.pid
        self._agent.dispatch(
            ev.RankConnected(
                now_s=self._machine.now_s, conn_id=child.conn_id, hello=hello, peer=child.identity, session_pid=pid
            )
        )
        self.report(child)
        outbox, child.outbox = child.outbox, []
        for message in outbox:
            self.say(child.rank, message)
        child.said_s = -REFLUSH_S
        self._repeat(child)

    def close(self, conn_id: int) -> None:
        """The agent has closed it; the rank connects again."""
        for child in self._machine.children.values():
            if child.conn_id == conn_id:
                child.conn_id = 0
                self._agent.dispatch(ev.RankDisconnected(now_s=self._machine.now_s, conn_id=conn_id))
                self._agent.after(RECONNECT_S, self.connect, child.rank.ref)
                return

    def say(self, rank: Rank, message: FromRank) -> None:
        """A line of a rank; kept by it while it has no connection."""
        child = self._machine.children.get(rank.ref)
        if child is None or self._machine.dead:
            return
        if not child.conn_id:
            child.keep(message)
            return
        self._agent.dispatch(ev.RankMessage(now_s=self._machine.now_s, conn_id=child.conn_id, message=message))

    def report(self, child: Child) -> None:
        """Its reporter's line: where it is and since when, unless it is stopped altogether."""
        rank = child.rank
        if not rank.alive:
            self.gone(rank.ref)
        elif child.conn_id and (rank.beats or not rank.hung):
            self.say(rank, self._progress(rank))
            self._repeat(child)

    def _repeat(self, child: Child) -> None:
        """As `trainer.replica.pilot`: what was said on an earlier connection may be lost."""
        if self._kernel.now_s - child.said_s >= REFLUSH_S and self._trainer.unheard(child.rank):
            child.said_s = self._kernel.now_s

    def _progress(self, rank: Rank) -> RankProgress:
        process = self._trainer.process_of(rank)
        phase = process.phase()
        if phase in (Phase.PARKED, Phase.BUILDING):
            phase = Phase.PARKED if rank.joined else Phase.BUILDING
        if process.held_s(self._kernel.now_s) > 0.0:
            phase = Phase.SAVING
        return RankProgress(
            section=Section.SETUP if process.epoch == 0 else Section.STEP,
            phase=phase,
            phase_age_s=self._kernel.now_s - process.phase_since_s,
            section_age_s=self._kernel.now_s - process.section_since_s,
            step=process.committed,
            epoch=process.epoch,
        )

    def work(self, effect: Work) -> None:
        """On a rank, a device, a checkpoint or the link."""
        match effect:
            case fx.TakeStacks():
                self._diagnose(effect)
            case fx.Reset():
                self._agent.after(RESET_S, self._reset, effect)
            case fx.ReadCheckpoint() | fx.StopReading():
                self.reader.work(effect)
            case fx.InjectDevice():
                self._inject(effect)
            case fx.DropLink(seconds=seconds):
                self._agent.hang_up(seconds)

    def _inject(self, effect: fx.InjectDevice) -> None:
        """As the simulated probe does."""
        wanted, error = effect.fault, ""
        match wanted.fault:
            case "xid":
                self._agent.xid(wanted.device_index, int(wanted.value))
            case "off_bus":
                self._agent.lose_device(wanted.device_index)
            case _:
                error = f"no such fault here: {wanted.fault}"
        self._agent.dispatch(ev.FaultInjected(now_s=self._machine.now_s, command_id=effect.command_id, error=error))

    def _reset(self, effect: fx.Reset) -> None:
        self._machine.broken.discard(effect.wanted.device_index)
        self._agent.dispatch(ev.DeviceReset(now_s=self._machine.now_s, command_id=effect.command_id, error=""))

    def _diagnose(self, effect: fx.TakeStacks) -> None:
        """Nothing is to be seen in a rank here; what matters is that the question is answered."""
        child = self._machine.children.get(effect.ref)
        method = "simulated" if child is not None and child.rank.alive else "none"
        self._agent.dispatch(
            ev.StacksTaken(
                now_s=self._machine.now_s,
                ref=effect.ref,
                command_id=effect.command_id,
                text="",
                method=method,
                look=effect.look,
            )
        )

    def _joined(self, rank: Rank) -> None:
        child = self._machine.children.get(rank.ref)
        if child is not None:
            self.report(child)

    def hand(self, conn_id: int, message: ToRank) -> None:
        """A line for a rank, which reads its lines in their order."""
        child = next((c for c in self._machine.children.values() if c.conn_id == conn_id), None)
        if child is None:
            return
        if self._trainer.timing.word_s[1] <= 0.0:
            self._read(child, message)
            return
        due_s = self._kernel.now_s + self._kernel.between(*self._trainer.timing.word_s)
        child.reads_s = max(child.reads_s, due_s)
        self._kernel.after(child.reads_s - self._kernel.now_s, self._read, child, message)

    def _read(self, child: Child, message: ToRank) -> None:
        """One that is stopped reads it when it goes on (`Rank.unread`)."""
        match message:
            case SetView(view=view):
                self._trainer.see_view(child.rank, view)
            case InstallView(install=install):
                self._trainer.see_install(child.rank, install)
            case Evicted():
                if not child.rank.hung:
                    self._kernel.after(self._kernel.between(*SOON_S), self.end, child.rank, (LEFT, None))
            case SaveNow():
                self._trainer.save_now(child.rank, self._trainer.process_of(child.rank))
            case CarryOut(command_id=command_id):
                if not child.rank.hung:
                    self.say(child.rank, CarriedOut(command_id, True, "nothing was to be done"))
            case _:
                pass

    # --- ends -------------------------------------------------------------------------------

    def signal(self, effect: fx.Signal) -> None:
        """Only while the identity still holds. A stopped process hears nothing but SIGKILL."""
        child = self._machine.children.get(effect.ref)
        if child is None or child.identity != effect.identity:
            return
        if effect.number == SIGKILL:
            self.end(child.rank)
        elif effect.number == SIGTERM and not child.rank.hung:
            self._trainer.leave(child.rank, self._trainer.process_of(child.rank), self._left)

    def _left(self, rank: Rank) -> None:
        self.end(rank, (SAVED_AND_LEFT, None))

    def end(self, rank: Rank, how: tuple[int | None, int | None] = (None, SIGKILL)) -> None:
        """The process is gone; its agent, if there is one, hears of it in a moment."""
        child = self._machine.children.get(rank.ref)
        if child is None or not rank.alive:
            return
        child.ended = how
        self._trainer.kill(rank)
        self.soon(self.gone, rank.ref)

    def gone(self, ref: RankRef) -> None:
        """Its host has seen the end and tells it; the process is no more in the table when that is told."""
        child = self._machine.children.get(ref)
        if child is None:
            return
        now_s, (code, number) = self._machine.now_s, child.ended
        if child.conn_id:
            self._agent.dispatch(ev.RankDisconnected(now_s=now_s, conn_id=child.conn_id))
            child.conn_id = 0
        self._agent.dispatch(
            ev.RankProcessGone(now_s=now_s, ref=ref, pid=child.identity.pid, exit_code=code, signal=number, known=True)
        )

    def swept(self, ref: RankRef) -> None:
        """Nothing of it is left."""
        child = self._machine.children.get(ref)
        if child is None or not child.rank.alive:
            self._machine.children.pop(ref, None)
            self._agent.dispatch(ev.GroupGone(now_s=self._machine.now_s, ref=ref))
