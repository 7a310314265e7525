"""The rank host: imports torch and Megatron once, then forks a rank in milliseconds.

`python -m trainer.host --socket PATH --job-id ID`. One per job and node, started by the
agent, and outlives it: ranks never depend on the agent's life, exits are remembered and
repeated to the next agent that connects. Single-threaded, so that a fork is safe; touches
no CUDA, and where the imports did so all the same, ranks are spawned instead of forked.
It never kills a rank. It ends on order, or when no agent has come for ten minutes, in
both cases only once no rank is left. What the job keeps in this node's memory goes with it,
or with the last rank once the job is done.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "error")
# A rank asks for a name with each connection to the store (see `trainer.store`): a lost answer
# shall cost a view change one second, not five.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")
# A view change aborts communicators in place: the watchdog must not end the rank for it, and
# with NVLS the abort may hang (protocol.launch_checks refuses the opposite).
os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import argparse
import select
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import msgspec

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.rank import (
    MAX_LINE_BYTES,
    ForkRank,
    FromHost,
    HostReady,
    HostState,
    ListRanks,
    RankForked,
    RankGone,
    ShutdownHost,
)
from trainer.checkpoint.local.memory import share_of
from trainer.config import FORK_RANK_VARIABLE, niceness, node_name
from trainer.exits import ExitCode
from trainer.priority import lower_session

LONELY_S = 600.0
TICK_S = 1.0
SEND_TIMEOUT_S = 5.0
READ_BYTES = 65536
MAX_REMEMBERED_EXITS = 1024


class RankHost:
    """State of one host. `import_s` is what the imports took."""

    def __init__(self, listener: socket.socket, *, import_s: float) -> None:
        self._listener = listener
        self._import_s = import_s
        self._agent: socket.socket | None = None
        self._pending = bytearray()
        self._alive: dict[int, RankForked] = {}
        self._gone: dict[int, RankGone] = {}
        self._shares: dict[str, set[Path]] = {}
        self._shutdown = False
        self._lonely_since_s = time.monotonic()
        self._bell_out, self._bell_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell_in, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until it may end."""
        while not self._may_end():
            sockets: list[Any] = [self._listener, self._bell_out, *([self._agent] if self._agent else [])]
            readable, _, _ = select.select(sockets, [], [], TICK_S)
            if self._bell_out in readable:
                os.read(self._bell_out, READ_BYTES)
            self._reap()
            if self._agent in readable:
                self._read()
            if self._listener in readable:
                self._accept()
        for job_id in list(self._shares):
            self._give_back(job_id)

    def _may_end(self) -> bool:
        if self._alive:
            return False
        lonely = self._agent is None and time.monotonic() - self._lonely_since_s > LONELY_S
        return self._shutdown or lonely

    def _accept(self) -> None:
        """A new connection replaces the old one: one agent at a time."""
        connection, _ = self._listener.accept()
        connection.settimeout(SEND_TIMEOUT_S)
        self._drop_agent()
        self._agent = connection
        self._send(HostReady(os.getpid(), self._import_s))
        for gone in list(self._gone.values()):
            self._send(gone)

    def _read(self) -> None:
        assert self._agent is not None, "only called when it is readable"
        try:
            data = self._agent.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data or len(self._pending) > MAX_LINE_BYTES:
            self._drop_agent()
            return
        self._pending += data
        while (end := self._pending.find(b"\n")) >= 0:
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            try:
                order = decode_line("to_host", line)
            except ProtocolError as error:
                print(f"rank host: {error}", file=sys.stderr, flush=True)
                self._drop_agent()
                return
            self._take(order)

    def _take(self, order: ForkRank | ListRanks | ShutdownHost) -> None:
        match order:
            case ForkRank():
                self._start(order)
            case ListRanks():
                self._send(HostState(tuple(self._alive.values())))
            case ShutdownHost():
                self._shutdown = True

    def _start(self, order: ForkRank) -> None:
        """Fork, once for each incarnation: a repeated order gets the answer again."""
        for forked in self._alive.values():
            if forked.ref == order.ref:
                self._send(forked)
                return
        share = share_of(order.config, order.ref.job_id, node_name({**os.environ, **order.env}))
        if share is not None:
            self._shares.setdefault(order.ref.job_id, set()).add(share)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become_rank(order)
        forked = RankForked(order.ref, pid, start_time_ticks(pid))
        self._alive[pid] = forked
        self._send(forked)

    def _become_rank(self, order: ForkRank) -> None:
        """In the child; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            lower_session(starting=True)
            _redirect(Path(order.log_path))
            self._listener.close()
            if self._agent is not None:
                self._agent.close()
            os.close(self._bell_out)
            os.close(self._bell_in)
            os.environ.update(order.env)
            if _cuda_touched():
                os.environ[FORK_RANK_VARIABLE] = msgspec.json.encode(order).decode()
                os.execv(sys.executable, [sys.executable, "-m", "trainer.train"])  # noqa: S606
            from trainer.config import from_fork
            from trainer.train import guarded, run

            guarded(lambda: run(from_fork(order)))
        except BaseException:  # Nothing may unwind into the host's own loop.
            traceback.print_exc()
        finally:
            os._exit(ExitCode.INTERNAL)

    def _reap(self) -> None:
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            forked = self._alive.pop(pid, None)
            if forked is None:
                continue
            exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            gone = RankGone(forked.ref, pid, exit_code, number)
            self._gone[pid] = gone
            while len(self._gone) > MAX_REMEMBERED_EXITS:
                self._gone.pop(next(iter(self._gone)))
            self._send(gone)
            if exit_code == ExitCode.DONE:
                self._give_back(forked.ref.job_id)

    def _give_back(self, job_id: str) -> None:
        """The local tier's memory, once no rank of the job is left here that may need it."""
        if not any(forked.ref.job_id == job_id for forked in self._alive.values()):
            for share in self._shares.pop(job_id, set()):
                shutil.rmtree(share, ignore_errors=True)

    def _send(self, message: FromHost) -> None:
        if self._agent is None:
            return
        try:
            self._agent.sendall(encode_line(message))
        except OSError:
            self._drop_agent()

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent = None
        self._pending.clear()
        self._lonely_since_s = time.monotonic()


def start_time_ticks(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat; 0 when the process is gone already."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _redirect(log_path: Path) -> None:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)


def _cuda_touched() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _import_everything() -> float:
    """What every rank needs, once. Returns seconds."""
    began_s = time.monotonic()
    import torch

    torch.set_num_threads(1)
    from trainer import device

    device.prepare_import()
    import torch._dynamo  # torch's first optimizer would import it, 0.35 s in every rank.

    import trainer.assemble  # noqa: F401

    return time.monotonic() - began_s


def listen(path: Path) -> socket.socket:
    """The host's socket; a stale file of a dead host is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(4)
    return listener


def main() -> None:
    """Listen first, so that an agent may connect while the imports run."""
    parser = argparse.ArgumentParser(description="Forks the ranks of one job on one node.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--job-id", required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness())
    listener = listen(options.socket)
    host = RankHost(listener, import_s=_import_everything())
    host.serve()
    options.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
