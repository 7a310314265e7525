"""Bring the GPU-second ledger up to now. Called every few seconds by beat, by any worker; correct with one, none for
an hour, or three: its row is locked, and each piece of work is found by what is not done yet.

1. Events of nodes, replicas and incidents since the mark, in pieces of one short transaction each.
2. Devices that were released.
3. What restarts took back, and what each run of a job's time is due to.
4. The mark: nothing later than `judged_s` is judged.
"""

from django.db import transaction

from controlplane.recovery import ledger_causes, ledger_spans
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark, LedgerRun, LedgerStanding, LedgerTurn
from controlplane.recovery.ledger_spans import Told
from controlplane.runtime import events, windows
from controlplane.runtime.clock import from_s, now, now_s
from controlplane.runtime.locks import lock_row
from controlplane.runtime.models import Event

ALL = "all"
EVENTS_A_PIECE = 500
PIECES_A_PASS = 40
FOLLOWED = ("node", "replica", "incident")
SETTLE_S = 3.0
"""What is committed later than it happened is not judged before."""
FORGET_ROWS = 20_000


def build() -> float:
    """Returns up to when the ledger is judged, Unix seconds. What a pass leaves, the next one does."""
    LedgerMark.objects.get_or_create(name=ALL)
    for _ in range(PIECES_A_PASS):
        with transaction.atomic():
            mark = lock_row(LedgerMark, ALL)
            assert mark is not None, "it was just made"
            done = _piece(mark)
        if done:
            break
    return mark.judged_s


def _piece(mark: LedgerMark) -> bool:
    """Whether nothing is left to do."""
    moment, steps = now(), windows.known()
    newest = events.newest_seq()
    rows = Event.objects.filter(seq__gt=mark.seq, seq__lte=newest, entity__in=FOLLOWED).order_by("seq")
    told = [
        Told(*row) for row in rows.values_list("seq", "at", "kind", "entity", "entity_id", "patch")[:EVENTS_A_PIECE]
    ]
    ledger_spans.follow(told, steps)
    if mark.began_s is None:
        mark.began_s = windows.present(told[0].at if told else moment, steps).timestamp()
    done = len(told) < EVENTS_A_PIECE
    mark.seq = newest if done else told[-1].seq
    judged_s = now_s() - SETTLE_S if done else windows.present(told[-1].at, steps).timestamp()
    if done:
        ledger_spans.refresh_holds(steps)
    since = from_s(0.0) if not mark.judged_s else min(ledger_causes.recently(moment), from_s(mark.judged_s))
    ledger_causes.take_back(moment, since=since, judged_s=mark.judged_s)
    incidents = {each.entity_id for each in told if each.entity == "incident"}
    ledger_causes.judge(moment, steps, incidents, judged_s=mark.judged_s)
    mark.judged_s = max(mark.judged_s, mark.began_s, judged_s)
    mark.save()
    return done


def mark() -> LedgerMark | None:
    """None: no pass has run yet."""
    return LedgerMark.objects.filter(name=ALL).exclude(began_s=None).first()


def forget(older_than_s: float) -> int:
    """Remove spans that ended longer ago, so many a call; what is known begins later by that. Returns how many."""
    before_s, removed = now_s() - older_than_s, 0
    for model in (LedgerRun, LedgerHold, LedgerStanding):
        old = list(model.objects.filter(until_s__lt=before_s).values_list("pk", flat=True)[:FORGET_ROWS])
        removed += len(old)
        model.objects.filter(pk__in=old).delete()
    held = LedgerHold.objects.values("replica_id")
    LedgerTurn.objects.filter(from_s__lt=before_s).exclude(replica__in=held).delete()
    LedgerMark.objects.filter(name=ALL, began_s__lt=before_s).update(began_s=before_s)
    return removed
