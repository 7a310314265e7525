"""One agent of a load test: `agents.core` and `agents.link` themselves, on a node that has no processes.

Whatever is said to the server is the product's own: keys, proof, hello, sequence numbers, what is sent again, how
long to stay away after a refusal, answers to commands. What a node would do for it is answered here at once: its
journal is the state, a reset succeeds, a start of ranks fails with the reason. A real agent differs in that it keeps
its journal on a disk and asks drivers for its readings.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

import msgspec

from agents.core import effects as fx
from agents.core import events as ev
from agents.core import session
from agents.core.state import State
from agents.core.step import next_deadline_s, step
from agents.link.client import Link
from agents.link.server import Server
from agents.link.spool import BACKFILL_PER_SECOND, MAX_ROUNDS
from controlplane.bench.identity import HeldIdentity
from controlplane.bench.readings import Readings, Round
from controlplane.bench.script import Act, Kind
from controlplane.bench.tally import Reset, Tally, Xid
from controlplane.protocol.commands import ResetDevice
from controlplane.protocol.frames import AgentFrame, AgentHello
from controlplane.protocol.samples import XidEvent

NO_PROCESSES = "this node is of a load test: it starts no processes"
COST = (0.004, 40 << 20)
"""Of an agent's own processor and memory, as every real one says."""


@dataclass(frozen=True, slots=True)
class Node:
    """`number` in the fleet; `boot_id` and `journal_id` are of this run."""

    number: int
    name: str
    boot_id: str
    journal_id: str


