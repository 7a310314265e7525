"""Nothing that a probe or a benchmark starts outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WAIT_S = 20.0
PROBE = """
import os, time
from benchmarks import crash_real
def rank():
    os.write(1, b"%d\\n" % os.getpid())  # one piece: two of them write at once
    time.sleep(60)
crash_real.fork(rank)
crash_real.fork(rank, group=True)
time.sleep(60)
"""


def test_forked_ranks_end_with_a_probe_that_is_killed_even_where_they_are_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout is not None
        ranks = [int(probe.stdout.readline()) for _ in range(2)]
        os.kill(ranks[0], signal.SIGSTOP)
        probe.kill()
    deadline_s = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < deadline_s, "they outlive who started them"
        time.sleep(0.01)
