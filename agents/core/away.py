"""Did this process run all the time? If not, nobody was watched meanwhile.

A process that was stopped, or whose whole machine stood still, finds its monotonic clock ahead of every deadline.
What ranks said waits in their sockets then, and ranks that stood still with it are not to blame: `watch` adds the
time, and time for a word. While ranks live something happens every WATCH_S at least, as `watch` has a
deadline for it; `notice` is called by `step` before each event, for any may be the first one after it.
"""

from dataclasses import replace

from agents.core import limits
from agents.core.state import Away, ProcessState
from agents.core.turn import Turn

SEEN_EVERY_S = limits.LATE_S / 4.0


def notice(turn: Turn) -> None:
    """Nothing has happened for much longer than it can while this process runs."""
    state, now_s, seen_s = turn.state, turn.now_s, turn.state.seen_s
    if seen_s is not None and now_s - seen_s < SEEN_EVERY_S:
        return
    turn.set(seen_s=now_s)
    if seen_s is None or not state.ranks or now_s - seen_s <= limits.WATCH_S + limits.LATE_S:
        return
    missed_s, away = now_s - seen_s - limits.WATCH_S, state.away
    again = seen_s - away.until_s <= limits.LATE_AGAIN_S and away.times > 0
    times = away.times + 1 if again else 1
    if times <= limits.LATE_TIMES:
        turn.set(away=Away(now_s, missed_s + (away.missed_s if again else 0.0), times))
        turn.note("this process did not run", seconds=round(missed_s, 3))
        _put_off(turn, missed_s + limits.WORD_S)


def _put_off(turn: Turn, seconds: float) -> None:
    """What is awaited of processes, whose answers wait to be read. Orders and the lease are not put off: their time
    passed for the server too."""
    for rank in tuple(turn.state.ranks.values()):
        if rank.process is ProcessState.LAUNCHING:
            turn.put_rank(replace(rank, launched_at_s=rank.launched_at_s + seconds))
        elif rank.exit_due_s is not None:
            turn.put_rank(replace(rank, exit_due_s=rank.exit_due_s + seconds))