class Agent:
    """One agent. `tally` counts for it and for others."""

    def __init__(self, node: Node, identity: HeldIdentity, server: Server, readings: Readings, tally: Tally) -> None:
        self.node = node
        now_s = time.monotonic()
        self.state = State(started_s=now_s, boot_id=node.boot_id, journal_id=node.journal_id)
        self.devices = readings.infos(node.name)
        self.interval_s = readings.interval_s
        self.heated = False
        self._readings, self._tally = readings, tally
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ev.Event] = deque()
        self._dispatching = self._hints_due = False
        self._planned_s: float | None = None
        self._sample: Round = ()
        self._spool: deque[tuple[float, int]] = deque(maxlen=MAX_ROUNDS)
        self._backfill_left = self._beats = self._journals = 0
        self._silent_until_s = 0.0
        self._waiting: deque[tuple[int, float, bool]] = deque()
        self._resets_due: dict[int, float] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_s: float | None = None
        self.link = Link(
            server,
            identity=identity,
            hello=self.hello,
            compose=self.compose,
            dispatch=self.dispatch,
            note=self._note,
            jitter=tally.jitter.random,
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """It has a session."""
        return self.state.link.up

    def start(self) -> None:
        """Connect, and again whenever a session ends. A node's checks are read once, as at each start of an agent."""
        self.dispatch(ev.NodeRead(now_s=time.monotonic(), failed=()))
        self._task = self._loop.create_task(self.link.run())

    async def stop(self) -> None:
        """For good."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def beat(self, planned_s: float) -> None:
        """Its heartbeat is due since `planned_s`. As `agents.runtime`: without a session readings are kept, and
        sent afterwards."""
        now_s = time.monotonic()
        self._beats += 1
        if now_s < self._silent_until_s:
            self._tally.silent += 1
            return
        if not self.state.link.up:
            self._tally.away += 1
            self._spool.append((now_s, self._beats))
            return
        if self._planned_s is None:
            self._planned_s = planned_s
        else:
            self._tally.held += 1
        self._sample = self._readings.of(self.node.number, self._beats, heated=self.heated)
        self._hints_due = True
        self._backfill_left = BACKFILL_PER_SECOND if self._spool else 0
        self.link.wake()

    def act(self, act: Act) -> None:
        """A fault of the script."""
        now_s = time.monotonic()
        match act.kind:
            case Kind.XID:
                xid = int(act.value)
                self._tally.xids.append(Xid(self.node.name, act.device, xid))
                self._resets_due[act.device] = now_s
                detail = f"a load test's XID {xid}"
                self.dispatch(ev.XidRaised(now_s=now_s, xid=XidEvent(index=act.device, xid=xid, detail=detail)))
            case Kind.HEAT:
                self.heated = True
            case Kind.SILENCE:
                self._silent_until_s = now_s + act.value
            case Kind.DROP:
                if self.up:
                    self.link.drop(0.0)
            case Kind.HOSTILE:
                pass

    def hello(self) -> AgentHello:
        """First message of a session."""
        return session.hello(self.state, node_name=self.node.name, devices=self.devices, now_s=time.monotonic())

    def compose(self) -> tuple[AgentFrame, bool] | None:
        """As `agents.runtime.Agent.compose`."""
        now_s = at_s = time.monotonic()
        if not self.state.link.up or now_s < self._silent_until_s:
            return None
        hints, self._hints_due = self._hints_due, False
        planned_s, self._planned_s = self._planned_s, None
        samples, self._sample = self._sample, ()
        if planned_s is not None:
            self._tally.lateness.add(max(now_s - planned_s, 0.0))
        if not hints and not samples and self._backfill_left > 0 and self._spool:
            self._backfill_left -= 1
            at_s, beat = self._spool.popleft()
            samples = self._readings.of(self.node.number, beat)
            self._tally.backfilled += 1
        cpu_ratio, rss_bytes = COST if hints else (None, None)
        self.state, frame, more = session.compose(
            self.state, now_s, samples=samples, hints=hints, cpu_ratio=cpu_ratio, rss_bytes=rss_bytes
        )
        if at_s < now_s:
            frame = msgspec.structs.replace(frame, age_s=now_s - at_s)
        self._tally.frames += 1
        self._arm()
        return frame, more or (self._backfill_left > 0 and len(self._spool) > 0)

    def dispatch(self, event: ev.Event) -> None:
        """As `agents.runtime.Agent.dispatch`: called again from within, it only queues."""
        self._queue.append(event)
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._queue:
                self._one(self._queue.popleft())
        finally:
            self._dispatching = False
        self._arm()

    def _one(self, event: ev.Event) -> None:
        first_seq = self.state.next_seq
        if isinstance(event, ev.OrderReceived):
            self._commanded(event)
        self.state, effects = step(self.state, event)
        is_xid = isinstance(event, ev.XidRaised)
        for seq in range(first_seq, self.state.next_seq):
            self._tally.events += 1
            self._waiting.append((seq, event.now_s, is_xid))
        if isinstance(event, ev.LinkUp):
            self._linked(event)
        if isinstance(event, ev.ServerAcked | ev.LinkUp):
            self._acknowledged(event.now_s)
        for effect in effects:
            self._perform(effect)

    def _linked(self, event: ev.LinkUp) -> None:
        self.interval_s = event.welcome.frame_interval_s
        self._hints_due = True
        tally = self._tally
        if tally.watched_s is not None:
            tally.back_s.setdefault(self.node.number, event.now_s - tally.watched_s)

    def _acknowledged(self, now_s: float) -> None:
        stored = (self.state.events[0].seq if self.state.events else self.state.next_seq) - 1
        while self._waiting and self._waiting[0][0] <= stored:
            _, at_s, is_xid = self._waiting.popleft()
            self._tally.acknowledged.add(now_s - at_s)
            if is_xid:
                self._tally.xids_acknowledged_s.append(now_s - at_s)

    def _commanded(self, event: ev.OrderReceived) -> None:
        for envelope in event.commands:
            if envelope.command_id in self.state.commands:
                continue
            self._tally.commands += 1
            body = envelope.body
            since_s = self._resets_due.pop(body.device_index, None) if isinstance(body, ResetDevice) else None
            if since_s is not None and isinstance(body, ResetDevice):
                self._tally.resets.append(Reset(self.node.name, body.device_index, event.now_s - since_s))

    def _perform(self, effect: fx.Effect) -> None:
        now_s = time.monotonic()
        match effect:
            case fx.SendSoon(within_s=within_s):
                self.link.wake(within_s)
            case fx.Commit(command_ids=command_ids):
                self.dispatch(ev.Journaled(now_s=now_s, command_ids=command_ids))
            case fx.Reset(command_id=command_id):
                self.dispatch(ev.DeviceReset(now_s=now_s, command_id=command_id, error=""))
            case fx.InjectDevice(command_id=command_id):
                self.dispatch(ev.FaultInjected(now_s=now_s, command_id=command_id, error=NO_PROCESSES))
            case fx.CheckNode(command_id=command_id):
                self.dispatch(ev.NodeRead(now_s=now_s, failed=(), command_id=command_id))
            case fx.ReadMemory():
                self.dispatch(ev.MemoryRead(now_s=now_s, used_bytes={}))
            case fx.StartHost(job_id=job_id):
                self.dispatch(ev.HostStartFailed(now_s=now_s, job_id=job_id, error=NO_PROCESSES))
            case fx.Spawn(ref=ref):
                self.dispatch(ev.RankSpawnFailed(now_s=now_s, ref=ref, error=NO_PROCESSES))
            case fx.TakeStacks(ref=ref, command_id=command_id, look=kind):
                taken = ev.StacksTaken(
                    now_s=now_s, ref=ref, command_id=command_id, text=NO_PROCESSES, method="none", look=kind
                )
                self.dispatch(taken)
            case fx.ReadCheckpoint(command_id=command_id):
                self.dispatch(ev.CheckpointRead(now_s=now_s, command_id=command_id, error=NO_PROCESSES))
            case fx.DropLink(seconds=seconds):
                self.link.drop(seconds)
            case fx.RenewJournal():
                self._loop.call_soon(self._renew)
            case fx.Note(event=text):
                self._tally.notes[text] += 1
            case _:
                # Persist: the state is the journal. All else is of processes, which there are none of.
                pass

    def _renew(self) -> None:
        was_up = self.state.link.up
        self._journals += 1
        self._waiting.clear()
        journal_id = f"{self.node.journal_id}-{self._journals}"
        self.dispatch(ev.JournalRenewed(now_s=time.monotonic(), journal_id=journal_id))
        if was_up:
            self.link.drop(0.0)

    def _note(self, text: str, **fields: object) -> None:
        if "code" in fields:
            self._tally.refused[str(fields["code"])] += 1
        else:
            self._tally.notes[text] += 1

    def _arm(self) -> None:
        due_s = next_deadline_s(self.state)
        if due_s == self._deadline_s:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_s = due_s
        if due_s is not None:
            self._deadline = self._loop.call_later(max(due_s - time.monotonic(), 0.0), self._tick)

    def _tick(self) -> None:
        self._deadline, self._deadline_s = None, None
        self.dispatch(ev.Tick(now_s=time.monotonic()))
