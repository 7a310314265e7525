"""Gaps between commits become runs of a job's time, one commit at a time; what a restart goes back behind is lost.

Called by `recovery.ledger_runs`, in the transaction in which `policy.spent` counts the commit, with the very gap that
it judged. Ordinary gaps that follow one another become one run, so that there are few; each stall, recovery and step
trained again after one is there by itself, with its own cause. Pure: takes values, returns values.
"""

import msgspec

from controlplane.policy.ledger.facts import NOBODY, Cause
from controlplane.policy.spent import AGAIN, DEGRADED, Gap

LONGEST_S = 3600.0
"""Of a run that is made of several gaps: within it, steps came evenly."""
MERGED = (DEGRADED, AGAIN)


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A save that was committed at `at_s` held training up for `blocking_s`."""

    at_s: float
    blocking_s: float


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A gap that ends with the commit of a step, after which `done` steps are behind the `attempt`; `since` were
    before it, in `since_epoch` (0: no commit before). `saves` were committed within it."""

    gap: Gap
    attempt: int
    since_epoch: int
    epoch: int
    since: int
    done: int
    saves: tuple[Saved, ...] = ()


class Grown(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A run as it is kept: `since` .. `done` as in `Gone`, of which `lost` were taken back."""

    attempt: int
    since_epoch: int
    epoch: int
    from_s: float
    until_s: float
    kind: str
    since: int
    done: int
    lost: int = 0
    saved_s: float = 0.0
    cause: Cause = NOBODY
    lost_cause: Cause = NOBODY


def grow(newest: Grown | None, gone: Gone) -> Grown | None:
    """Take a gap into the newest run; or the run that it begins, None where it went into that."""
    gap, saved_s = gone.gap, sum(save.blocking_s for save in gone.saves)
    if newest is not None and _follows(newest, gone):
        newest.until_s, newest.done = gap.until_s, gone.done
        newest.saved_s += saved_s
        return None
    return Grown(
        attempt=gone.attempt,
        since_epoch=gone.since_epoch,
        epoch=gone.epoch,
        from_s=gap.from_s,
        until_s=gap.until_s,
        kind=gap.kind,
        since=gone.since,
        done=gone.done,
        saved_s=saved_s,
    )


def _follows(newest: Grown, gone: Gone) -> bool:
    gap = gone.gap
    same = (newest.kind, newest.attempt, newest.epoch) == (gap.kind, gone.attempt, gone.epoch)
    whole = newest.until_s == gap.from_s and newest.done == gone.since and not newest.lost
    return same and whole and gap.kind in MERGED and gap.until_s - newest.from_s <= LONGEST_S


def lost_of(run: Grown, *, attempt: int, resume_step: int) -> int:
    """Steps of it that the start of that attempt took back: those beyond the step from which it resumes."""
    return max(0, run.done - max(run.since, resume_step)) if run.attempt < attempt else 0
