"""Where a job is in its course, by attempt, step and epoch and not by the clock; and who was left out of it.

Attempts and epochs only grow, and a step is committed once in an attempt, so these three tell what came first
whatever a clock told. Incarnations leave at different views: a second failure inside an open incident makes a view
in which the second one was rightly a member until then. So each is judged by itself, from the first view that leaves
it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Incarnation = tuple[int, int]
"""(replica, incarnation): a number is given once in a job."""


class Parts(Protocol):
    """What ranks told of one step. `micro_batches`: ids by replica; `trained`: those in the committed gradient, as the
    all-reduce counted them (None: not told); `parameter_hashes`: of the state, by rank and then replica."""

    @property
    def micro_batches(self) -> Mapping[str, Sequence[int]]:
        """By replica."""

    @property
    def trained(self) -> Sequence[int] | None:
        """In the sum."""

    @property
    def parameter_hashes(self) -> Mapping[str, Mapping[str, str]]:
        """By rank."""


class Step(Parts, Protocol):
    """A committed step (from 0) of an attempt, as its ranks have told it. `contributors`: so many have told of
    micro-batches."""

    @property
    def attempt(self) -> int:
        """Number."""

    @property
    def step(self) -> int:
        """Number."""

    @property
    def epoch(self) -> int:
        """The newest that was told."""

    @property
    def contributors(self) -> int:
        """Replicas."""


def ledger(step: Parts) -> list[int]:
    """Ids of the micro-batches in the committed gradient, each as often as it was trained:
    as the all-reduce counted them, else as the replicas told theirs."""
    told = sorted(m for ids in step.micro_batches.values() for m in ids)
    doubled = len(told) != len(set(told))
    return told if step.trained is None or doubled else sorted(step.trained)


def hashes_equal(step: Parts) -> bool | None:
    """All replicas hold the same parameters after the step; None: fewer than two told."""
    told = [by_replica for by_replica in step.parameter_hashes.values() if len(by_replica) > 1]
    return all(len(set(by_replica.values())) == 1 for by_replica in told) if told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`of_attempt` and `step` of the newest commit (0 and -1: there is none); `attempt`: the newest one;
    `epoch` of the newest view (0: there is none); `clock`: which step of the server's clock was the newest (0: none,
    or it was not kept)."""

    of_attempt: int
    step: int
    attempt: int
    epoch: int
    clock: int = 0

    def is_before(self, step: Step) -> bool:
        """That step was committed later."""
        return (step.attempt, step.step) > (self.of_attempt, self.step)


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


class CourseRows(Protocol):
    """Of a job's views and of who was ended."""

    def views_since(self, epoch: int) -> list[Seen]:
        """From that one on, by epoch."""

    def evicted_since(self, epoch: int) -> dict[Incarnation, int]:
        """The epoch in which the eviction of each was decided, the newest."""

    def gone(self, who: frozenset[Incarnation], *, attempts: range) -> dict[Incarnation, int]:
        """The attempt of each of them that was evicted, or is of one of these attempts."""


def left_out(rows: CourseRows, *, began: Mark, ended: Mark) -> list[LeftOut]:
    """The incarnations that were members when it began or later and no more at its end, of those that were
    evicted or whose attempt was followed by another; sorted."""
    views = rows.views_since(began.epoch)
    known = [view for view in views if view.epoch <= ended.epoch]
    members = frozenset(who for view in known for who in view.members)
    # One that had left and come back before is judged from its last leaving.
    decided = rows.evicted_since(began.epoch)
    still = {who for who in (known[-1].members if known else ()) if decided.get(who, ended.epoch) >= ended.epoch}
    over = range(began.attempt, ended.attempt)
    gone = rows.gone(members - still, attempts=over)
    decided |= {who: _last_epoch(views, attempt) for who, attempt in gone.items() if attempt in over}
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


def _last_epoch(views: list[Seen], attempt: int) -> int:
    """After an attempt's last view every view is one without it."""
    return max((view.epoch for view in views if view.attempt == attempt), default=0)
