"""Effective training time from commit times. Pure; called by `g3_ettr` for every contestant.

ETTR here: from the last undisturbed commit on,
    (global batches committed x undisturbed median step time) / wall time.
A step that was lost and trained again counts once, a step of two thirds of a batch for
two thirds. The same arithmetic gives a job's effective time (`controlplane.policy.goodput`), and
neither is cut: a ratio above 1 says that the undisturbed part was disturbed. Nor is it estimated
here: an undisturbed part with fewer replicas than were asked for is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.outages import normal_step_s, progress
from benchmarks.records import Record
from controlplane.policy.goodput import effective_ratio

WARM_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ettr:
    """`ratio` as the module says; `batches` committed in `wall_s`."""

    ratio: float
    batches: float
    wall_s: float
    normal_s: float


def ettr(found: Sequence[Record], *, replicas: int, calm_until_s: float, end_s: float) -> Ettr:
    """From commit records to the ratio. All times by one clock; the first `WARM_STEPS`
    steps are left out of the undisturbed median. `replicas` were asked for."""
    warm = [item for item in found if item.step > WARM_STEPS]
    normal_s = normal_step_s(warm, until_s=calm_until_s)
    short = [item.step for item in progress(warm) if item.at_s < calm_until_s and item.contributors < replicas]
    assert not short, f"steps {short[:5]} of the undisturbed part were trained with fewer than {replicas} replicas"
    line = progress(found)
    start_s = max((item.at_s for item in line if item.at_s <= calm_until_s), default=calm_until_s)
    batches = sum(item.batch for item in line if start_s < item.at_s <= end_s)
    wall_s = end_s - start_s
    ratio = effective_ratio(committed=batches, undisturbed_step_s=normal_s, wall_s=wall_s)
    assert ratio is not None, "the disturbed part takes time"
    return Ettr(ratio=ratio, batches=batches, wall_s=wall_s, normal_s=normal_s)
