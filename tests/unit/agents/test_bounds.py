"""What a rank or a driver can put in the agent's way does not hold it up."""

import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agents.core.effects import Persist, WriteToLog
from agents.core.records import EventKept, HostKept, Opened
from agents.core.state import ProcessState, Rank
from agents.core.turn import Turn
from agents.link.journal import Journal, read_journal
from agents.probes.plausible import plausible
from agents.ranks import debug_client, gate
from agents.ranks.diagnose import Subject, look
from agents.ranks.identity import identity_of
from agents.ranks.logs import LogFiles, tail
from agents.ranks.scan import MAX_PASS_LINES, LogTail
from controlplane.protocol.bounds import MAX_DEVICES
from controlplane.protocol.frames import InputRefused, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import OuterError, TrainingDone
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent
from tests.properties.agents.world import World, launch

REF = RankRef("job_1", 1, 0, 1, 0)


def turn(now_s: float = 100.0) -> Turn:
    """Of an agent with one rank."""
    rank = Rank(ref=REF, device_index=0, launch=launch(), launched_at_s=0.0, process=ProcessState.ALIVE)
    return Turn(replace(World().state, ranks={REF: rank}), now_s)


def told(after: Turn) -> list[InputRefused]:
    return [kept.body for kept in after.state.events if isinstance(kept.body, InputRefused)]


# --- what is refused ---------------------------------------------------------------


def test_a_refusal_is_told_at_once_and_then_once_a_minute_with_how_many_there_were() -> None:
    first = turn()
    for _ in range(5):
        first.refuse(REF, "too large")
    assert [body.count for body in told(first)] == [1]
    assert [effect.ref for effect in first.effects if isinstance(effect, WriteToLog)] == [REF]
    later = Turn(first.state, 161.0)
    later.refuse(REF, "a NUL")
    assert [(body.count, body.reason) for body in told(later)] == [(1, "too large"), (5, "a NUL")]


def test_a_closed_connection_is_told_at_once() -> None:
    now = turn()
    now.refuse(REF, "x")
    now.refuse(REF, "x", closed=True)
    now.refuse(REF, "x", closed=True)
    assert [body.closed for body in told(now)] == [False, True]


def test_an_event_that_its_server_could_not_read_is_not_kept() -> None:
    now = turn()
    now.report(RankSaid(REF, OuterError(1, 1, "a\0b")))
    now.report(RankSaid(REF, TrainingDone(2**70)))
    assert now.state.events == ()
    assert not any(isinstance(effect, Persist) for effect in now.effects)
    now.report(RankSaid(REF, TrainingDone(1)))
    assert [kept.seq for kept in now.state.events] == [1], "and no number is left out"


# --- the gate ----------------------------------------------------------------------


def enter(held: gate.Gate, session: int, now_s: float = 0.0, **who: object) -> gate.Pass | None:
    caller = gate.Caller(**{"job_id": "job_1", "uid": 1000, "session": session, **who})
    return held.enter(caller, now_s, lambda: None)


def test_who_has_used_its_share_up_waits_and_nobody_else() -> None:
    held = gate.Gate()
    entries = enter(held, 1), enter(held, 2)
    assert entries[0] is not None and entries[1] is not None
    mine, other = entries[0].share, entries[1].share
    mine.spend(lines=gate.BURST_LINES)
    assert mine.wait_s(0.0) == pytest.approx(gate.CONNECTION_LINES / gate.LINES_PER_S)
    assert mine.wait_s(1.0) == other.wait_s(0.0) == 0.0
    mine.spend(size_bytes=2 * gate.BURST_BYTES)
    assert mine.wait_s(1.0) == pytest.approx(gate.BURST_BYTES / gate.BYTES_PER_S, rel=0.1)


def test_connections_of_one_session_share_and_are_few() -> None:
    held = gate.Gate()
    let_in = [enter(held, 7) for _ in range(gate.MAX_CONNECTIONS_OF_ONE + 3)]
    assert [entry is not None for entry in let_in] == [True] * gate.MAX_CONNECTIONS_OF_ONE + [False] * 3
    assert len({id(entry.share) for entry in let_in if entry is not None}) == 1
    assert let_in[0] is not None
    held.leave(let_in[0])
    assert enter(held, 7) is not None
    assert enter(held, 8) is not None


def test_a_session_that_connects_for_ever_is_let_in_as_often_as_its_share_allows() -> None:
    held = gate.Gate()
    entered = 0
    for _ in range(1000):
        entry = enter(held, 7)
        if entry is not None:
            entered += 1
            held.leave(entry)
    assert entered == gate.BURST_LINES / gate.CONNECTION_LINES + 1


def test_shares_of_sessions_that_are_gone_are_forgotten_even_if_they_came_at_once() -> None:
    held = gate.Gate()
    rank = enter(held, 1_000_000, known=True)
    assert rank is not None
    held.leave(rank)
    for session in range(3 * gate.MAX_SHARES):
        entry = enter(held, session)
        assert entry is not None
        held.leave(entry)
        assert len(held._shares) <= gate.MAX_SHARES
    assert rank.share in held._shares.values(), "no number of strangers gives a rank another's share, or takes its own"


def test_strangers_yield_the_oldest_first_and_keep_no_known_rank_out() -> None:
    held = gate.Gate()
    entries = [enter(held, session) for session in range(gate.MAX_STRANGERS_OF_JOB)]
    first = entries[0]
    assert first is not None
    held.greet(first, known=False)
    assert enter(held, 10_000) is not None
    assert [entry.left for entry in entries[:3] if entry is not None] == [False, True, False]
    assert len(held._strangers) == gate.MAX_STRANGERS_OF_JOB
    for session in range(2 * gate.MAX_STRANGERS):
        assert enter(held, session, job_id=f"job_{session % 8}", uid=session % 4) is not None
        assert len(held._strangers) <= gate.MAX_STRANGERS
    of_one_user = [enter(held, session, job_id=f"j{session}", uid=9) for session in range(gate.MAX_STRANGERS)]
    assert sum(not entry.left for entry in of_one_user if entry is not None) <= gate.MAX_STRANGERS_OF_USER
    assert enter(held, 1, known=True) is not None
    assert enter(held, 1, job_id="job_2", known=True) is not None


