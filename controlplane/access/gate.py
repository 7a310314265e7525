"""How often somebody may try to sign in. Asked by the sign-in before a password is looked at.

What is counted, in rows that all web processes share:
- the pair of a name and an address: a few free failures, then a pause that doubles;
- the address, whatever names it tries: many free failures, then a pause that doubles to a
  bound;
- the name, from whatever addresses: a short pause, for addresses it has never signed in from.

A name is never locked. Who guesses at it from elsewhere closes only his own pair; an address
from which the name has signed in before (within KNOWN_S) passes the limits of the name and of
the address and meets only those of its own pair. An attempt is counted before the password is
looked at, so that a hundred at once are a hundred; a success takes its count back. Passwords
for one use are 256 random bits: guessing them is met by the address's limit alone.

Bounded: rows quiet for FORGET_S are deleted hourly (`forget_old`), and a refused try makes none:
each new row costs its maker a password that was looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from controlplane.access.models import SignInGate
from controlplane.access.tokens import digest
from controlplane.runtime.address import place_of
from controlplane.runtime.clock import now

QUIET_S = 3600.0
"""After so long without an attempt the failures of a row count no more."""
FORGET_S = 86_400.0
KNOWN_S = 90 * 86_400.0
LONGEST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`free` failures without a pause; then `first_s`, doubling up to `most_s` seconds."""

    free: int
    first_s: float
    most_s: float

    def pause_s(self, failures: int) -> float:
        """How long after so many failures nothing is looked at."""
        beyond = failures - self.free
        if beyond <= 0:
            return 0.0
        return min(self.most_s, self.first_s * 2.0 ** min(beyond - 1, LONGEST_DOUBLINGS))


PAIR = Limit(free=5, first_s=2.0, most_s=900.0)
ADDRESS = Limit(free=20, first_s=1.0, most_s=60.0)
NAME = Limit(free=20, first_s=1.0, most_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try. `wait_s`: not before so many seconds; None: look at the password now.
    `pair`: its row's key; `counted`: keys of the other rows that count it as failed."""

    wait_s: float | None
    pair: str
    counted: tuple[str, ...] = ()


def knock(name: str, address: str, *, one_time: bool = False) -> Attempt:
    """Count a try of `name` from `address` (as `client_address` tells it) as failed until
    `opened` says otherwise, or refuse it. A refused one is not counted: whoever keeps knocking
    does not keep the owner out."""
    keys = _keys(name, place_of(address))
    moment = now()
    kept = {row.key: row for row in SignInGate.objects.filter(key__in=keys)}
    wait_s = _wait_s(_asked(keys, kept, moment, one_time), kept, moment)
    if wait_s:
        return Attempt(wait_s=wait_s, pair=keys[0])
    with transaction.atomic():
        rows = _locked(keys, moment)
        asked = _asked(keys, rows, moment, one_time)
        wait_s = _wait_s(asked, rows, moment)
        if wait_s:
            return Attempt(wait_s=wait_s, pair=keys[0])
        for key, limit in asked.items():
            row = rows[key]
            row.failures += 1
            row.last_at = moment
            pause_s = limit.pause_s(row.failures)
            row.closed_until = moment + timedelta(seconds=pause_s) if pause_s else None
            row.save()
    return Attempt(wait_s=None, pair=keys[0], counted=tuple(key for key in asked if key != keys[0]))


def opened(attempt: Attempt) -> None:
    """The password was right: the pair begins anew and is known; the others take this one try
    back and no more, so that an account of one's own buys no guesses at another's."""
    moment = now()
    with transaction.atomic():
        rows = _locked((attempt.pair, *attempt.counted), moment)
        pair = rows.pop(attempt.pair)
        pair.failures, pair.closed_until, pair.last_at = 0, None, moment
        pair.known_until = moment + timedelta(seconds=KNOWN_S)
        pair.save()
        for row in rows.values():
            row.failures = max(0, row.failures - 1)
            row.save()


def forget_old() -> int:
    """Delete what is quiet and no longer known; how many rows."""
    moment = now()
    unknown = Q(known_until=None) | Q(known_until__lte=moment)
    deleted, _ = SignInGate.objects.filter(unknown, last_at__lt=moment - timedelta(seconds=FORGET_S)).delete()
    return deleted


def _keys(name: str, place: str) -> tuple[str, str, str]:
    """Of the pair, the address and the name."""
    return digest(f"pair\n{name}\n{place}"), digest(f"address\n{place}"), digest(f"name\n{name}")


def _asked(
    keys: tuple[str, str, str], rows: Mapping[str, SignInGate], moment: datetime, one_time: bool
) -> dict[str, Limit]:
    """Which rows a try must pass, by which limit."""
    pair, address, name = keys
    known = pair in rows and rows[pair].known_until
    if known and known > moment:
        return {pair: PAIR}
    return {address: ADDRESS} if one_time else {pair: PAIR, address: ADDRESS, name: NAME}


def _locked(keys: Sequence[str], moment: datetime) -> dict[str, SignInGate]:
    """These rows, locked in one order; made where there are none."""
    fresh = [SignInGate(key=key, last_at=moment) for key in sorted(keys)]
    SignInGate.objects.bulk_create(fresh, ignore_conflicts=True)
    rows = {row.key: row for row in SignInGate.objects.select_for_update().filter(key__in=keys).order_by("key")}
    for row in rows.values():
        if row.failures and (moment - row.last_at).total_seconds() > QUIET_S:
            row.failures, row.closed_until = 0, None
    return rows


def _wait_s(asked: Iterable[str], rows: Mapping[str, SignInGate], moment: datetime) -> float:
    """The longest pause among the rows asked; 0 where none is closed."""
    closed = [rows[key].closed_until for key in asked if key in rows]
    return max(
        [(until - moment).total_seconds() for until in closed if until is not None and until > moment], default=0.0
    )
