"""A rank host without torch: the same socket protocol, ranks that only talk.

Run by the agent as `python -m tests.integration.agents.fake_host --socket P --job-id J`.
What a rank does is told by FAKE_* keys in the launch's env:
FAKE_EXIT_CODE leaves with that code at SIGUSR1; FAKE_FREEZE_PHASE stops moving in a phase;
FAKE_STEP_S reports a step that often; FAKE_PRUNES tells with each step that checkpoints were removed.
"""

import argparse
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, MemberRole
from controlplane.protocol.rank import (
    Evicted,
    ForkRank,
    HostReady,
    HostState,
    InstallView,
    ListRanks,
    RankForked,
    RankGone,
    RankHello,
    RankProgress,
    SaveNow,
    SetView,
    ShutdownHost,
    StepReport,
    ViewInstalled,
)
from controlplane.protocol.states import Phase, Section


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job-id", required=True)
    options = parser.parse_args()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(options.socket)
    listener.listen()
    Host(listener).serve()


class Host:
    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.agent: socket.socket | None = None
        self.pending = b""
        self.alive: dict[int, RankForked] = {}
        self.gone: list[RankGone] = []
        self.leaving = False
        self.bell, bell_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell_in)

    def serve(self) -> None:
        while not (self.leaving and not self.alive):
            waiting = [self.listener, self.bell] + ([self.agent] if self.agent else [])
            ready, _, _ = select.select(waiting, [], [])
            if self.bell in ready:
                os.read(self.bell, 4096)
                self.reap()
            if self.agent in ready:
                self.read()
            if self.listener in ready:
                self.agent, _ = self.listener.accept()
                self.pending = b""
                self.say(HostReady(os.getpid(), 0.01))
                for gone in self.gone:
                    self.say(gone)

    def say(self, message) -> None:
        if self.agent is not None:
            try:
                self.agent.sendall(encode_line(message))
            except OSError:
                self.agent = None

    def read(self) -> None:
        data = self.agent.recv(65536)
        if not data:
            self.agent = None
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            match decode_line("to_host", line):
                case ForkRank() as order:
                    self.fork(order)
                case ListRanks():
                    self.say(HostState(tuple(self.alive.values())))
                case ShutdownHost():
                    self.leaving = True

    def fork(self, order: ForkRank) -> None:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            log = os.open(order.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self.listener.close()
            self.agent.close()
            faulthandler.register(signal.SIGUSR2, all_threads=True)
            os._exit(Rank(order.ref, order.agent_socket, order.env).run())
        with open(f"/proc/{pid}/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        self.alive[pid] = RankForked(order.ref, pid, ticks)
        self.say(self.alive[pid])

    def reap(self) -> None:
        for pid in list(self.alive):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                forked = self.alive.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                gone = RankGone(forked.ref, pid, code if code >= 0 else None, -code if code < 0 else None)
                self.gone.append(gone)
                self.say(gone)


def leave(code: int) -> None:
    """What a rank does at the signal of a test."""
    os.write(1, b"leaving now\n")
    os._exit(code)


class Rank:
    """Says hello, reports once a second, answers views; reconnects for ever."""

    def __init__(self, ref: RankRef, path: str, env: dict[str, str]) -> None:
        self.ref = ref
        self.path = path
        self.freeze = env.get("FAKE_FREEZE_PHASE")
        self.step_s = float(env.get("FAKE_STEP_S", "0"))
        self.prunes = "FAKE_PRUNES" in env
        self.next_step_s = time.monotonic() + self.step_s
        self.epoch = 0
        self.step = 0
        self.since_s = time.monotonic()
        if "FAKE_EXIT_CODE" in env:
            signal.signal(signal.SIGUSR1, lambda *_: leave(int(env["FAKE_EXIT_CODE"])))

    def run(self) -> int:
        print(f"rank {self.ref.rank} of replica {self.ref.replica} runs", flush=True)
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                    link.connect(self.path)
                    code = self.talk(link)
                    if code is not None:
                        return code
            except OSError:
                pass
            time.sleep(0.05)

    def talk(self, link: socket.socket) -> int | None:
        link.sendall(encode_line(RankHello(self.ref, os.getpid(), self.epoch)))
        self.progress(link)
        pending = b""
        next_s = time.monotonic() + 1.0
        while True:
            now_s = time.monotonic()
            due_s = min(next_s, self.next_step_s) if self.step_s else next_s
            ready, _, _ = select.select([link], [], [], max(due_s - now_s, 0.0))
            now_s = time.monotonic()
            if self.step_s and now_s >= self.next_step_s:
                self.next_step_s += self.step_s
                link.sendall(encode_line(StepReport(self.step, self.epoch, self.step_s, 64, (self.step,))))
                if self.prunes:
                    link.sendall(encode_line(CheckpointsPruned((self.epoch, self.step))))
                self.step += 1
                self.since_s = now_s
            if now_s >= next_s:
                next_s += 1.0
                self.progress(link)
            if not ready:
                continue
            data = link.recv(65536)
            if not data:
                return None
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                code = self.take(link, decode_line("to_rank", line))
                if code is not None:
                    return code

    def take(self, link: socket.socket, message) -> int | None:
        ref = self.ref
        match message:
            case Evicted():
                return 9
            case SetView(view=view):
                link.sendall(
                    encode_line(
                        Flush(
                            ref.job_id, ref.attempt, view.epoch, ref.replica, ref.incarnation, ref.rank,
                            self.step, False, MemberRole.CONTRIBUTOR,
                        )
                    )
                )  # fmt: skip
            case InstallView(install=install):
                self.epoch = install.epoch
                link.sendall(encode_line(ViewInstalled(install.epoch, install.step, False, 0.01)))
                self.progress(link)
            case SaveNow(command_id=command_id):
                print(f"save {command_id}", flush=True)
        return None

    def progress(self, link: socket.socket) -> None:
        phase = Phase(self.freeze) if self.freeze else (Phase.COMPUTE if self.epoch else Phase.PARKED)
        section = Section.STEP if self.epoch or self.freeze else Section.SETUP
        age_s = time.monotonic() - self.since_s
        link.sendall(encode_line(RankProgress(section, phase, age_s, age_s, self.step, self.epoch)))


if __name__ == "__main__":
    threading.stack_size(262144)
    sys.exit(main())
