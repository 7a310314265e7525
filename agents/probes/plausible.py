"""What a driver reads, within the ranges of the protocol; called by the samplers and the worker.

A driver that answers nonsense (a power of 4 GW, a name of a page) costs that one reading, as if
it could not give it: in a frame it would cost the frame, and so all that the node has to say. It
never changes a value that is in its range.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from controlplane.protocol.bounds import fitted
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

MAX_NAME_CHARS = 80
Reading = TypeVar("Reading", DeviceInfo, DeviceSample, XidEvent)


def plausible(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Without the values that are out of range; without those readings of which nothing is left."""
    return tuple(kept for reading in readings if (kept := _repaired(reading)) is not None)


def _repaired(reading: Reading) -> Reading | None:
    if _fits(reading, type(reading)):
        return reading
    absent = {}
    for field in msgspec.structs.fields(reading):
        value = getattr(reading, field.name)
        if not _fits(value, field.type):
            absent[field.name] = _shown(value) if isinstance(value, str) else () if isinstance(value, tuple) else None
    repaired = msgspec.structs.replace(reading, **absent)
    return repaired if _fits(repaired, type(reading)) else None


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError):
        return False
    return True


def _shown(text: str) -> str:
    """A name of a device, on one line."""
    return "".join(letter for letter in fitted(text, MAX_NAME_CHARS) if letter.isprintable())
