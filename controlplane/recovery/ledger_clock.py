"""The ledger's spans when the server's clock was set: as if it had always told the present time (`policy.stepped`).
Called by `recovery.clock_set` in its transaction."""

from django.db.models import F, Model, Q

from controlplane.policy.stepped import AHEAD_S, ClockSet
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark, LedgerRun, LedgerStanding, LedgerTurn

MOMENTS: tuple[tuple[type[Model], tuple[str, ...]], ...] = (
    (LedgerRun, ("from_s", "until_s")),
    (LedgerHold, ("from_s", "until_s")),
    (LedgerStanding, ("from_s", "until_s")),
    (LedgerTurn, ("from_s",)),
    (LedgerMark, ("began_s", "judged_s")),
)


def move(by: ClockSet) -> None:
    """Each moment that the present clock did not tell. A gap in which it was set loses the step by that: its
    end is of this clock, its beginning is moved."""
    for model, columns in MOMENTS:
        for column in columns:
            present = Q(**{f"{column}__gte": by.since_s, f"{column}__lte": by.now_s + AHEAD_S})
            model._default_manager.exclude(present).update(**{column: F(column) + by.step_s})
