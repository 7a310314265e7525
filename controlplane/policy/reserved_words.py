"""Free devices that a job cannot have because they are reserved for others, in words. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from controlplane.policy.reserved import Reservation
from controlplane.policy.titles import number_of

NAMED = 3
"""So many reservations are named in a sentence."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """So many free devices of a `reservation` that others cannot have."""

    reservation: Reservation
    devices: int


def count(found: dict[str, Kept], first: Reservation, devices: int) -> None:
    """So many more of this one, by its id."""
    before = found[first.id].devices if first.id in found else 0
    found[first.id] = Kept(reservation=first, devices=before + devices)


def kept_words(kept: Iterable[Kept], now_s: float) -> str:
    """How many, for whom, and until when, as a sentence behind others; "" for none."""
    listed = sorted(kept, key=lambda each: (each.reservation.until_s, each.reservation.id))
    said = "; ".join(_kept(each, now_s) for each in listed[:NAMED])
    more = f"; and for {number_of(len(listed) - NAMED, 'reservation')} more" if len(listed) > NAMED else ""
    return f" Reserved: {said}{more}." if said else ""


def _kept(each: Kept, now_s: float) -> str:
    found = each.reservation
    since = "" if found.runs(now_s) else f"from {_at(found.from_s)} "
    return f"{number_of(each.devices, 'free device')} for {found.called} {since}until {_at(found.until_s)}"


def _at(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"
