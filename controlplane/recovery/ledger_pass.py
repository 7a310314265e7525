"""Bring the GPU-second ledger up to now. Called every few seconds by beat, by any worker; correct with one, none for
an hour, or three: its row is locked, and each piece of work is found by what is not done yet.

1. Events of nodes, replicas and incidents since the mark, in pieces of one short transaction each.
2. Devices that were released.
3. What restarts took back, and what each run of a job's time is due to.
4. The mark: nothing later than `judged_s` is judged.
"""

from django.db import transaction

from controlplane.recovery import ledger_causes, ledger_rows, ledger_spans
from controlplane.recovery.ledger_models import LedgerMark
from controlplane.recovery.ledger_spans import Seen
from controlplane.runtime import events, windows
from controlplane.runtime.clock import from_s, now, now_s
from controlplane.runtime.models import Event

EVENTS_A_PIECE = 500
PIECES_A_PASS = 40
FOLLOWED = ("node", "replica", "incident")
SETTLE_S = 3.0
"""What is committed later than it happened is not judged before."""


def build() -> float:
    """Returns up to when the ledger is judged, Unix seconds. What a pass leaves, the next one does."""
    ledger_rows.begin_mark()
    for _ in range(PIECES_A_PASS):
        with transaction.atomic():
            mark = ledger_rows.lock_mark()
            done = _piece(mark)
        if done:
            break
    return mark.judged_s


def _piece(mark: LedgerMark) -> bool:
    """Whether nothing is left to do."""
    moment, steps = now(), windows.known()
    newest = events.newest_seq()
    rows = Event.objects.filter(seq__gt=mark.seq, seq__lte=newest, entity__in=FOLLOWED).order_by("seq")
    seen = [
        Seen(*row) for row in rows.values_list("seq", "at", "kind", "entity", "entity_id", "patch")[:EVENTS_A_PIECE]
    ]
    ledger_spans.follow(seen, steps)
    if mark.began_s is None:
        mark.began_s = windows.present(seen[0].at if seen else moment, steps).timestamp()
    done = len(seen) < EVENTS_A_PIECE
    mark.seq = newest if done else seen[-1].seq
    judged_s = now_s() - SETTLE_S if done else windows.present(seen[-1].at, steps).timestamp()
    if done:
        ledger_spans.refresh_holds(steps)
    since = from_s(0.0) if not mark.judged_s else min(ledger_causes.recently(moment), from_s(mark.judged_s))
    ledger_causes.take_back(moment, since=since, judged_s=mark.judged_s)
    incidents = {each.entity_id for each in seen if each.entity == "incident"}
    ledger_causes.judge(moment, steps, incidents, judged_s=mark.judged_s)
    mark.judged_s = max(mark.judged_s, mark.began_s, judged_s)
    ledger_rows.keep_mark(mark)
    return done


def mark() -> LedgerMark | None:
    """None: no pass has run yet."""
    return LedgerMark.objects.filter(name=ledger_rows.ALL).exclude(began_s=None).first()


def forget(older_than_s: float) -> int:
    """Remove spans that ended longer ago, in pieces; returns how many went."""
    return ledger_rows.forget(now_s() - older_than_s)
