"""What of a decision is carried out behind its commit: the starts in slots that it empties itself.

Who trains on waits for the view without the lost replica, and for nothing of its successor. So that successor's
rows and commands, thousands of a large replica, are a transaction of their own, right behind the one that
decides. Were it lost in between, the slot would stand empty, and whoever decides next starts it
(`policy.rules.replace`).
"""

from collections.abc import Iterable

from controlplane.changes.rows import Rows
from controlplane.policy import plan
from controlplane.policy.budget import Entry, entries
from controlplane.policy.facts import LIVE_ATTEMPT, TERMINAL_JOB
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import ReplicaState


def starts_behind(decision: plan.Decision) -> tuple[plan.StartReplica, ...]:
    """Those starts, in their order."""
    gone = ReplicaState.EVICTED
    emptied = {a.replica for a in decision.actions if isinstance(a, plan.SetReplicaState) and a.to == gone}
    return tuple(a for a in decision.actions if isinstance(a, plan.StartReplica) and a.replica in emptied)


def at_once(decision: plan.Decision) -> tuple[plan.Action, ...]:
    """All its other actions, in their order."""
    behind = starts_behind(decision)
    return tuple(action for action in decision.actions if action not in behind)


def still_wanted(
    rows: Rows, starts: Iterable[plan.StartReplica], *, attempt: int, epoch: int
) -> tuple[plan.StartReplica, ...]:
    """Those that are to be carried out, by a decision that left the job at this `epoch` in this `attempt`: none where a
    newer view, attempt or end was decided since, and none in a slot that was started since."""
    job, standing = rows.job(), rows.standing()
    newer = (standing.epoch, standing.newest) != (epoch, attempt)
    if newer or standing.trained or job.state in TERMINAL_JOB or rows.attempt().state not in LIVE_ATTEMPT:
        return ()
    newest = rows.newest_incarnations()
    return tuple(start for start in starts if newest.get(start.replica, 0) < start.incarnation)


def entered_at_once(decision: plan.Decision, snapshot: JobSnapshot) -> tuple[Entry, ...]:
    """What the ledger says of it before its starts are carried out."""
    behind = {start.replica for start in starts_behind(decision)}
    return tuple(entry for entry in entries(decision, snapshot) if entry.replica not in behind)


def entered_behind(
    decision: plan.Decision, snapshot: JobSnapshot, starts: Iterable[plan.StartReplica]
) -> tuple[Entry, ...]:
    """What it says of these starts: no rung is taken without its entry, and none that is not taken has one."""
    slots = {start.replica for start in starts}
    return tuple(entry for entry in entries(decision, snapshot) if entry.replica in slots)
