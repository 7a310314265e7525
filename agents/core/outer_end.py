"""The end of this node's allocation, which an outer scheduler announces by a signal: it is reported as a notice, and
within the grace the agent leaves with nothing of it still running.

1. *Reported* as the provider's notices are (`notices`), so that the server saves, moves and yields as for those
   (ADR 0050). What it orders has its time.
2. *Ended here*, where nothing was asked: after half of the grace if the server is away, else just before the end,
   by SIGTERM, on which ranks save when their step is over and leave by themselves.
3. *Killed* in the last second, and *left*: no rank, no start, no host, and the server has all events, or has been away
   up to the moment of 2; or time is up. Not at once: what was decided before the server knew may still arrive.

Called by `step`, before and after what it carries out. Pure.
"""

from dataclasses import replace as copied

from agents.core import limits, notices
from agents.core.effects import Leave, ShutdownHost
from agents.core.ends import kill
from agents.core.events import AllocationEnds, NoticeRead
from agents.core.state import OuterEnd, State
from agents.core.turn import Turn


def on_signal(turn: Turn, event: AllocationEnds) -> None:
    """A second signal can bring the end nearer; it moves nothing away."""
    known, leaves_s = turn.state.outer_end, event.now_s + event.grace_s
    if known is not None and known.leaves_s <= leaves_s + notices.SAME_S:
        return
    turn.set(outer_end=OuterEnd(at_s=event.now_s, leaves_s=leaves_s), notice=None)
    notices.on_read(turn, NoticeRead(now_s=event.now_s, leaves_in_s=event.grace_s, reason=event.reason))


def on_tick(turn: Turn) -> None:
    """What is due, each once; `ends.kill` asks again by itself."""
    end = turn.state.outer_end
    if end is None:
        return
    if not end.waited and turn.now_s >= _stays_s(end):
        end = copied(end, waited=True)
        turn.set(outer_end=end)
    kill_s = _kill_s(end)
    kills, asks = not end.killed and turn.now_s >= kill_s, not end.asked and turn.now_s >= _own_s(turn.state, end)
    if not kills and not asks:
        return
    turn.set(outer_end=copied(end, asked=True, killed=end.killed or kills))
    for rank in tuple(turn.state.ranks.values()):
        if kills:
            kill(turn, rank)
        elif not rank.expected:
            turn.note("asked to end, as its allocation ends and the server sent nothing", rank=rank.ref.rank)
            kill(turn, rank, grace_s=kill_s - turn.now_s)


def after(turn: Turn) -> None:
    """Whatever happened: hosts that nothing needs any more are sent home, and who is done leaves, once."""
    end = turn.state.outer_end
    if end is None or end.left:
        return
    waited = turn.now_s >= _stays_s(end)
    if waited and not turn.state.ranks and not turn.state.launches and not end.hosts_asked:
        end = copied(end, hosts_asked=True)
        turn.set(outer_end=end)
        turn.do(*(ShutdownHost(host.job_id) for host in turn.state.hosts.values()))
    if is_over(turn.state, turn.now_s):
        turn.set(outer_end=copied(end, left=True))
        turn.do(Leave())


def is_over(state: State, now_s: float) -> bool:
    """Nothing is left to do here, or no time."""
    end = state.outer_end
    if end is None:
        return False
    # A link that is down for a moment is up again soon, and the last events go with it.
    heard = not state.events or (not state.link.up and now_s >= _own_s(state, end))
    idle = not (state.ranks or state.launches or state.hosts) and now_s >= _stays_s(end)
    return (heard and idle) or now_s >= _last_s(end)


def due(state: State) -> tuple[float, ...]:
    """Moments (monotonic seconds) at which `on_tick` or `after` has something to do."""
    end = state.outer_end
    if end is None or end.left:
        return ()
    asked = () if end.asked else (_own_s(state, end),)
    waits = () if end.waited else (_stays_s(end),)
    return (*waits, *asked, *(() if end.killed else (_kill_s(end),)), _last_s(end))


def _stays_s(end: OuterEnd) -> float:
    """Until then a start may arrive that was decided before the notice: it is taken, and ended as all others."""
    return end.at_s + min(limits.OUTER_STAYS_S, (end.leaves_s - end.at_s) / 8)


def _own_s(state: State, end: OuterEnd) -> float:
    grace_s = end.leaves_s - end.at_s
    if not state.link.up:
        return end.at_s + grace_s / 2
    return end.leaves_s - min(limits.OUTER_OWN_S, grace_s / 4)


def _kill_s(end: OuterEnd) -> float:
    return end.leaves_s - min(limits.OUTER_KILL_S, (end.leaves_s - end.at_s) / 8)


def _last_s(end: OuterEnd) -> float:
    return end.leaves_s - min(limits.OUTER_LAST_S, (end.leaves_s - end.at_s) / 16)
