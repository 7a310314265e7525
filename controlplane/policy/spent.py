"""Where a job's wall time since its first attempt went, counted one commit at a time.

Called as `policy.pace` is: by the ingest of step reports, which keeps a `Spent` for each job, and by
`jobs.numbers`, which reads it. Never reads a clock or a row.

Each gap between two commits is of one kind, by what is known when the later one is told:

| kind | the gap |
|---|---|
| recovery | follows a change of membership or attempt, or begins with the first attempt |
| again | ends with a step that was committed before: all of it is lost work |
| stalled | of the same members, longer than `STILL` times the job's own best step |
| degraded | any other: undisturbed steps, and slower ones of fewer devices or slow ranks |

Of a gap that ends with a step for the first time, one undisturbed step is *productive* and the rest belongs to
its kind. So what is productive is exactly kept steps x the undisturbed step, the effective time of
`policy.goodput`, and all kinds together are exactly the wall time: the gaps follow one another. Steps that
went back with a restart are lost work until they are trained again. Nothing is cut at 0, which would hide an
undisturbed step that was taken too long. What saves held training up is taken out of what they made longer.
"""

import msgspec

from controlplane.policy.pace import STILL, Commit, Pace, best_step_s

AGAIN, RECOVERY, STALLED, DEGRADED = "again", "recovery", "stalled", "degraded"
KINDS = (AGAIN, RECOVERY, STALLED, DEGRADED)


MAX_GAPS = 16


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Between two commits, by the clock of each (Unix seconds); `new_steps`: steps that it committed for the
    first time."""

    from_s: float
    until_s: float
    kind: str
    new_steps: int

    @property
    def length_s(self) -> float:
        """Below 0 where the clock was set back."""
        return self.until_s - self.from_s


class Spent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept. `began_s`: the first attempt began; `at_s` of the newest commit; `top`: most steps
    that were ever kept; `seconds` and `steps` of the gaps of each kind; `saved_s`: saves that were committed until
    `saves_until_s` held training up for so long; `gaps`: the newest that are no ordinary step, in one of which
    the clock was set, if it was (`policy.stepped`). Moments are Unix seconds."""

    began_s: float
    at_s: float
    attempt: int = 0
    step: int = -1
    epoch: int = 0
    top: int = 0
    seconds: dict[str, float] = {}
    steps: dict[str, int] = {}
    saved_s: float = 0.0
    saves_until_s: float = 0.0
    gaps: list[Gap] = []


class Wall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of wall time by what they were; `wall_s` is the sum of the others."""

    wall_s: float
    productive_s: float
    degraded_s: float
    stalled_s: float
    recovery_s: float
    lost_s: float
    checkpoint_s: float


def begin(began_s: float) -> Spent:
    """Nothing is committed yet."""
    return Spent(began_s=began_s, at_s=began_s, saves_until_s=began_s)


def count(spent: Spent, commit: Commit, pace: Pace) -> Gap | None:
    """Take one commit in, as `pace.count` does; `pace` after it. Returns the gap that it ends. Told again, or older:
    nothing changes."""
    if (commit.attempt, commit.step) <= (spent.attempt, spent.step):
        return None
    best_s = best_step_s(pace)
    kind = _kind(spent, commit, best_s)
    gap = Gap(from_s=spent.at_s, until_s=commit.at_s, kind=kind, new_steps=max(0, commit.kept - spent.top))
    if best_s is None or not 0.0 < gap.length_s <= STILL * best_s:
        spent.gaps = [*spent.gaps[-MAX_GAPS + 1 :], gap]
    spent.seconds = spent.seconds | {kind: spent.seconds.get(kind, 0.0) + gap.length_s}
    spent.steps = spent.steps | {kind: spent.steps.get(kind, 0) + gap.new_steps}
    spent.top = max(spent.top, commit.kept)
    spent.attempt, spent.step, spent.epoch, spent.at_s = commit.attempt, commit.step, commit.epoch, commit.at_s
    return gap


def _kind(spent: Spent, commit: Commit, best_s: float | None) -> str:
    if (commit.attempt, commit.epoch) != (spent.attempt, spent.epoch):
        return RECOVERY
    if commit.kept <= spent.top:
        return AGAIN
    long = best_s is not None and commit.at_s - spent.at_s > STILL * best_s
    return STALLED if long else DEGRADED


def wall(spent: Spent, *, kept: int, undisturbed_step_s: float, until_s: float, training: bool) -> Wall:
    """All of it until that moment, by when `kept` steps count. What follows the newest commit is the step in
    progress, or a stall where that is overdue; where the job is not `training`, recovery."""
    tail_s = until_s - spent.at_s
    tail = DEGRADED if tail_s <= STILL * undisturbed_step_s else STALLED
    rest = {kind: spent.seconds.get(kind, 0.0) - spent.steps.get(kind, 0) * undisturbed_step_s for kind in KINDS}
    rest[tail if training else RECOVERY] += tail_s
    # A save makes a gap a stall, or a step a little longer.
    saves_s = {STALLED: min(spent.saved_s, max(0.0, rest[STALLED]))}
    saves_s[DEGRADED] = min(spent.saved_s - saves_s[STALLED], max(0.0, rest[DEGRADED]))
    return Wall(
        wall_s=until_s - spent.began_s,
        productive_s=kept * undisturbed_step_s,
        degraded_s=rest[DEGRADED] - saves_s[DEGRADED],
        stalled_s=rest[STALLED] - saves_s[STALLED],
        recovery_s=rest[RECOVERY],
        lost_s=rest[AGAIN] + (spent.top - kept) * undisturbed_step_s,
        checkpoint_s=saves_s[STALLED] + saves_s[DEGRADED],
    )
