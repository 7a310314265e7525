"""A control plane of the allocation's own is kept running while its caller waits for something else."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.demo.processes import ProcessSpec
from controlplane.demo.supervisor import Supervisor
from controlplane.slurm import own


def wait(what: str, reached: Callable[[], bool]) -> None:
    """As somebody who is blocked in a call: nothing here looks after the processes."""
    until_s = time.monotonic() + 20.0
    while not reached():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def test_what_ends_is_started_again_though_its_caller_waits_and_it_cannot_be_started_for_a_while(
    tmp_path: Path,
) -> None:
    program, log, said = tmp_path / "program", tmp_path / "log", list[str]()
    program.write_text(f"#!{sys.executable}\nwith open({str(log)!r}, 'a') as log:\n    log.write('up\\n')\n")
    program.chmod(0o755)
    supervisor = Supervisor(
        env={}, logs=tmp_path / "logs", requests=tmp_path / "requests", node_state=lambda node: tmp_path / node
    )
    starts = lambda: log.read_text().count("up") if log.exists() else 0  # noqa: E731
    supervisor.start(ProcessSpec(name="web", argv=(str(program),), restart_delay_s=0.02))
    other = tmp_path / "other"
    beside = (sys.executable, "-c", f"open({str(other)!r}, 'a').write('x')")
    supervisor.start(ProcessSpec(name="worker", argv=beside, restart_delay_s=0.02))
    with own.supervised(supervisor, said.append):
        wait("it is started again", lambda: starts() >= 2)
        program.rename(tmp_path / "away")
        wait("that it cannot be started is said", lambda: bool(said))
        before, runs = starts(), len(other.read_text())
        wait("the one behind it is started again meanwhile", lambda: len(other.read_text()) > runs + 1)
        (tmp_path / "away").rename(program)
        wait("it is started again once it can be", lambda: starts() > before)
    supervisor.stop_all()
    (line,) = said
    assert line.startswith("A process of the control plane cannot be started: ") and str(program) in line
