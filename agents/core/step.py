"""The agent's brain: `step(state, event) -> (state, effects)`.

The runtime feeds everything that happens through here, one event at a time, carries the
effects out in order, and calls `step` with `Tick` at `next_deadline_s`.
"""

from collections.abc import Callable
from typing import Any

from agents.core import (
    away,
    commands,
    ends,
    launches,
    marks,
    notices,
    outer_end,
    relay,
    restore,
    session,
    verify,
    watch,
)
from agents.core.effects import Effect
from agents.core.events import (
    AllocationEnds,
    CheckpointProgress,
    CheckpointRead,
    DeviceReset,
    DevicesSampled,
    Event,
    FaultInjected,
    GroupGone,
    HostListed,
    HostProcessGone,
    HostReadied,
    HostStarted,
    HostStartFailed,
    Journaled,
    JournalRenewed,
    LinkDown,
    LinkUp,
    LogRead,
    MemoryRead,
    NodeRead,
    NoticeRead,
    OrderReceived,
    RankConnected,
    RankDisconnected,
    RankForkedHere,
    RankLineRefused,
    RankMessage,
    RankProcessGone,
    RankSpawnFailed,
    ResyncAsked,
    RulesRead,
    ServerAcked,
    StacksTaken,
    Tick,
    XidRaised,
)
from agents.core.state import State
from agents.core.turn import Turn
from agents.core.watch import next_deadline_s

__all__ = ["next_deadline_s", "resume", "step"]


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """What follows from `event`. Never raises for anything a peer can cause."""
    turn = Turn(state, event.now_s)
    away.notice(turn)
    _HANDLERS[type(event)](turn, event)
    outer_end.after(turn)
    return turn.state, tuple(turn.effects)


def resume(state: State, now_s: float) -> tuple[State, tuple[Effect, ...]]:
    """Once after `restore`, when every claim of the journal has been checked."""
    turn = Turn(state, now_s)
    restore.resume(turn)
    return turn.state, tuple(turn.effects)


def _after_gone(turn: Turn, event: Any) -> None:
    ends.on_process_gone(turn, event)
    launches.advance(turn)


def _after_group_gone(turn: Turn, event: Any) -> None:
    ends.on_group_gone(turn, event)
    launches.advance(turn)


_HANDLERS: dict[type[Event], Callable[[Turn, Any], None]] = {
    Tick: watch.on_tick,
    RulesRead: commands.on_rules,
    LinkUp: session.on_link_up,
    LinkDown: session.on_link_down,
    ResyncAsked: session.on_resync_asked,
    JournalRenewed: session.on_journal_renewed,
    ServerAcked: session.on_acked,
    OrderReceived: commands.on_order,
    Journaled: commands.on_journaled,
    RankConnected: relay.on_connected,
    RankDisconnected: relay.on_disconnected,
    RankMessage: relay.on_message,
    RankLineRefused: relay.on_line_refused,
    RankForkedHere: launches.on_forked,
    RankSpawnFailed: launches.on_spawn_failed,
    RankProcessGone: _after_gone,
    GroupGone: _after_group_gone,
    HostStarted: launches.on_host_started,
    HostStartFailed: launches.on_host_start_failed,
    HostReadied: launches.on_host_ready,
    HostListed: launches.on_host_listed,
    HostProcessGone: launches.on_host_gone,
    StacksTaken: commands.on_stacks,
    FaultInjected: commands.on_fault_injected,
    DeviceReset: commands.on_device_reset,
    CheckpointProgress: verify.on_progress,
    CheckpointRead: verify.on_read,
    DevicesSampled: watch.on_samples,
    XidRaised: watch.on_xid,
    LogRead: marks.on_log_read,
    NodeRead: launches.on_node_read,
    MemoryRead: launches.on_memory_read,
    NoticeRead: notices.on_read,
    AllocationEnds: outer_end.on_signal,
}
