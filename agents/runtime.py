"""Joins the pure core to the world: events in, effects out, one at a time.

`Agent.dispatch` is the agent's main loop: every callback of sockets, timers and processes
ends there. It never waits; what takes time runs elsewhere and comes back as an event.
"""

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from agents.commits import Committer
from agents.config import Config
from agents.core import effects as fx
from agents.core import events as ev
from agents.core import session
from agents.core.policy import Policy
from agents.core.restore import snapshot
from agents.core.state import Identity, ProcessState, State
from agents.core.step import next_deadline_s, resume, step
from agents.device_series import DeviceSeries
from agents.errors import ConfigError, JournalError, ProbeError
from agents.examine import Examiner
from agents.for_ever import for_ever
from agents.link.client import Link
from agents.link.identity import NodeIdentity
from agents.link.journal import Journal
from agents.link.spool import BACKFILL_PER_SECOND, Spool
from agents.log import note
from agents.policy_file import rules_of
from agents.probes.choose import make_sampler
from agents.probes.host import CpuMeter, rss_bytes
from agents.probes.reset import reset_device
from agents.ranks import unseen
from agents.ranks.diagnose import look_for
from agents.ranks.hosts import HostKeeper
from agents.ranks.identity import is_alive, signal_group, signal_process
from agents.ranks.logs import LogFiles, tail
from agents.ranks.places import Places
from agents.ranks.scan import LogScanner
from agents.ranks.socket import RankServer
from agents.ranks.starting import Starter
from agents.ranks.sweep import Sweeper
from agents.ranks.unseen import End, Hint
from agents.ranks.watcher import ProcessWatcher
from agents.renewal import renew_journal
from agents.verify import Verifier
from controlplane.protocol.frames import AgentFrame, AgentHello
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample, XidEvent

_DEFAULT_INTERVAL_S, _MIN_INTERVAL_S = 1.0, 0.05
_LOG_CAP_EVERY_S, _COST_EVERY_S = 60.0, 5.0


