"""Backoff, spool, logs, identities: the small parts, each with its promise."""

import os
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from agents.core import backoff
from agents.core.state import Identity
from agents.link.spool import Spool
from agents.ranks.identity import group_members, identity_of, is_alive, signal_group, signal_process
from agents.ranks.logs import LogFiles, printable, tail
from controlplane.protocol.frames import reconnect_within_s
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 100))
def test_backoff_is_bounded_and_honours_the_servers_wish(failures, jitter, wish_s):
    delay_s = backoff.delay_s(failures, jitter, at_least_s=wish_s)
    assert wish_s < delay_s <= wish_s + backoff.CAP_S


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(0, 100_000), st.floats(2.0, 10_000.0))
def test_agents_come_back_within_what_the_server_asks_for_and_no_faster_than_it_takes_them(
    failures, jitter, nodes, per_s
):
    within_s = reconnect_within_s(nodes, per_s)
    assert backoff.delay_s(failures, jitter, within_s=within_s) <= within_s <= backoff.CAP_S
    assert nodes <= per_s * within_s * (1.0 + 1e-9) or within_s == backoff.CAP_S


def test_the_spool_drops_the_oldest_first():
    spool = Spool(max_rounds=3)
    for second in range(5):
        spool.put(float(second), (DeviceSample(index=0, temperature_c=float(second)),))
    assert spool.dropped_rounds == 2
    assert [spool.take()[0] for _ in range(3)] == [2.0, 3.0, 4.0]
    assert spool.take() is None


def test_a_pid_with_another_start_time_is_another_process():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    identity = identity_of(child.pid)
    stranger = Identity(child.pid, identity.start_time_ticks - 1)
    assert is_alive(identity) and not is_alive(stranger)
    assert not signal_process(stranger, signal.SIGKILL) and not signal_group(stranger, signal.SIGKILL)
    assert child.poll() is None
    assert signal_group(identity, signal.SIGKILL)
    child.wait(10)
    assert not is_alive(identity)


def test_children_of_a_dead_leader_are_still_found():
    program = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    orphan = int(child.stdout.readline().split()[0])
    identity = identity_of(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    assert group_members(identity) == (orphan,)
    os.kill(orphan, signal.SIGKILL)


def test_log_names_cannot_leave_their_directory(tmp_path):
    path = LogFiles(tmp_path).rank(RankRef("../../etc/passwd", 1, 0, 1, 0))
    assert path.resolve().is_relative_to(tmp_path)


def test_a_tail_is_printable_and_bounded(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"first\n" * 2000 + b"\x1b[31mred\x1b[0m\x00\xff last\n")
    text = tail(path, 200)
    assert len(text) <= 200 and text.endswith("last\n") and "\x1b" not in text and "red" in text
    assert tail(tmp_path / "none") == ""
    assert printable("a\tb\nc\rd") == "a\tb\ncd"


def test_a_log_over_its_cap_keeps_its_end(tmp_path):
    logs = LogFiles(tmp_path)
    path = logs.rank(RankRef("job_1", 1, 0, 1, 0))
    path.write_bytes(b"x" * 5000 + b"the end\n")
    assert logs.cap(1000) == [path]
    assert path.stat().st_size < 1000 and path.read_text().endswith("the end\n")
    assert logs.cap(1000) == []
