"""A node of the simulator: `agents.core` itself, and a small interpreter of its effects.

`agents.runtime` is the product's. Here a journal is a list, a process a table's entry, a socket a call, and time the
kernel's. A run of the agent ends with a restart between any two effects or with the machine's power; ranks
outlive it, and say then what they had to say meanwhile.
"""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from agents.core import effects as fx
from agents.core import events as ev
from agents.core import session
from agents.core.restore import restore, snapshot
from agents.core.state import Rank as Known
from agents.core.state import State
from agents.core.step import next_deadline_s, resume, step
from controlplane.protocol.frames import Acked, AgentFrame, AgentHello, Welcome
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample, XidEvent
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.children import HOST_IMPORTS_S, WORK, Children
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.machine import Machine
from controlplane.simulator.process import Rank
from controlplane.simulator.rows import Order
from controlplane.simulator.running import Running
from controlplane.simulator.trainers import Trainers

FRAME_INTERVAL_S = 1.0
LINK_DEAD_S = 20.0
RECONNECT_S = 1.0
SYNC_S = (0.002, 0.02)
AFTER_TIMERS_S = 0.01

Uplink = Callable[[str, int, AgentHello | AgentFrame], None]
Down = Order | Acked | Welcome


class Agent:
    """One node and its agent. `uplink` sends to the server under the number of a session."""

    def __init__(self, node: str, kernel: Kernel, trainer: Trainers, checkers: Checkers, uplink: Uplink) -> None:
        self.node = node
        self.machine = Machine(node, kernel)
        self.children = Children(self.machine, kernel, trainer, checkers, self)
        self.on_effect: Callable[[fx.Effect], None] | None = None
        self._kernel, self._trainer, self._uplink = kernel, trainer, uplink
        self._running: Running | None = None
        self._starts = self._session = self._journals = 0
        self._queue: deque[ev.Event] = deque()
        self._busy = self._send_due = self._send_later = False
        self._commits: list[fx.Commit] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Agent":
        """The state never changes in place: both worlds may hold the same."""
        other = object.__new__(Agent)
        memo[id(self)] = other
        if self._running is not None:
            memo[id(self._running.state)] = self._running.state
        for name, value in self.__dict__.items():
            setattr(other, name, deepcopy(value, memo))
        return other

    @property
    def dead(self) -> bool:
        """Without power."""
        return self.machine.dead

    # --- one run -------------------------------------------------------------------------

    def start(self) -> None:
        """A run begins: the journal is read, its claims are checked, what was under way goes on."""
        machine, now_s = self.machine, self.machine.now_s
        self._starts += 1
        self._journals += 1
        fresh = f"{self.node}-jrn-{self._journals}"
        state = restore(machine.disk.written, boot_id=machine.boot_id, fresh_journal_id=fresh, now_s=now_s)
        same_boot = state.journal_id != fresh
        self._running = Running(state, heard_s=now_s)
        self._queue, self._commits = deque(), []
        self._send_due = self._send_later = False
        machine.disk.compact(snapshot(state))
        self._check_claims(state, same_boot=same_boot)
        if self._running is None:
            return
        self._running.state, effects = resume(self._running.state, now_s)
        self._perform_all(effects)
        self._dispatch_all()
        for ref in machine.children:
            self.children.soon(self.children.connect, ref)
        if machine.lost:
            self._devices_read()
        for index, xid in machine.unread_xids:
            self.dispatch(ev.XidRaised(now_s=now_s, xid=XidEvent(index=index, xid=xid)))
        machine.unread_xids = []
        self._session += 1
        first_s = self._kernel.between(0.0, FRAME_INTERVAL_S)
        self.after(first_s, self._beat)
        self.after(first_s, self._knock, self._session)

    def _check_claims(self, state: State, *, same_boot: bool) -> None:
        machine, now_s = self.machine, self.machine.now_s
        for host in tuple(state.hosts.values()):
            if same_boot and host.identity is not None and machine.hosts.get(host.job_id) == host.identity:
                self.after(HOST_IMPORTS_S, self.children.ask_host, host.job_id)
            else:
                self.dispatch(ev.HostProcessGone(now_s=now_s, job_id=host.job_id, exit_code=None))
        for rank in tuple(state.ranks.values()):
            child = machine.children.get(rank.ref)
            if rank.identity is None or (child is not None and child.identity == rank.identity and child.rank.alive):
                continue
            gone = ev.RankProcessGone(
                now_s=now_s, ref=rank.ref, pid=rank.identity.pid, exit_code=None, signal=None, known=False
            )
            self.dispatch(gone)

    def stop(self, away_s: float) -> None:
        """The agent alone is gone, and back after a while."""
        if self._running is None:
            return
        self._die()
        self._kernel.after(away_s, self._back, self._starts)

    def _back(self, start: int) -> None:
        if self._running is None and start == self._starts and not self.dead:
            self._kernel.log("agent", f"{self.node} is started again")
            self.start()

    def _die(self) -> None:
        self._running, self.on_effect = None, None
        self._queue.clear()
        self.machine.disk.let_go()
        for child in self.machine.children.values():
            child.conn_id = 0

    # --- events in, effects out ------------------------------------------------------------

    def dispatch(self, event: ev.Event) -> None:
        """As `agents.runtime.Agent.dispatch`: called again from within, it only queues."""
        if self._running is None:
            return
        if self._running.holds(event, self._kernel.now_s):
            return
        self._queue.append(event)
        self._dispatch_all()

    def _dispatch_all(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue and self._running is not None:
                self._running.state, effects = step(self._running.state, self._queue.popleft())
                self._perform_all(effects)
        finally:
            self._busy = False
        if self._running is None:
            return
        if self._send_due and self._running.state.link.up:
            self._send(hints=False)
        self._arm(self._running)

    def _perform_all(self, effects: tuple[fx.Effect, ...]) -> None:
        for effect in effects:
            if self._running is None:
                return
            self._perform(effect)
            if self.on_effect is not None:
                self.on_effect(effect)

    def hang_up(self, for_s: float = 0.0) -> None:
        """Its connection to the server is gone, and it seeks another so much later."""
        if self._running is not None and self._running.state.link.up:
            self._reconnect(for_s)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(record=record):
                self.machine.disk.append(record)
            case fx.SendSoon(within_s=within_s):
                self._send_soon(within_s)
            case fx.ToConnection(conn_id=conn_id, message=message):
                self.children.hand(conn_id, message)
            case fx.CloseConnection(conn_id=conn_id):
                self.children.soon(self.children.close, conn_id)
            case fx.Commit():
                self._commit(effect)
            case fx.Signal():
                self.children.signal(effect)
            case fx.Watch() | fx.Note() | fx.WriteToLog():
                pass
            case fx.SweepGroup(ref=ref):
                self.children.soon(self.children.swept, ref)
            case fx.StartHost() | fx.AskHost() | fx.ShutdownHost():
                self.children.soon(self.children.to_host, effect)
            case fx.Fork(order=order):
                self.children.soon(self.children.fork, order.ref)
            case fx.CheckNode(command_id=command_id):
                self.children.soon(self.children.read_node, command_id)
            case fx.ReadMemory():
                self.children.soon(self.children.read_memory)
            case _ if isinstance(effect, WORK):
                self.children.soon(self.children.work, effect)
            case fx.RenewJournal():
                self.after(0.0, self._renew)
            case _:
                raise NotImplementedError(f"the simulator's nodes do not carry out {type(effect).__name__}")

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Later, if this run of the agent goes on."""
        self._kernel.after(delay_s, self._if_alive, self._starts, call, args)

    def _if_alive(self, start: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._running is None or start != self._starts:
            return
        left_s = self._running.still_until_s - self._kernel.now_s
        if left_s > 0.0:
            self._kernel.after(left_s, self._if_alive, start, call, args)
            return
        call(*args)

    def stand_still(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: its timers are due then, and what waits is read after them."""
        if self._running is not None:
            self._running.still_until_s = max(self._running.still_until_s, self._kernel.now_s + seconds)
            self.after(seconds + AFTER_TIMERS_S, self._read_held)

    def _read_held(self) -> None:
        for event in self._running.read(self.machine.now_s) if self._running is not None else ():
            self.dispatch(event)

    def known(self, ref: RankRef) -> Known | None:
        """The rank in the state."""
        return self._running.state.ranks.get(ref) if self._running is not None else None

    def _arm(self, running: Running) -> None:
        if running.state is running.armed and running.timer_s is not None:
            return
        running.armed = running.state
        due_s = next_deadline_s(running.state)
        if due_s is None or running.is_set(due_s, self.machine.now_s):
            return
        running.timer_s = due_s
        self.after(max(due_s - self.machine.now_s, 0.0) + 0.001, self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if self._running is None or self._running.timer_s != due_s:
            return
        self._running.timer_s = None
        now_due_s = next_deadline_s(self._running.state)
        if now_due_s is not None and now_due_s <= self.machine.now_s:
            self.dispatch(ev.Tick(now_s=self.machine.now_s))
        else:
            self._arm(self._running)

    # --- the journal ------------------------------------------------------------------------
    def _commit(self, commit: fx.Commit) -> None:
        """As `agents.commits`: what needs no sync goes at once if nobody is waiting for one."""
        if not commit.durable and not self._commits:
            self._journaled(commit, self.machine.disk.error)
            return
        self._commits.append(commit)
        if len(self._commits) == 1:
            self.after(self._kernel.between(*SYNC_S), self._synced)

    def _synced(self) -> None:
        error = self.machine.disk.sync()
        commits, self._commits = self._commits, []
        for commit in commits:
            self._journaled(commit, error)

    def _journaled(self, commit: fx.Commit, error: str) -> None:
        self.dispatch(ev.Journaled(now_s=self.machine.now_s, command_ids=commit.command_ids, error=error))

    def _renew(self) -> None:
        if self._running is None:
            return
        self._journals += 1
        journal_id = f"{self.node}-jrn-{self._journals}"
        self.dispatch(ev.JournalRenewed(now_s=self.machine.now_s, journal_id=journal_id))
        self.machine.disk.compact(snapshot(self._running.state))
        self._reconnect()

    # --- the link ---------------------------------------------------------------------------

    def _beat(self) -> None:
        """What the ranks' reporters say, then the frame that has it."""
        for child in tuple(self.machine.children.values()):
            self.children.report(child)
        running = self._running
        if running is None:
            return
        if self.machine.disk.wants_compaction and not self._commits:
            self.machine.disk.compact(snapshot(running.state))
        if running.state.link.up:
            self._send(hints=True)
            if self.machine.now_s - running.heard_s > LINK_DEAD_S:
                self._reconnect()
        self.after(FRAME_INTERVAL_S, self._beat)

    def _reconnect(self, after_s: float = 0.0) -> None:
        self.dispatch(ev.LinkDown(now_s=self.machine.now_s))
        self._session += 1
        self.after(after_s, self._knock, self._session)

    def _knock(self, number: int) -> None:
        """A hello, until it is answered."""
        running = self._running
        if running is None or number != self._session or running.state.link.up:
            return
        hello = session.hello(running.state, node_name=self.node, devices=(), now_s=self.machine.now_s)
        self._uplink(self.node, number, hello)
        self.after(RECONNECT_S, self._knock, number)

    def _send_soon(self, within_s: float) -> None:
        if within_s <= 0.0:
            self._send_due = True
        elif not self._send_later:
            self._send_later = True
            self.after(within_s, self._send_now)

    def _send_now(self) -> None:
        self._send_later = False
        if self._running is not None and self._running.state.link.up:
            self._send(hints=False)

    def _send(self, *, hints: bool) -> None:
        """The next frame. What is not acknowledged goes along: this network loses single messages, and TCP would
        send them again."""
        running = self._running
        assert running is not None, "only a living agent sends"
        self._send_due = False
        state = session.unacknowledged(running.state)
        running.state, frame, _ = session.compose(state, self.machine.now_s, hints=hints)
        self._uplink(self.node, self._session, frame)

    def receive(self, message: tuple[int, Down]) -> None:
        """What the server sent to this session; repeats and late arrivals included."""
        number, body = message
        if self._running is None or number != self._session:
            return
        now_s = self.machine.now_s
        self._running.heard_s = now_s
        match body:
            case Welcome():
                if not self._running.state.link.up:
                    self.dispatch(ev.LinkUp(now_s=now_s, welcome=body))
            case Acked(seq=seq, resend=resend):
                self.dispatch(ev.ServerAcked(now_s=now_s, seq=seq, resend=resend))
            case Order(commands=commands):
                if self._running.state.link.up:
                    self.dispatch(ev.OrderReceived(now_s=now_s, commands=commands))

    # --- what the node reads of itself --------------------------------------------------------

    def _devices_read(self) -> None:
        lost = self.machine.lost
        samples = tuple(DeviceSample(index=index, present=False) for index in sorted(lost))
        uuids = tuple(f"{self.node}-{index}" for index in range(max(lost, default=-1) + 1))
        self.dispatch(ev.DevicesSampled(now_s=self.machine.now_s, samples=samples, uuids=uuids))

    # --- ranks and faults ---------------------------------------------------------------------

    def end(self, rank: Rank) -> None:
        """SIGKILL from outside."""
        self.children.end(rank)

    def crash(self) -> None:
        """Power loss: every process and the agent vanish without a word."""
        self._die()
        self.machine.lose_power(lambda rank: self._trainer.kill(rank, quiet=True))

    def reboot(self, *, disk_kept: bool = False) -> None:
        """Power again; with an empty disk, or what was on it."""
        if self.dead:
            self.machine.power_on(disk_kept=disk_kept)
            self.start()

    def xid(self, device: int, xid: int) -> None:
        """The driver reports an XID; a fatal one takes the process on the device with it."""
        if self._running is None:
            self.machine.unread_xids.append((device, xid))
        else:
            self.dispatch(ev.XidRaised(now_s=self.machine.now_s, xid=XidEvent(index=device, xid=xid)))
        self._end_on(device)

    def lose_device(self, device: int) -> None:
        """The device falls off the bus."""
        self.machine.lost.add(device)
        self._devices_read()
        self._end_on(device)

    def _end_on(self, device: int) -> None:
        self.machine.broken.add(device)
        child = self.machine.on(device)
        if child is not None:
            self.end(child.rank)