class Agent:
    """One agent: the state, and everything that touches the world for it."""

    def __init__(self, config: Config, state: State, journal: Journal) -> None:
        self._config = config
        self.state = state
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ev.Event] = deque()
        self._dispatching = self._hints_due = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._committer = Committer(journal, self.dispatch)
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_s: float | None = None
        self._frame_interval_s = self._sample_interval_s = _DEFAULT_INTERVAL_S
        self._next_sample_s = self._next_cap_s = self._next_cost_s = 0.0
        self._samples: tuple[DeviceSample, ...] = ()
        self._backfill_left = 0
        self._spool = Spool()
        self._meter = CpuMeter(time.monotonic())
        self._cost: tuple[float | None, int | None] = (None, None)
        places = Places(config.jobs_dir)
        self.logs = LogFiles(places.logs)
        self.watcher = ProcessWatcher(self._loop)
        self.hosts = HostKeeper(config.host_module, self.logs, self.watcher, self.dispatch)
        self.ranks = RankServer(self.dispatch, lambda: self.state.ranks)
        self.starter = Starter(self.policy, state_dir=config.state_dir, places=places, logs=self.logs, ranks=self.ranks)
        self.sweeper = Sweeper(self._loop, self.starter.groups, self.dispatch)
        self.device_series = DeviceSeries()
        self.sampler = make_sampler(config, self._on_samples, self._on_xid)
        self.scanner = LogScanner(self.logs, self.dispatch)
        standing = self.starter.standing
        self.examiner = Examiner(config, self.sampler, self.dispatch, standing=standing, policy=self.policy)
        self.verifier = Verifier(self.dispatch, standing)
        self.left = asyncio.Event()
        self.link: Link | None = None
        self.identity: NodeIdentity | None = None

    def dispatch(self, event: ev.Event) -> None:
        """Feed one event through the core and carry out what follows.

        Called again from within (an effect that fails at once), it only queues. An error
        of ours is logged and costs that one event: ranks are worth more than order here.
        """
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

    async def start(self, *, same_boot: bool) -> None:
        """1. Open the sockets for ranks. 2. Check every claim of the journal: hosts, then
        ranks. 3. Go on with what was under way. 4. Begin the heartbeat."""
        self.starter.reopen({*self.state.hosts, *(ref.job_id for ref in self.state.ranks)})
        for rank in self.state.ranks.values():
            self.scanner.follow(rank)
        for host in tuple(self.state.hosts.values()):
            place = self.starter.known(host.job_id)
            if host.identity is not None and place is not None and same_boot and is_alive(host.identity):
                self.hosts.adopt(host.job_id, host.identity, place)
                self.hosts.ask(host.job_id)
            else:
                self.dispatch(ev.HostProcessGone(now_s=time.monotonic(), job_id=host.job_id, exit_code=None))
        for rank in tuple(self.state.ranks.values()):
            if rank.identity is not None:
                if same_boot and is_alive(rank.identity):
                    note("rank adopted", pid=rank.identity.pid, replica=rank.ref.replica, rank=rank.ref.rank)
                    self._watch_rank(rank.ref, rank.identity)
                else:
                    hint = unseen.at_start(rank.identity, same_boot=same_boot)
                    self._rank_gone(rank.ref, rank.identity.pid, (None, None, False), hint)
            elif rank.launch.entrypoint is not None:
                self.dispatch(self.starter.find_unborn(rank.ref))
        self.state, effects = resume(self.state, time.monotonic())
        self._perform_all(effects)
        for work in (
            self._committer.run,
            self._beat_for_ever,
            self.scanner.scan_for_ever,
            self.examiner.examine_for_ever,
        ):
            self._spawn_task(for_ever(work))
        self._arm()

    async def stop(self) -> None:
        """Let go of everything; ranks and hosts live on."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._deadline is not None:
            self._deadline.cancel()
        self.ranks.close()
        self.hosts.close()
        self.watcher.close()
        self.sampler.close()
        self.verifier.close()
        try:
            self._journal.sync()
        except JournalError as error:
            note("journal not synced at the end", error=error)
        self._journal.close()

    def policy(self) -> Policy:
        """This node's rules of now."""
        return self.state.rules.policy

    def read_rules(self) -> None:
        """The policy file again, on SIGHUP; one that is wrong leaves the rules as they are."""
        try:
            rules = rules_of(self._config)
        except ConfigError as error:
            note("policy file refused, the rules stay as they are", error=error)
            return
        self.dispatch(ev.RulesRead(now_s=time.monotonic(), rules=rules))
        note("policy file read", file=self._config.policy_file)

    def hello(self) -> AgentHello:
        """First message of a session."""
        config, devices, now_s = self._config, self.sampler.devices, time.monotonic()
        return session.hello(self.state, node_name=config.name, devices=devices, now_s=now_s, segment=config.segment)

    def compose(self) -> tuple[AgentFrame, bool] | None:
        """The next frame and whether another should follow at once; None while there is no session."""
        if not self.state.link.up:
            return None
        now_s = at_s = time.monotonic()
        hints, self._hints_due = self._hints_due, False
        samples, self._samples = self._samples, ()
        if not hints and not samples and self._backfill_left > 0:
            self._backfill_left -= 1
            round_ = self._spool.take()
            if round_ is not None:
                at_s, samples = round_
        cpu_ratio, rss = self._cost if hints else (None, None)
        self.state, frame, more = session.compose(
            self.state, now_s, samples=samples, hints=hints, cpu_ratio=cpu_ratio, rss_bytes=rss
        )
        if at_s < now_s:
            frame = msgspec.structs.replace(frame, age_s=now_s - at_s)
        return frame, more or (self._backfill_left > 0 and len(self._spool) > 0)

    def _one(self, event: ev.Event) -> None:
        try:
            self.state, effects = step(self.state, event)
        except Exception:
            note("internal error", on=type(event).__name__, trace=traceback.format_exc(limit=8))
            return
        if isinstance(event, ev.LinkUp):
            self._frame_interval_s = max(event.welcome.frame_interval_s, _MIN_INTERVAL_S)
            self._sample_interval_s = max(event.welcome.sample_interval_s, _MIN_INTERVAL_S)
            self._hints_due = True
        self._perform_all(effects)

    def _perform_all(self, effects: tuple[fx.Effect, ...]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:
                note("internal error", on=type(effect).__name__, trace=traceback.format_exc(limit=8))

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(record=record):
                self._journal.append(record)
            case fx.SendSoon(within_s=within_s):
                if self.link is not None:
                    self.link.wake(within_s)
            case fx.ToConnection(conn_id=conn_id, message=message):
                self.ranks.send(conn_id, message)
            case fx.CloseConnection(conn_id=conn_id):
                self.ranks.close_connection(conn_id)
            case fx.Commit():
                self._committer.put(effect)
            case fx.Signal():
                reach = signal_group if effect.reach is fx.Reach.GROUP else signal_process
                reach(effect.identity, effect.number)
            case fx.Watch(ref=ref, identity=identity):
                self._watch_rank(ref, identity)
            case fx.SweepGroup():
                self.sweeper.sweep(effect.ref, effect.identity)
            case fx.StartHost():
                self.starter.start_host(self.hosts, effect.job_id, effect.user)
            case fx.AskHost(job_id=job_id):
                self.hosts.ask(job_id)
            case fx.ShutdownHost(job_id=job_id):
                self.hosts.shutdown(job_id)
            case fx.Fork(order=order):
                self.starter.fork(self.hosts, order)
            case fx.CheckNode():
                self._spawn_task(self.examiner.examine(effect))
            case fx.ReadMemory():
                self._read_memory()
            case fx.Spawn():
                self.dispatch(self.starter.spawn(effect))
            case fx.TakeStacks():
                self._spawn_task(self._take_stacks(effect))
            case fx.InjectDevice():
                self._inject(effect)
            case fx.Reset():
                self._spawn_task(self._reset(effect))
            case fx.ReadCheckpoint() | fx.StopReading():
                self.verifier.perform(effect)
            case fx.DropLink(seconds=seconds):
                if self.link is not None:
                    self.link.drop(seconds)
            case fx.WriteToLog(ref=ref, line=line):
                self.logs.append(ref, line)
            case fx.Leave():
                self.left.set()
            case fx.RenewJournal():
                renew_journal(self, self._journal, lambda: self._committer.busy)
            case fx.Note(event=text, fields=fields):
                note(text, **dict(fields))

    async def _beat_for_ever(self) -> None:
        """The heartbeat: sample, hint, tidy. Missed beats are not made up for."""
        due_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            self._beat(now_s)
            due_s = max(due_s + self._frame_interval_s, now_s)
            await asyncio.sleep(due_s - now_s)

    def _beat(self, now_s: float) -> None:
        if now_s >= self._next_sample_s - 0.01:
            self._next_sample_s = now_s + self._sample_interval_s
            self.sampler.ask(now_s, self._busy())
        if now_s >= self._next_cost_s:
            self._next_cost_s = now_s + _COST_EVERY_S
            self._cost = (self._meter.ratio(now_s), rss_bytes())
        if now_s >= self._next_cap_s:
            self._next_cap_s = now_s + _LOG_CAP_EVERY_S
            self._spawn_task(asyncio.to_thread(self.logs.cap))
            self.starter.tidy(self._busy_jobs())
        if self._journal.wants_compaction and not self._committer.busy:
            self._journal.compact(snapshot(self.state))
        self._hints_due = True
        self._backfill_left = BACKFILL_PER_SECOND if len(self._spool) else 0
        if self.link is not None and self.state.link.up:
            self.link.wake(self.sampler.delay_s)

    def _busy(self) -> frozenset[int]:
        return frozenset(rank.device_index for rank in self.state.ranks.values() if rank.process is ProcessState.ALIVE)

    def _busy_jobs(self) -> frozenset[str]:
        waiting = (pending.launch.job_id for pending in self.state.launches)
        return frozenset({*self.state.hosts, *waiting, *(ref.job_id for ref in self.state.ranks)})

    def _read_memory(self) -> None:
        """The samples that answer come as every other; without a device there are none."""
        if self.sampler.devices:
            self.sampler.ask(time.monotonic(), self._busy())
        else:
            self.dispatch(ev.MemoryRead(now_s=time.monotonic(), used_bytes={}))

    def _on_samples(self, samples: tuple[DeviceSample, ...]) -> None:
        now_s = time.monotonic()
        self.device_series.sampled(now_s, samples, self.sampler.devices)
        if self.state.link.up:
            self._samples = samples
        else:
            self._spool.put(now_s, samples)
        known = {info.index: info.uuid for info in self.sampler.devices}
        uuids = tuple(known.get(index, "") for index in range(max(known, default=-1) + 1))
        if not self.state.link.up or {s.index for s in samples if not s.present} != self.state.absent_devices:
            self.dispatch(ev.DevicesSampled(now_s=now_s, samples=samples, uuids=uuids))
        if any(pending.emptying is not None for pending in self.state.launches):
            self.dispatch(ev.MemoryRead(now_s=now_s, used_bytes={s.index: s.memory_used_bytes for s in samples}))

    def _on_xid(self, xid: XidEvent) -> None:
        self.device_series.xid(xid)
        self.dispatch(ev.XidRaised(now_s=time.monotonic(), xid=xid))

    def _inject(self, effect: fx.InjectDevice) -> None:
        error = ""
        try:
            self.sampler.inject(effect.fault)
        except ProbeError as raised:
            error = str(raised)
        self.dispatch(ev.FaultInjected(now_s=time.monotonic(), command_id=effect.command_id, error=error))
        self._spawn_task(self.examiner.check())

    async def _reset(self, effect: fx.Reset) -> None:
        error = await reset_device(self.sampler, effect.wanted)
        self.dispatch(ev.DeviceReset(now_s=time.monotonic(), command_id=effect.command_id, error=error))
        self._spawn_task(self.examiner.check())

    def _watch_rank(self, ref: RankRef, identity: Identity) -> None:
        rank, pid = self.state.ranks.get(ref), identity.pid
        self.scanner.follow(rank)
        oom = self.starter.adopt(rank, pid)
        self.watcher.watch(identity, lambda *end: self._rank_gone(ref, pid, end, unseen.of_end(identity, end[1], oom)))

    def _rank_gone(self, ref: RankRef, pid: int, end: End, hint: Hint) -> None:
        self.scanner.finish(ref)
        code, number, known = end
        self.dispatch(
            ev.RankProcessGone(
                now_s=time.monotonic(), ref=ref, pid=pid, exit_code=code, signal=number, known=known,
                log_tail=tail(self.logs.rank(ref)), cause=hint.cause, hint=hint.words,
            )
        )  # fmt: skip

    async def _take_stacks(self, effect: fx.TakeStacks) -> None:
        debug_servers = self.starter.debug_servers(effect.ref.job_id)
        self.dispatch(await asyncio.to_thread(look_for, effect, self.logs.rank(effect.ref), debug_servers))

    def _arm(self) -> None:
        """One timer, for the next moment at which the core has something to do."""
        due_s = next_deadline_s(self.state)
        if due_s == self._deadline_s and self._deadline is not None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_s = due_s
        if due_s is not None:
            self._deadline = self._loop.call_later(max(due_s - time.monotonic(), 0.0), self._tick)

    def _tick(self) -> None:
        self._deadline = None
        self.dispatch(ev.Tick(now_s=time.monotonic()))

    def _spawn_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            note("internal error", on=str(task.get_coro()), trace=str(task.exception()))
