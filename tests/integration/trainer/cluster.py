"""A node and a control plane in one process, for real trainers: the store, a rank host,
real forks, real sockets, and a membership authority around the policy's own arithmetic.
Longer than 400 lines because a test drives all of its parts as one thing."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from controlplane.policy.membership import install, next_view
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.membership import Flush, Install, Member, MemberRole, View
from controlplane.protocol.rank import (
    CaughtUp,
    Evicted,
    ForkRank,
    FromHost,
    FromRank,
    HostReady,
    InstallView,
    RankForked,
    RankGone,
    RankHello,
    RankProgress,
    SetView,
    StepReport,
    ToRank,
)
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training, ranks_per_replica
from tests.integration.trainer.node import Node
from tests.integration.trainer.processes import stacks_of, wait_stopped

ATTEMPT = 1
Key = tuple[int, int, int]  # replica, incarnation, rank


def tiny_config(folder: Path, **changes: object) -> TrainerConfig:
    """2 layers, hidden 32, PP2, 6 micro-batches; `changes` replace fields of the parts."""
    parts: dict[str, object] = {
        "model": Model(layers=2, hidden=32, heads=2, sequence_length=32),
        "parallelism": Parallelism(pp=2),
        "training": Training(steps=36, global_batch=6),
        "checkpoint": Checkpoint(interval_steps=0),
    }
    parts.update(changes)
    return TrainerConfig(
        checkpoint_dir=str(folder / "checkpoints"),
        replicas=3,
        store="",
        allow_faults=True,
        **parts,  # type: ignore[arg-type]
    )


class Cluster:
    """Start it, wait for claims, break it, stop it. All state is guarded by one condition."""

    def __init__(self, node: Node, folder: Path, config: TrainerConfig, *, auto: bool = True) -> None:
        """`auto` False: exits change no membership by themselves."""
        self.node, self.folder, self.auto = node, folder, auto
        self.job_id = f"job_{folder.parent.name}_{folder.name}"
        self.config = msgspec.structs.replace(config, store=node.store_address, store_token=node.token(self.job_id))
        self.world = ranks_per_replica(config.parallelism)
        self.changed = threading.Condition(threading.RLock())
        self.epoch = 0
        self.joins_at: int | None = None
        self.env: dict[str, str] = {}
        self.node_of: Callable[[int, int], str] = lambda replica, rank: f"node{replica}"
        self.members: dict[int, Member] = {}
        self.expected: set[int] = set()
        self.started: set[Key] = set()
        self.pids: dict[Key, int] = {}
        self.hellos: set[Key] = set()
        self.gone: dict[Key, RankGone] = {}
        self.said: list[tuple[float, Key, FromRank]] = []
        self.views: list[tuple[float, View]] = []
        self.installs: list[Install] = []
        self.on_said: Callable[[Key, FromRank], None] | None = None
        self.on_host: Callable[[FromHost], None] | None = None
        self._flushes: dict[Key, Flush] = {}
        self._connections: dict[Key, socket.socket] = {}
        self._agent_path = folder / "agent.sock"
        self.open_agent()
        self.open_host()

    # -- processes ---------------------------------------------------------------
    def open_host(self) -> None:
        """Connect to the rank host, as an agent does after its own restart."""
        self.host_ready = threading.Event()
        self._host = self.node.connect()
        threading.Thread(target=self._read_host, args=(self._host,), daemon=True).start()
        assert self.host_ready.wait(60), (self.node.folder / "host.log").read_text()

    def open_agent(self) -> None:
        """Listen for ranks."""
        self._agent_path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._agent_path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut_agent(self) -> None:
        """The agent is gone: nobody listens, every rank's connection is closed."""
        with self.changed:
            self._agent_path.unlink()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for connection in self._connections.values():
                _hang_up(connection)
            self._connections.clear()

    def start(self, *replicas: int, incarnation: int = 1) -> None:
        """Fork all ranks of these replicas; the first call decides who the initial view waits for."""
        with self.changed:
            if not self.epoch:
                self.expected.update(replicas)
        for replica in replicas:
            for rank in range(self.world):
                self.started.add((replica, incarnation, rank))
                self._host.sendall(
                    encode_line(
                        ForkRank(
                            ref=RankRef(self.job_id, ATTEMPT, replica, incarnation, rank),
                            world_size=self.world,
                            device_index=rank,
                            config=self.config,
                            agent_socket=str(self._agent_path),
                            log_path=str(self.folder / f"rank-{replica}.{incarnation}.{rank}.log"),
                            env={**self.env, "HOLDFAST_NODE": self.node_of(replica, rank)},
                        )
                    )
                )

    def signal(self, replica: int, number: int, *, rank: int | None = None, incarnation: int = 1) -> None:
        """To the process group of one rank or all of a replica, before anything that follows is noticed
        here. A stop has taken effect on return. Of one that is killed whole some may go with the first."""
        with self.changed:
            for index in range(self.world) if rank is None else [rank]:
                key = (replica, incarnation, index)
                try:
                    os.killpg(self.pids[key], number)
                except ProcessLookupError as error:
                    if rank is not None or not index or number != signal.SIGKILL:
                        raise AssertionError(f"{key} has ended before it was signalled:\n{self.logs()}") from error
                if number == signal.SIGSTOP:
                    wait_stopped(self.pids[key])

    def close(self) -> None:
        """Kill what is left, and wait for it: the next test wants the processors."""
        with self.changed:
            self.auto, self.on_said = False, None
            alive = [key for key in self.started if key not in self.gone]
            self.changed.wait_for(lambda: self.started <= set(self.pids), 10)
        for key in alive:
            if key in self.pids:
                _killpg(self.pids[key])
        with self.changed:
            self.changed.wait_for(lambda: self.started <= set(self.gone), 10)
        _hang_up(self._host)

    # -- membership --------------------------------------------------------------
    def announce(self, reason: str, *, at_step: int | None = None, **others: tuple) -> None:
        """A new epoch of the present members, due at `at_step`; donors for every joiner. `others`:
        who is left out for now, and who returns."""
        with self.changed:
            self.epoch += 1
            self._flushes.clear()
            view = next_view(
                job_id=self.job_id,
                attempt=ATTEMPT,
                epoch=self.epoch,
                members=tuple(self.members.values()),
                before=self.views[-1][1] if self.views else None,
                reason=reason,
                at_step=at_step,
                **others,
            )
            self.views.append((time.monotonic(), view))
            for member in view.members:
                self.tell(member.replica, SetView(view), incarnation=member.incarnation)
            self.changed.notify_all()

    def drop(self, replica: int, reason: str) -> None:
        """Leave a replica out of the next view."""
        with self.changed:
            member = self.members.pop(replica, None)
            if member is None:
                return
            self.tell(replica, Evicted(reason, self.epoch + 1), incarnation=member.incarnation)
            if self.members:
                self.announce(reason)

    def tell(self, replica: int, message: ToRank, *, rank: int | None = None, incarnation: int = 1) -> None:
        """To one rank or to all ranks of a replica, who read it at moments of their own."""
        for index in range(self.world) if rank is None else [rank]:
            connection = self._connections.get((replica, incarnation, index))
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(encode_line(message))

    def _on_hello(self, key: Key) -> None:
        replica, incarnation, _ = key
        self.hellos.add(key)
        if any((replica, incarnation, rank) not in self.hellos for rank in range(self.world)):
            return
        known = self.members.get(replica)
        if known is not None and known.incarnation == incarnation:
            if self.views:
                self.tell(replica, SetView(self.views[-1][1]), incarnation=incarnation)
            return
        initial = self.epoch == 0
        role = MemberRole.CONTRIBUTOR if initial else MemberRole.JOINER
        self.members[replica] = Member(replica, incarnation, role)
        if not initial:
            self.announce(f"join {replica}", at_step=self.joins_at)
        elif set(self.members) == self.expected:
            self.announce("initial")

    def _on_flush(self, key: Key, flush: Flush) -> None:
        if flush.epoch != self.epoch:
            return
        self._flushes[key] = flush
        ranks = [(m.replica, m.incarnation, r) for m in self.members.values() for r in range(self.world)]
        if any(rank not in self._flushes for rank in ranks):
            return
        sizes = {member.replica: self.world for member in self.members.values()}
        order = install(self.views[-1][1], tuple(self._flushes.values()), sizes, self.config.max_contributors)
        assert isinstance(order, Install), order
        self.installs.append(order)
        for member in list(self.members.values()):
            role = MemberRole.JOINER
            if member.replica in (*order.contributors, *order.standbys):
                standby = member.replica in order.standbys
                role = MemberRole.STANDBY if standby else MemberRole.CONTRIBUTOR
            self.members[member.replica] = Member(member.replica, member.incarnation, role)
            self.tell(member.replica, InstallView(order), incarnation=member.incarnation)

    def _on_gone(self, key: Key) -> None:
        """The agent's part: the rest of the replica dies with its rank; then the control plane's."""
        replica, incarnation, _ = key
        for rank in range(self.world):
            other = (replica, incarnation, rank)
            if (
                self.auto
                and other in self.pids
                and other not in self.gone
                and self.gone[key].exit_code not in (0, 9, 15)
            ):
                _killpg(self.pids[other])
        member = self.members.get(replica)
        if self.auto and member is not None and member.incarnation == incarnation and self.gone[key].exit_code != 0:
            self.drop(replica, f"exit of {key}")

    # -- claims ------------------------------------------------------------------
    def wait(self, claim: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Until `claim` holds; it is evaluated whenever anything was said or ended."""
        with self.changed:
            if not self.changed.wait_for(claim, timeout_s):
                raise AssertionError(f"not within {timeout_s} s: {what}\n{self.logs()}\n{self._stacks()}")

    def of(self, kind: type, replica: int | None = None, rank: int | None = None) -> list:
        """Messages of one type, in order of arrival."""
        return [m for _, k, m in self.said if isinstance(m, kind) and replica in (None, k[0]) and rank in (None, k[2])]

    def committed(self, replica: int) -> int:
        """Committed steps of a replica, by its rank 0."""
        return max((m.step + 1 for m in self.of(StepReport, replica, 0)), default=0)

    def wait_committed(self, step: int, *replicas: int, timeout_s: float = 60.0) -> None:
        self.wait(lambda: all(self.committed(r) >= step for r in replicas), f"step {step} of {replicas}", timeout_s)

    def wait_gone(self, *keys: Key, timeout_s: float = 60.0) -> None:
        self.wait(lambda: all(key in self.gone for key in keys), f"exit of {keys}", timeout_s)
        with self.changed:  # What they said last is read, too.
            self.changed.wait_for(lambda: not any(key in self._connections for key in keys), 5)

    def wait_all_done(self, timeout_s: float = 60.0) -> None:
        self.wait(lambda: self.started <= set(self.gone), "all ranks ended", timeout_s)
        self.wait_gone(*self.started)

    def losses(self) -> dict[int, float]:
        """Loss of each step; every replica that says one must say the same."""
        found: dict[int, float] = {}
        for report in self.of(StepReport):
            if report.loss is not None:
                assert found.setdefault(report.step, report.loss) == report.loss, report.step
        return found

    def hashes(self) -> dict[tuple[int, int], set[str]]:
        """(step, rank) -> the parameter hashes replicas reported; one each when all is well."""
        found: dict[tuple[int, int], set[str]] = defaultdict(set)
        for _, key, message in self.said:
            if isinstance(message, StepReport) and message.parameter_hash:
                found[(message.step, key[2])].add(message.parameter_hash)
        return found

    def ledger(self) -> dict[int, list[int]]:
        """step -> micro-batches in the committed gradient, as the exchange counted them: a
        dying rank's last word may be lost, but a survivor's report tells the whole step."""
        found: dict[int, list[int]] = {}
        for _, key, message in self.said:
            if isinstance(message, StepReport) and key[2] == 0:
                found.setdefault(message.step, list(message.trained))
        return found

    def logs(self) -> str:
        """Tails of all logs, and the last words."""
        parts = [f"views {[v for _, v in self.views][-3:]}", f"gone {list(self.gone.items())}"]
        quiet = (RankProgress, StepReport)
        parts += [f"{key} {message}" for _, key, message in self.said if not isinstance(message, quiet)][-30:]
        for path in sorted(self.folder.glob("*.log")):
            parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)

    def _stacks(self) -> str:
        """Where every rank that lives is now."""
        alive = sorted(set(self.pids) - set(self.gone))
        return "\n".join(stacks_of(self.pids[key], self.folder / "rank-{}.{}.{}.log".format(*key)) for key in alive)

    # -- sockets -----------------------------------------------------------------
    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._read_rank, args=(connection,), daemon=True).start()

    def _read_rank(self, connection: socket.socket) -> None:
        key: Key | None = None
        try:
            for line in connection.makefile("rb"):
                message = decode_line("from_rank", line)
                with self.changed:
                    if isinstance(message, RankHello):
                        key = (message.ref.replica, message.ref.incarnation, message.ref.rank)
                        self._connections[key] = connection
                    assert key is not None, "hello comes first"
                    self.said.append((time.monotonic(), key, message))
                    if self.on_said is not None:
                        self.on_said(key, message)
                    self._handle(key, message)
                    self.changed.notify_all()
        except OSError:
            pass
        with self.changed:
            if key is not None and self._connections.get(key) is connection:
                del self._connections[key]
                self.changed.notify_all()

    def _handle(self, key: Key, message: FromRank) -> None:
        member = self.members.get(key[0])
        current = member is not None and member.incarnation == key[1]
        match message:
            case RankHello():
                if message.epoch and not current:
                    self.tell(key[0], Evicted("stale incarnation", self.epoch), incarnation=key[1])
                else:
                    self._on_hello(key)
            case Flush() if current:
                self._on_flush(key, message)
            case CaughtUp() if current and key[2] == 0:
                self.members[key[0]] = Member(key[0], key[1], message.role)

    def _read_host(self, connection: socket.socket) -> None:
        try:
            for line in connection.makefile("rb"):
                message = decode_line("from_host", line)
                with self.changed:
                    if self.on_host is not None:
                        self.on_host(message)
                    match message:
                        case HostReady():
                            self.host_ready.set()
                        case RankForked() if message.ref.job_id == self.job_id:
                            self.pids[_key(message.ref)] = message.pid
                        case RankGone() if message.ref.job_id == self.job_id and _key(message.ref) not in self.gone:
                            self.gone[_key(message.ref)] = message
                            self._on_gone(_key(message.ref))
                    self.changed.notify_all()
        except OSError:
            return


def _key(ref: RankRef) -> Key:
    return (ref.replica, ref.incarnation, ref.rank)


def _killpg(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
