"""Findings that no rule ends: for people, and of kinds that only a newer release knows."""

from collections.abc import Iterator

from controlplane.changes.due.rows import FindingRows
from controlplane.changes.kinds import Amend, Change, Settle
from controlplane.policy.signals import KINDS, with_trait
from controlplane.policy.signals.base import Trait

FOR_PEOPLE = with_trait(Trait.PEOPLE)
DECIDED = tuple(kind for kind in KINDS if kind not in FOR_PEOPLE)
FOR_PEOPLE_S = 3600.0
"""So long after it was seen, one for people is settled; what lasts is found again."""
NOT_KNOWN = "not_known_here"


def settle_old(rows: FindingRows) -> Iterator[Change]:
    """Findings for people that did not come again."""
    old = rows.seen_before(FOR_PEOPLE, rows.now_s - FOR_PEOPLE_S)
    if old:
        yield Settle(tuple(old), "not repeated for an hour")


def report_unknown(rows: FindingRows) -> Iterator[Change]:
    """Open findings of kinds that this release does not know, as a newer one leaves them: no rule sees
    them, so people hear of them, once."""
    for found in rows.strangers(KINDS, without=NOT_KNOWN):
        sentence = f"This release knows no finding of the kind {found.kind}: nothing is decided about it. Upgrade."
        yield Amend(found.id, {**found.evidence, NOT_KNOWN: True}, sentence)
