"""Looks at one rank from outside: stacks, ping, Flight Recorder, wait counters, profile, log.

Nothing here waits for the rank's training thread. What the debug server answers comes from
C++ threads and works on a rank that is blocked or whose interpreter is locked; stacks fall
back on the kernel; only a profile needs the interpreter. A stopped process answers nothing,
and then the text says so. Blocking: call it in a thread.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agents.core.effects import TakeStacks
from agents.core.events import StacksTaken
from agents.core.limits import MAX_STACK_CHARS
from agents.core.state import Identity
from agents.ranks import debug_client
from agents.ranks.identity import is_alive, read_stat
from agents.ranks.logs import printable, tail
from agents.ranks.stacks import take_stacks
from controlplane.protocol.diagnostics import (
    BY_NAME,
    FLIGHT_RECORDER,
    LOG,
    MAX_PROFILE_S,
    NOT_GOT,
    PING,
    PROFILE,
    STACKS,
    WAIT_COUNTERS,
)
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.flight import encode_dump, repair

MIN_PROFILE_S = 0.1
LOG_BYTES = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom to look at. `rank` is its index inside its replica."""

    rank: int
    identity: Identity
    log_path: Path
    debug_servers: Path
    duration_s: float = 0.0


def look(what: str, subject: Subject) -> tuple[str, str]:
    """(text, method); method "none" when it could not be got, and the text says why."""
    try:
        own = _LOOKS.get(what)
        return own(subject) if own is not None else _from_debug_server(what, subject)
    except (debug_client.DebugServerError, ProtocolError, OSError) as error:
        return f"{what.replace('_', ' ')} could not be got: {error}{_why(subject)}", NOT_GOT


def look_for(order: TakeStacks, log_path: Path, debug_servers: Path) -> StacksTaken:
    """Carry the effect out; its event."""
    subject = Subject(
        rank=order.ref.rank,
        identity=order.identity,
        log_path=log_path,
        debug_servers=debug_servers,
        duration_s=order.duration_s,
    )
    text, method = look(order.look, subject)
    return StacksTaken(
        now_s=time.monotonic(), ref=order.ref, command_id=order.command_id, text=text, method=method, look=order.look
    )


def _from_debug_server(what: str, subject: Subject) -> tuple[str, str]:
    """What its handler says, where nothing is to be made of it here."""
    return printable(_ask(subject, what).decode("utf-8", "replace")), "debug server"


def _stacks(subject: Subject) -> tuple[str, str]:
    return take_stacks(subject.identity, subject.log_path)


def _ping(subject: Subject) -> tuple[str, str]:
    began_s = time.monotonic()
    answer = _ask(subject, PING).decode("utf-8", "replace")
    return f"{printable(answer)[:80]} after {(time.monotonic() - began_s) * 1000.0:.1f} ms", "debug server"


def _flight_recorder(subject: Subject) -> tuple[str, str]:
    dump = _ask(subject, FLIGHT_RECORDER)
    repaired = repair(dump, subject.rank, debug_client.groups(subject.debug_servers, subject.identity.pid))
    return encode_dump(repaired, MAX_STACK_CHARS), "debug server"


def _wait_counters(subject: Subject) -> tuple[str, str]:
    """One counter a line, the longest total first."""
    try:
        counters = json.loads(_ask(subject, WAIT_COUNTERS))
        rows = sorted(((int(c["total_time_us"]), str(n), c) for n, c in counters.items()), key=lambda r: (-r[0], r[1]))
        lines = [
            f"{name}: {c['total_calls']} calls, {total_us / 1e6:.6f} s in all, "
            f"{int(c['max_time_us']) / 1e6:.6f} s at most, {c['active_count']} waiting now"
            for total_us, name, c in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise debug_client.DebugServerError(f"its counters make no sense: {error!r}") from error
    return printable("\n".join(lines) or "nothing was counted yet"), "debug server"


def _profile(subject: Subject) -> tuple[str, str]:
    return printable(_ask(subject, PROFILE).decode("utf-8", "replace")), "sampling"


def _log(subject: Subject) -> tuple[str, str]:
    """The end of what it has written so far, whole lines."""
    return tail(subject.log_path, LOG_BYTES) or "nothing was written yet", "file"


def _ask(subject: Subject, what: str, timeout_s: float | None = None) -> bytes:
    """The answer of the handler that the table names, for as long as it says."""
    asked = BY_NAME[what]
    handler, within_s = asked.handler, asked.timeout_s if timeout_s is None else timeout_s
    if asked.timed:
        duration_s = min(max(subject.duration_s, MIN_PROFILE_S), MAX_PROFILE_S)
        handler, within_s = f"{handler}?duration={duration_s:g}", within_s + duration_s
    if not is_alive(subject.identity):
        raise debug_client.DebugServerError("the process is gone")
    if _is_stopped(subject):
        raise debug_client.DebugServerError("the process is stopped (SIGSTOP)")
    return debug_client.ask(subject.debug_servers, subject.identity.pid, handler, timeout_s=within_s)


def _is_stopped(subject: Subject) -> bool:
    stat = read_stat(subject.identity.pid)
    return stat is not None and stat.state in "Tt"


def _why(subject: Subject) -> str:
    """Does a thread that needs no interpreter still answer? Then the interpreter is locked."""
    try:
        _ask(subject, PING, 0.5)
    except debug_client.DebugServerError:
        return ""
    return "; its C++ threads do answer, so its interpreter is locked or busy"


_LOOKS: dict[str, Callable[[Subject], tuple[str, str]]] = {
    STACKS: _stacks,
    PING: _ping,
    FLIGHT_RECORDER: _flight_recorder,
    WAIT_COUNTERS: _wait_counters,
    PROFILE: _profile,
    LOG: _log,
}
