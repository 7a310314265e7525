"""Who was left out in an incident, and from which view on.

Called by `recovery.checks`. Incarnations leave at different views: a second failure inside an
open incident makes a view in which the second one was rightly a member until then. So each is
judged by itself, from the first view that leaves it out. Order is that of epochs, not of clocks.
Reads rows, writes nothing.
"""

from dataclasses import dataclass

from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.protocol.states import ReplicaState
from controlplane.recovery.course import Mark
from controlplane.recovery.models import Decision, ViewRow

Incarnation = tuple[int, int]
"""(replica, incarnation): a number is given once in a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """`epoch` of the first view without it, None: there is none yet; `back`: epochs of later views that
    have it as a member."""

    who: Incarnation
    epoch: int | None
    back: tuple[int, ...]

    @property
    def name(self) -> str:
        """For people: as pages name an incarnation."""
        return f"{self.who[0]}.{self.who[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What of a view counts here."""

    epoch: int
    attempt: int
    members: frozenset[Incarnation]


def left_out(job: Job, *, began: Mark, ended: Mark) -> list[LeftOut]:
    """The incarnations that were members when it began or later and no more at its end, of those that were
    evicted or whose attempt was followed by another; sorted."""
    views = _views(job, since=began.epoch)
    known = [view for view in views if view.epoch <= ended.epoch]
    members = frozenset(who for view in known for who in view.members)
    decided = _epochs_before(job, since=began.epoch)
    still = {who for who in (known[-1].members if known else ()) if decided.get(who, ended.epoch) >= ended.epoch}
    out = members - still
    rows = Replica.objects.filter(attempt__job=job, index__in={index for index, _ in out}).select_related("attempt")
    over = range(began.attempt, ended.attempt)
    gone = {
        (row.index, row.incarnation): row.attempt
        for row in rows
        if (row.index, row.incarnation) in out and (row.state == ReplicaState.EVICTED or row.attempt.number in over)
    }
    decided |= {who: _last_epoch(views, attempt) for who, attempt in gone.items() if attempt.number in over}
    return [judge(who, views, decided_in=decided.get(who)) for who in sorted(gone)]


def judge(who: Incarnation, views: list[Seen], *, decided_in: int | None) -> LeftOut:
    """`views` in order of epoch. `decided_in`: the epoch in which it was decided to end `who`, so that
    no later view may have it (None: not known; the first view after its membership that leaves it
    out counts). One that was out of reach was left out before that, by the view after its last."""
    until = [view.epoch for view in views if who in view.members and (decided_in is None or view.epoch <= decided_in)]
    since = (until[0] if decided_in is None else until[-1]) if until else decided_in or 0
    first = next((view for view in views if view.epoch > since and who not in view.members), None)
    if decided_in is None and first is not None:
        since = first.epoch
    ended = since if decided_in is None else decided_in
    back = tuple(view.epoch for view in views if view.epoch > ended and who in view.members)
    if first is None:
        return LeftOut(who=who, epoch=None, back=back if decided_in is not None else ())
    return LeftOut(who=who, epoch=first.epoch, back=back)


def _epochs_before(job: Job, *, since: int) -> dict[Incarnation, int]:
    """The epoch in which each eviction was decided: an incarnation that had left and come back
    before is judged from its last leaving."""
    found: dict[Incarnation, int] = {}
    rows = Decision.objects.filter(job=job, applied=True, epoch_before__gte=since).order_by("epoch_before", "id")
    for actions, epoch in rows.values_list("actions", "epoch_before"):
        for act in actions:
            if act.get("action") == "set_replica_state" and act.get("to") == ReplicaState.EVICTED:
                found[(act["replica"], act["incarnation"])] = epoch
    return found


def _views(job: Job, *, since: int) -> list[Seen]:
    """From the one that was there when the incident began on, by epoch."""
    return [_seen(row) for row in ViewRow.objects.filter(job=job, epoch__gte=since).order_by("epoch")]


def _seen(row: ViewRow) -> Seen:
    members = frozenset((member["replica"], member["incarnation"]) for member in row.view["members"])
    return Seen(epoch=row.epoch, attempt=row.attempt, members=members)


def _last_epoch(views: list[Seen], attempt: Attempt) -> int:
    """After an attempt's last view every view is one without it."""
    return max((view.epoch for view in views if view.attempt == attempt.number), default=0)