# --- files and sockets that ranks can put there ------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path / "logs")


def test_a_pipe_in_the_place_of_a_log_holds_nobody_up(logs: LogFiles) -> None:
    path = logs.rank(REF)
    os.mkfifo(path)
    assert tail(path) == ""
    logs.append(REF, "said in vain")
    assert logs.cap(max_bytes=0) == []
    reader = LogTail(path, {})
    reader.read(last=True)
    assert reader.take() == ((), 0)


def test_a_link_in_the_place_of_a_log_leads_nowhere(logs: LogFiles, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\n" * 100)
    logs.rank(REF).symlink_to(victim)
    assert tail(logs.rank(REF)) == ""
    logs.append(REF, "a line")
    assert logs.cap(max_bytes=10) == []
    assert victim.read_text() == "precious\n" * 100


def test_the_agents_line_stands_in_the_ranks_log(logs: LogFiles) -> None:
    logs.rank(REF).write_text("step 1\n")
    logs.append(REF, "agent: 1 message refused \x1b[2J\ud800")
    assert logs.rank(REF).read_text() == "step 1\n[agent: 1 message refused ?]\n"


def test_a_log_of_nothing_but_lines_is_not_searched_in_full(logs: LogFiles) -> None:
    logs.rank(REF).write_text("CUDA error: x\n" * (3 * MAX_PASS_LINES))
    reader = LogTail(logs.rank(REF), {})
    reader.read()
    (found,), _ = reader.take()
    assert found.count <= MAX_PASS_LINES


def serve(folder: Path, pid: int, answer: bytes, pause: threading.Event) -> threading.Thread:
    """A debug server that says `answer` a byte at a time, for ever."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / f"{pid}.sock"))
    listener.listen()

    def say() -> None:
        with listener, listener.accept()[0] as connection:
            try:
                connection.sendall(answer)
                while not pause.wait(0.02):
                    connection.sendall(b"x")
            except OSError:
                return

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    return thread


def test_a_debug_door_that_answers_a_byte_at_a_time_gets_no_longer_than_any_other(tmp_path: Path) -> None:
    folder, over = tmp_path, threading.Event()
    thread = serve(folder, os.getpid(), b"HTTP/1.1 200 OK\r\n\r\n", over)
    with pytest.raises(debug_client.DebugServerError, match="no answer within"):
        debug_client.ask(folder, os.getpid(), "ping", timeout_s=0.3)
    over.set()
    thread.join(10)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":{"total_time_us":1e400}}', b"\xff", b"[]", b"null"])
def test_counters_that_make_no_sense_are_an_answer_all_the_same(
    tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_client, "ask", lambda *_, **__: body)
    identity = identity_of(os.getpid())
    assert identity is not None
    subject = Subject(rank=0, identity=identity, log_path=tmp_path / "log", debug_servers=tmp_path)
    for what in ("wait_counters", "flight_recorder"):
        text, method = look(what, subject)
        assert method == "none"
        assert text


# --- the journal -------------------------------------------------------------------


def test_a_record_that_cannot_be_written_is_left_out_and_the_next_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    bad = EventKept(1, 1.0, RankSaid(REF, TrainingDone(2**70)))
    journal.append(bad)
    journal.append(Opened("j", "b"))
    assert (journal.unwritable, journal.error) == (1, "")
    journal.compact((bad, Opened("j", "b"), HostKept("job_1", 1, 2)))
    journal.sync()
    assert read_journal(tmp_path / "journal") == (Opened("j", "b"), HostKept("job_1", 1, 2))


def test_a_record_that_cannot_be_read_costs_itself_alone_and_an_events_place_is_held(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    good = EventKept(2, 1.0, RankSaid(REF, TrainingDone(1)))
    journal.append(EventKept(1, 1.0, RankSaid(REF, OuterError(1, 1, "a\0b"))))
    journal.append(HostKept("", 1, -2))
    journal.append(good)
    journal.close()
    size = path.stat().st_size
    unread: list[tuple[int, Path]] = []
    first, second, third = read_journal(path, lambda count, aside: unread.append((count, aside)))
    assert isinstance(first, EventKept)
    assert (first.seq, type(first.body)) == (1, InputRefused)
    assert (second, third) == (HostKept("", 1, -2), good)
    assert unread == [(1, tmp_path / "journal.unread")]
    assert path.stat().st_size == size, "the file is not cut there"


# --- drivers -----------------------------------------------------------------------


def test_an_impossible_reading_costs_that_reading() -> None:
    mad = DeviceSample(
        index=0, temperature_c=1e300, power_w=float("nan"), memory_used_bytes=2**70, throttle_reasons=("x" * 99,)
    )
    good = DeviceSample(index=1, temperature_c=50.0)
    assert plausible((mad, good, DeviceSample(index=MAX_DEVICES))) == (DeviceSample(index=0), good)


def test_a_drivers_names_are_cut_to_what_travels() -> None:
    (info,) = plausible((DeviceInfo(index=0, uuid="a\0\n" * 100, model="m", memory_bytes=-1, driver="nvml"),))
    assert (len(info.uuid) <= 80, info.memory_bytes) == (True, None)
    assert plausible((XidEvent(index=0, xid=2**63),)) == ()
