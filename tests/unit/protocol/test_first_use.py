"""Threads that decode one type for the first time at once: prepared before, no process ends of it."""

import subprocess
import sys

from tests.house.tree import ROOT

RACE = """
import sys, threading
from typing import Annotated
import msgspec
from controlplane.protocol import first_use
fields = [(f"f{i}", Annotated[tuple[int, ...], msgspec.Meta(max_length=10 + i)], ()) for i in range(30)]
Kind = msgspec.defstruct("Kind", fields, frozen=True, forbid_unknown_fields=True)
data = msgspec.json.encode({f"f{i}": [1, 2, 3] for i in range(30)})
assert first_use.prepare() > 0
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(16)
def decode():
    barrier.wait()
    msgspec.json.decode(data, type=Kind)
threads = [threading.Thread(target=decode) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
RUNS = 6


def test_many_threads_decode_a_prepared_type_for_the_first_time_at_once() -> None:
    """Unprepared, about every second of these processes ends by SIGSEGV."""
    codes = [subprocess.run([sys.executable, "-c", RACE], cwd=ROOT, check=False).returncode for _ in range(RUNS)]
    assert codes == [0] * RUNS


def test_ranks_agents_web_and_sentinel_prepare_before_they_start_threads() -> None:
    for program in (
        "trainer/train.py",
        "agents/main.py",
        "controlplane/config/asgi.py",
        "controlplane/sentinel/process.py",
    ):
        assert "first_use.prepare()" in (ROOT / program).read_text(encoding="ascii"), program
