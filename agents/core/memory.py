"""A start waits until the devices that held a rank before have let go of its memory.

A killed process is gone before its driver has taken back what it had allocated; a rank that
starts meanwhile runs out of memory. Only devices that a rank has left since this agent began
are waited for, and none under another living rank. A device that gives no reading is not waited
for either. When the time is up the ranks start all the same, and the answer says so: a device
that stays full is found by the rank itself, and a small model may fit beside it.
"""

from dataclasses import replace

from agents.core import limits
from agents.core.effects import ReadMemory
from agents.core.events import MemoryRead
from agents.core.state import Emptying, PendingLaunch, ProcessState, State
from agents.core.turn import Turn


def ask(turn: Turn, pending: PendingLaunch) -> bool:
    """True when the start may go on; else the memory of its devices is asked for."""
    if pending.emptying is not None:
        return pending.emptying.done
    devices = _left(turn.state, pending)
    if not devices or turn.state.memory_wait_s <= 0:
        return True
    now_s = turn.now_s
    _put(turn, pending, Emptying(devices=devices, since_s=now_s, due_s=now_s + limits.MEMORY_ANSWER_S))
    turn.do(ReadMemory())
    return False


def on_memory_read(turn: Turn, event: MemoryRead) -> None:
    """A start whose devices are empty, or give no reading, need not wait any longer."""
    for pending in turn.state.launches:
        wait = pending.emptying
        if wait is None or wait.done:
            continue
        used_bytes = {index: event.used_bytes.get(index) or 0 for index in wait.devices}
        full = {index: used for index, used in used_bytes.items() if used > turn.state.empty_device_bytes}
        if not full:
            _put(turn, pending, replace(wait, done=True, full_bytes={}))
        else:
            _put(turn, pending, replace(wait, full_bytes=full, due_s=_next_s(turn, wait)))


def on_tick(turn: Turn) -> None:
    """Ask again; or give up, when the time is up or the driver has said nothing at all."""
    for pending in turn.state.launches:
        wait = pending.emptying
        if wait is None or wait.done or wait.due_s > turn.now_s:
            continue
        if wait.full_bytes and turn.now_s < wait.since_s + turn.state.memory_wait_s:
            _put(turn, pending, replace(wait, due_s=_next_s(turn, wait)))
            turn.do(ReadMemory())
            continue
        _put(turn, pending, replace(wait, done=True))
        if wait.full_bytes:
            turn.note("ranks start on devices that are not empty", job=pending.launch.job_id, full=_named(wait))


def due_s(pending: PendingLaunch) -> float | None:
    """When `on_tick` has something to do; None: never, as things are."""
    wait = pending.emptying
    return None if wait is None or wait.done else wait.due_s


def said(state: State, pending: PendingLaunch) -> str:
    """What the answer of a start adds that did not wait any longer; "" when all were empty."""
    wait = pending.emptying
    if wait is None or not wait.full_bytes:
        return ""
    return f"; not empty after {state.memory_wait_s:g} s: {_named(wait)}"


def _left(state: State, pending: PendingLaunch) -> frozenset[int]:
    wanted = {place.device_index for place in pending.launch.ranks} & state.left_devices
    return frozenset(
        wanted - {rank.device_index for rank in state.ranks.values() if rank.process is not ProcessState.GONE}
    )


def _named(wait: Emptying) -> str:
    return ", ".join(f"device {index} ({used >> 20} MiB used)" for index, used in sorted(wait.full_bytes.items()))


def _next_s(turn: Turn, wait: Emptying) -> float:
    return min(turn.now_s + limits.MEMORY_POLL_S, wait.since_s + turn.state.memory_wait_s)


def _put(turn: Turn, pending: PendingLaunch, wait: Emptying) -> None:
    waiting = replace(pending, emptying=wait)
    turn.set(launches=tuple(waiting if other is pending else other for other in turn.state.launches))
