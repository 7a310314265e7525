"""What a project pays for a month: its seconds of the ledger, each charged or not. Called by `recovery.bills`; pure.

Theory. A bill counts nothing a second time: each of the ledger's amounts is one entry, and the terms say only whether
it is charged. So the entries of a bill sum to the ledger's seconds, class by class, whatever the terms are. A month
that was closed keeps its entries; what the ledger says of it later is a difference beside them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from controlplane.policy.ledger.account import Key
from controlplane.protocol.ledger import CauseKind, TimeClass

HOUR_S = 3600.0
SAME_GPU_S = 0.5
"""Two sums that differ by less are equal: the ledger's undisturbed step becomes better known all the time."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """`classes` that are charged. `incidents`: also where an incident is what they are due to, which elsewhere nobody
    pays for, whatever the class is. `price` of a GPU-hour; None: no money is counted."""

    classes: tuple[TimeClass, ...]
    incidents: bool = False
    price: float | None = None

    def charged(self, of: TimeClass, *, incident: bool) -> bool:
        """Whether a second of this class is paid for."""
        return of in self.classes and (self.incidents or not incident)

    def money(self, gpu_s: float) -> float | None:
        """What so many GPU-seconds cost."""
        return None if self.price is None else gpu_s / HOUR_S * self.price


class Entry(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """GPU-seconds of a job, of one class. `incident`: they are due to one."""

    job: str
    of: TimeClass
    incident: bool
    charged: bool
    gpu_s: float


def entries(amounts: Mapping[Key, float], terms: Terms) -> tuple[Entry, ...]:
    """What jobs held, by job, class and whether an incident is the cause; devices that nobody held are on no bill."""
    sums = defaultdict[tuple[str, TimeClass, bool], float](float)
    for key, gpu_s in amounts.items():
        if key.job:
            sums[key.job, key.of, key.cause.kind == CauseKind.INCIDENT] += gpu_s
    return tuple(
        Entry(job=job, of=of, incident=incident, charged=terms.charged(of, incident=incident), gpu_s=gpu_s)
        for (job, of, incident), gpu_s in sorted(sums.items())
        if gpu_s
    )


def charged_gpu_s(found: Iterable[Entry]) -> float:
    """Of those that are paid for."""
    return sum(each.gpu_s for each in found if each.charged)


def ends_s(month: str) -> tuple[float, float]:
    """The ends of a month (YYYY-MM, UTC) in Unix seconds. Raises ValueError."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    if f"{first:%Y-%m}" != month:
        raise ValueError(f"{month!r} is no month")
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return first.timestamp(), following.timestamp()


def month_of(at_s: float) -> str:
    """In which that moment is."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m}"
