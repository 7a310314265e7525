"""A node in values: hosts, processes, a disk and a server, driven by a tape of numbers.

The real core decides; this world carries its effects out in any order the tape asks for,
repeats and reorders orders, loses frames, and kills the agent at any point, after which
the state is restored from the records that were written.
"""

from collections.abc import Callable

from agents.core import effects as fx
from agents.core import events as ev
from agents.core.limits import MEMORY_WAIT_S
from agents.core.policy import Policy
from agents.core.records import Record
from agents.core.restore import restore, snapshot
from agents.core.session import compose
from agents.core.state import Identity, ProcessState, State
from agents.core.step import resume, step
from agents.ranks.launch import Standing
from controlplane.protocol.commands import CommandEnvelope, StartRanks, StopRanks
from controlplane.protocol.frames import AgentEvent, CommandAnswer, Welcome
from controlplane.protocol.launch import RankPlacement, RankRef, ReplicaLaunch, TrainerConfig
from controlplane.protocol.rank import RankForked
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training

OURS = {"standing": lambda owner: Standing(), "policy": Policy}
"""What an examiner is told where ranks run as the agent does."""
NODE, BOOT = "node_01", "boot-1"
CONFIG = TrainerConfig(
    model=Model(),
    parallelism=Parallelism(),
    training=Training(),
    checkpoint=Checkpoint(),
    checkpoint_dir="/checkpoints/job",
    replicas=2,
    store="127.0.0.1:1",
)
FINAL = ("succeeded", "failed", "superseded")


def launch(
    replica: int = 0, incarnation: int = 1, attempt: int = 1, epoch: int = 1, *, entrypoint: bool = False
) -> ReplicaLaunch:
    return ReplicaLaunch(
        job_id="job_1",
        job_name="demo",
        attempt=attempt,
        epoch=epoch,
        replica=replica,
        incarnation=incarnation,
        world_size=2,
        ranks=(RankPlacement(0, 0), RankPlacement(1, 1)),
        config=CONFIG,
        entrypoint=("prog",) if entrypoint else None,
    )


def order(number: int, body: StartRanks | StopRanks, epoch: int, attempt: int) -> CommandEnvelope:
    return CommandEnvelope(
        command_id=f"cmd_{number}",
        node_id=NODE,
        epoch=epoch,
        age_s=0.0,
        ttl_s=60.0,
        body=body,
        job_id="job_1",
        attempt=attempt,
    )


