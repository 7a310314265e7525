"""Readings of many devices as one table of numbers: a row a device, a column a field of the sample.

Called by the live state for each wave of frames. Pure. What a device did not give is NaN. Throttle reasons, which are
words, become three columns: whether its hardware slows it, whether anything holds it back, whether there are any.
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from controlplane.policy.readings import HARDWARE_SLOWS
from controlplane.protocol.readings import SLOWED_BY
from controlplane.protocol.samples import DeviceSample

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.intp]

FIELDS = tuple(name for name in DeviceSample.__struct_fields__ if name not in ("index", "throttle_reasons"))
SLOWED, HELD_BACK, REASONS = range(len(FIELDS), len(FIELDS) + 3)
WIDTH = len(FIELDS) + 3
COLUMN = {name: number for number, name in enumerate(FIELDS)}
MAX_WORDS = 4096
"""Sets of reasons whose meaning is remembered."""

_read = attrgetter(*FIELDS)
_reasons = attrgetter("throttle_reasons")
_meaning: dict[tuple[str, ...] | None, tuple[float, float, float]] = {}


def table(samples: Sequence[DeviceSample]) -> Floats:
    """[samples, WIDTH]. Raises TypeError or ValueError for a value that is no number."""
    found: Floats = np.empty((len(samples), WIDTH))
    flat = list(chain.from_iterable(map(_read, samples)))
    try:
        numbers = np.fromiter(flat, dtype=np.float64, count=len(flat))
    except TypeError:
        # Slower, and takes None for what it is.
        numbers = np.array(flat, dtype=np.float64)
    found[:, :SLOWED] = numbers.reshape(len(samples), SLOWED)
    means = [_meaning.get(reasons) or _means(reasons) for reasons in map(_reasons, samples)]
    found[:, SLOWED:] = np.array(means, dtype=np.float64).reshape(len(samples), WIDTH - SLOWED)
    return found


def _means(reasons: tuple[str, ...] | None) -> tuple[float, float, float]:
    if len(_meaning) >= MAX_WORDS:
        _meaning.clear()
    if reasons is None:
        return _meaning.setdefault(None, (np.nan, np.nan, np.nan))
    slowed, held_back = HARDWARE_SLOWS.intersection(reasons), SLOWED_BY.intersection(reasons)
    return _meaning.setdefault(reasons, (float(bool(slowed)), float(bool(held_back)), float(bool(reasons))))
