"""Effective training time from commit times. Pure; called by `g3_ettr` for every contestant.

ETTR here: from the last undisturbed commit on,
    (global batches committed x undisturbed median step time) / wall time.
A step that was lost and trained again counts once, a step of two thirds of a batch for
two thirds. A ratio above 1 would mean that the machine had less to do besides, and is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.outages import normal_step_s, progress
from benchmarks.records import Record

WARM_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ettr:
    """`ratio` as the module says; `batches` committed in `wall_s`."""

    ratio: float
    batches: float
    wall_s: float
    normal_s: float


def ettr(found: Sequence[Record], *, calm_until_s: float, end_s: float) -> Ettr:
    """From commit records to the ratio. All times by one clock; the first `WARM_STEPS`
    steps are left out of the undisturbed median."""
    normal_s = normal_step_s([item for item in found if item.step > WARM_STEPS], until_s=calm_until_s)
    line = progress(found)
    start_s = max((item.at_s for item in line if item.at_s <= calm_until_s), default=calm_until_s)
    batches = sum(item.batch for item in line if start_s < item.at_s <= end_s)
    wall_s = end_s - start_s
    return Ettr(ratio=min(1.0, batches * normal_s / wall_s), batches=batches, wall_s=wall_s, normal_s=normal_s)
