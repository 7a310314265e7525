"""What counts: as an act of the governor's window, as a suspicion, against a budget. Loaders count rows by it."""

from collections.abc import Iterable
from itertools import pairwise, takewhile
from typing import NamedTuple

from controlplane.policy.findings import KINDS
from controlplane.policy.plan import ORDERED, PREEMPTED, Decision
from controlplane.policy.rules.registry import DESTRUCTIVE
from controlplane.policy.rules.replica_failure import COLLECT
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.states import UNFIT, Mode

WINDOW_S = 60.0
"""Of the governor."""
ENDS_NOTHING = ("tell", COLLECT)
"""Choices of destructive rules that end nothing."""
SUSPECT = with_trait(Trait.SUSPECT)
MAX_REISSUES_READ = 20
MAX_REFUSED_READ = 20
"""Their pauses have long stopped growing."""


class Try(NamedTuple):
    """An attempt. `saved`: it brought a committed checkpoint beyond where it began."""

    ended: bool
    end_code: str
    saved: bool


class Announced(NamedTuple):
    """A view of the attempt. `resumed`: a step was committed in it."""

    members: object
    resumed: bool


def is_act(decision: Decision) -> bool:
    """A destructive one that was carried out."""
    return decision.rule in DESTRUCTIVE and decision.choice not in ENDS_NOTHING and decision.mode is Mode.ENFORCE


def is_suspicion(signal: SignalFact, *, settled: bool) -> bool:
    """It names a device or a node; one of hardware counts also when it was acted on, so that a flood of them is not
    cordoned one by one. A node that died long ago and was dealt with says nothing about the trust that today's
    findings deserve."""
    acted_on = signal.kind in KINDS and signal.incident_id is not None
    return signal.kind in SUSPECT and signal.node_id is not None and (acted_on or not settled)


def refused(end_codes: Iterable[str]) -> int:
    """Attempts in a row, newest first, of which nodes would start nothing."""
    return len(list(takewhile(lambda code: code == UNFIT, end_codes)))


def idle(tries: Iterable[Try]) -> int:
    """Ended attempts in a row, newest first, without a checkpoint beyond where they began; the
    one that lives breaks the row as soon as it has brought one. What a person's order ended, or
    no node would start, is passed over: it was not given the time. Steps alone are no progress:
    the next attempt would train them again."""
    given_time = takewhile(lambda each: not each.saved, (each for each in tries if each.end_code != UNFIT))
    return sum(each.ended and each.end_code not in (ORDERED, PREEMPTED) for each in given_time)


def reissued(views: Iterable[Announced]) -> int:
    """Views in a row, newest first, with unchanged members since a step was last committed."""
    count = 0
    for newer, older in pairwise(views):
        if newer.members != older.members or newer.resumed:
            return count
        count += 1
        if older.resumed:
            return count
    return count
