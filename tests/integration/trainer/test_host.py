"""The rank host outlives its agents and forgets no exit."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.rank import HostReady, HostState, ListRanks, RankForked, RankGone, StepReport
from controlplane.protocol.spec import Parallelism, Training
from tests.integration.trainer.cluster import Cluster
from tests.integration.trainer.node import Node
from tests.integration.trainer.test_recovery import PACED
from trainer.host import start_time_ticks

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]


class Agent:
    """A second agent's connection, read to the end in a thread."""

    def __init__(self, node: Node) -> None:
        self.heard: list[object] = []
        self.changed = threading.Condition()
        self.socket = node.connect()
        threading.Thread(target=self._read, daemon=True).start()

    def ask_for_ranks(self) -> HostState:
        self.socket.sendall(encode_line(ListRanks()))
        with self.changed:
            assert self.changed.wait_for(lambda: any(isinstance(m, HostState) for m in self.heard), 30)
            return next(m for m in self.heard if isinstance(m, HostState))

    def _read(self) -> None:
        for line in self.socket.makefile("rb"):
            with self.changed:
                self.heard.append(decode_line("from_host", line))
                self.changed.notify_all()


def test_the_next_agent_learns_who_lives_and_which_exits_it_missed(cluster: Make, node: Node) -> None:
    run = cluster(parallelism=Parallelism(), training=PACED)
    run.start(0, 1)
    run.wait_committed(2, 0, 1)
    run.signal(1, signal.SIGKILL)
    run.wait_gone((1, 1, 0))
    agent = Agent(node)
    state = agent.ask_for_ranks()
    assert isinstance(agent.heard[0], HostReady)
    mine = [rank for rank in state.ranks if rank.ref.job_id == run.job_id]
    assert [(r.ref.replica, r.pid, r.start_time_ticks) for r in mine] == [
        (0, run.pids[(0, 1, 0)], start_time_ticks(run.pids[(0, 1, 0)]))
    ]
    missed = [m for m in agent.heard if isinstance(m, RankGone) and m.ref.job_id == run.job_id]
    assert [(m.ref.replica, m.exit_code, m.signal) for m in missed] == [(1, None, signal.SIGKILL)]
    run.open_host()


def test_a_repeated_order_forks_once(cluster: Make) -> None:
    run = cluster(parallelism=Parallelism())
    answers: list[RankForked] = []
    run.on_host = lambda message: answers.append(message) if isinstance(message, RankForked) else None
    run.start(0)
    run.start(0)
    run.wait(lambda: len(answers) == 2, "two answers")
    assert answers[0] == answers[1]


def test_a_rank_leads_its_own_session(cluster: Make) -> None:
    run = cluster(parallelism=Parallelism())
    run.start(0)
    run.wait(lambda: (0, 1, 0) in run.hellos, "hello")
    pid = run.pids[(0, 1, 0)]
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_a_job_that_cannot_run_is_not_to_be_requeued(cluster: Make) -> None:
    run = cluster(training=Training(steps=36, global_batch=5, micro_batch=2), parallelism=Parallelism())
    run.start(0)
    run.wait_gone((0, 1, 0))
    assert run.gone[(0, 1, 0)].exit_code == 93
    assert "micro_batch" in (run.folder / "rank-0.1.0.log").read_text()


def test_a_blocked_rank_still_writes_its_stacks(cluster: Make) -> None:
    run = cluster()
    run.auto = False
    run.start(0, 1)
    run.wait_committed(2, 0, 1)
    run.signal(1, signal.SIGSTOP)
    log = Path(run.folder / "rank-0.1.0.log")
    before = len(run.of(StepReport, 0, 0))
    os.kill(run.pids[(0, 1, 0)], signal.SIGUSR2)
    run.wait(lambda: "exchange.py" in log.read_text() or "engine.py" in log.read_text(), "stacks in the log")
    assert "control-link" in log.read_text() or "link.py" in log.read_text()
    run.signal(1, signal.SIGCONT)
    run.wait_committed(before + 2, 0)