class World:
    """What is true of the node, whatever its agent believes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.disk: list[Record] = []
        self.alive: dict[RankRef, int] = {}
        self.forked: list[RankRef] = []
        self.exits: dict[RankRef, int] = {}
        self.host_alive = False
        self.used_bytes: dict[int, int | None] = {}
        self.driver_hangs = False
        self.pending: list[Callable[[], ev.Event | None]] = []
        self.next_pid = 1000
        self.received: list[AgentEvent] = []
        self.acked = 0
        self.state = self._restored()

    def feed(self, event: ev.Event) -> None:
        self.state, effects = step(self.state, event)
        self._carry_out(effects)
        waits = [p.emptying for p in self.state.launches if p.emptying is not None and not p.emptying.done]
        longest_s = max((self.now_s - wait.since_s for wait in waits), default=0.0)
        assert not isinstance(event, ev.Tick) or longest_s < MEMORY_WAIT_S, "it waits for memory for ever"

    def restart_agent(self) -> None:
        """SIGKILL and start again: what was not on disk never happened; processes live."""
        self.pending.clear()
        self.state = self._restored()
        self.disk = list(snapshot(self.state))
        for job_id in tuple(self.state.hosts):
            if self.host_alive:
                forked = tuple(RankForked(ref, pid, pid) for ref, pid in self.alive.items())
                self._later(lambda job_id=job_id: ev.HostReadied(now_s=self.now_s, job_id=job_id, import_s=0.1))
                for ref, code in self.exits.items():
                    self._later(lambda ref=ref, code=code: self._gone(ref, None, code))
                self._later(lambda job_id=job_id, f=forked: ev.HostListed(now_s=self.now_s, job_id=job_id, ranks=f))
            else:
                self.feed(ev.HostProcessGone(now_s=self.now_s, job_id=job_id, exit_code=None))
        for rank in tuple(self.state.ranks.values()):
            if rank.identity is not None and rank.ref not in self.alive:
                self.feed(self._gone(rank.ref, rank.identity.pid, None, known=False))
        self.state, effects = resume(self.state, self.now_s)
        self._carry_out(effects)
        self.connect()

    def connect(self) -> None:
        welcome = Welcome(
            protocol=1,
            node_id=NODE,
            session_id="s",
            acked_seq=self.acked,
            frame_interval_s=1.0,
            sample_interval_s=1.0,
        )
        self.feed(ev.LinkUp(now_s=self.now_s, welcome=welcome))

    def send_frame(self, *, lost: bool) -> None:
        if not self.state.link.up:
            return
        self.state, frame, _ = compose(self.state, self.now_s)
        if lost:
            self.feed(ev.LinkDown(now_s=self.now_s))
            self.connect()
            return
        for event in frame.events:
            assert event.seq <= self.acked + 1, "a gap: the agent skipped an event"
            if event.seq == self.acked + 1:
                self.received.append(event)
                self.acked = event.seq
        self.feed(ev.ServerAcked(now_s=self.now_s, seq=self.acked, resend=False))

    def kill_rank(self, ref: RankRef, code: int = 137) -> None:
        pid = self.alive.pop(ref, None)
        if pid is not None:
            self.exits[ref] = code
            self._later(lambda: self._gone(ref, pid, code))

    def deliver(self, index: int) -> None:
        if self.pending:
            event = self.pending.pop(index % len(self.pending))()
            if event is not None:
                self.feed(event)

    def settle(self) -> None:
        """No more faults: everything pending happens, time passes, frames arrive."""
        for _ in range(400):
            while self.pending:
                self.deliver(0)
            self.now_s += 7.0
            self.feed(ev.Tick(now_s=self.now_s))
            self.send_frame(lost=False)
            idle = not self.pending and not self.state.launches and not self.state.stops
            if idle and not self.state.events:
                return
        raise AssertionError("the node does not come to rest")

    def answers(self, command_id: str) -> list[CommandAnswer]:
        return [
            event.body
            for event in self.received
            if isinstance(event.body, CommandAnswer)
            and event.body.command_id == command_id
            and event.body.state in FINAL
        ]

    def _restored(self) -> State:
        state = restore(self.disk, boot_id=BOOT, fresh_journal_id="jrn_1", now_s=self.now_s)
        if not self.disk:
            self.disk = list(snapshot(state))
            state = restore(self.disk, boot_id=BOOT, fresh_journal_id="x", now_s=self.now_s)
        return state

    def _later(self, outcome: Callable[[], ev.Event | None]) -> None:
        self.pending.append(outcome)

    def _gone(self, ref: RankRef, pid: int | None, code: int | None, *, known: bool = True) -> ev.RankProcessGone:
        return ev.RankProcessGone(now_s=self.now_s, ref=ref, pid=pid, exit_code=code, signal=None, known=known)

    def _carry_out(self, effects: tuple[fx.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case fx.Persist(record=record):
                    self.disk.append(record)
                case fx.Commit(command_ids=ids):
                    self._later(lambda ids=ids: ev.Journaled(now_s=self.now_s, command_ids=ids))
                case fx.StartHost(job_id=job_id):
                    self.host_alive = True
                    identity = Identity(500, 500)
                    self.feed(ev.HostStarted(now_s=self.now_s, job_id=job_id, identity=identity))
                    self._later(lambda job_id=job_id: ev.HostReadied(now_s=self.now_s, job_id=job_id, import_s=0.1))
                case fx.CheckNode(command_id=command_id):
                    self._later(lambda c=command_id: ev.NodeRead(now_s=self.now_s, failed=(), command_id=c))
                case fx.ReadMemory():
                    self._later(self._memory)
                case fx.Fork(order=order):
                    self._later(lambda ref=order.ref: self._fork(ref))
                case fx.Spawn(ref=ref):
                    self._later(lambda ref=ref: self._fork(ref))
                case fx.Signal(ref=ref, identity=identity, number=9):
                    if self.alive.get(ref) == identity.pid:
                        self.kill_rank(ref)
                case fx.SweepGroup(ref=ref):
                    self._later(lambda ref=ref: ev.GroupGone(now_s=self.now_s, ref=ref))
                case _:
                    continue

    def _memory(self) -> ev.Event | None:
        return None if self.driver_hangs else ev.MemoryRead(now_s=self.now_s, used_bytes=dict(self.used_bytes))

    def _fork(self, ref: RankRef) -> ev.Event:
        """The process exists from here on: this is where a double life would begin."""
        others = [o for o in self.alive if (o.job_id, o.replica) == (ref.job_id, ref.replica) and o.rank == ref.rank]
        assert not others, f"two live incarnations: {others} and {ref}"
        assert ref not in self.forked, f"{ref} was started twice"
        older = [o for o in self.alive if o.attempt < ref.attempt]
        assert not older, f"ranks of an older attempt live: {older}"
        self.next_pid += 1
        self.alive[ref] = self.next_pid
        self.forked.append(ref)
        identity = Identity(self.next_pid, self.next_pid)
        return ev.RankForkedHere(now_s=self.now_s, ref=ref, identity=identity, took_s=0.0)


def living(state: State) -> set[RankRef]:
    return {rank.ref for rank in state.ranks.values() if rank.process is ProcessState.ALIVE}
