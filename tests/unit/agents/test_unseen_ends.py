"""What the node itself knows of an end that nobody saw."""

import os
import signal

import pytest

from agents.core.state import Identity
from agents.ranks import unseen

TICKS = os.sysconf("SC_CLK_TCK")
RANK = Identity(4711, 1000 * TICKS)


def record(at_s: float, text: str) -> str:
    """A record of /dev/kmsg, written `at_s` seconds after the boot."""
    return f"3,812,{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=memory\n"


OOM_LINES = (
    "Out of memory: Killed process 4711 (python) total-vm:91234kB, anon-rss:80012kB",
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:91234kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=4711,uid=1000",
)


@pytest.mark.parametrize("line", OOM_LINES)
def test_the_kernels_word_of_its_oom_killer_is_the_strongest(line: str) -> None:
    found = unseen.at_start(RANK, same_boot=True, records=[record(2000.0, line)])
    assert (found.cause, "OOM killer" in found.words) == ("out_of_memory", True)


def test_a_line_about_another_process_or_an_earlier_life_of_the_number_says_nothing() -> None:
    lines = [record(900.0, OOM_LINES[0]), record(2000.0, "Out of memory: Killed process 47110 (python)"), "garbage"]
    assert unseen.of_end(RANK, signal.SIGKILL, records=lines) == unseen.NO_HINT


def test_a_fault_that_the_kernel_noted_is_told() -> None:
    line = record(2000.0, "python[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so")
    assert unseen.of_end(RANK, None, records=[line]).cause == "segfault"


def test_without_a_word_of_the_kernel_it_is_said_that_nobody_saw_it() -> None:
    found = unseen.at_start(RANK, same_boot=True, records=[])
    assert found.cause == "unobserved"
    assert found.words.startswith("exit not observed; the node's processes were gone when the agent came back")


def test_after_another_boot_the_restart_is_the_cause() -> None:
    found = unseen.at_start(RANK, same_boot=False, records=[record(2000.0, OOM_LINES[0])])
    assert (found.cause, "the node was restarted" in found.words) == ("node_restarted", True)


def test_the_kernels_log_is_read_to_its_end_or_not_at_all() -> None:
    assert list(unseen.kernel_log("/nowhere/kmsg")) == []
    assert all(isinstance(text, str) for text in unseen.kernel_log())
