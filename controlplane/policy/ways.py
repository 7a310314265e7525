"""The ways out of a failure, each with its price and with what rules it out.

Used by `ends` (is a new attempt the way?) and by the rules that carry a way out. Of the ways
that nothing rules out the cheapest is taken; among equals the one that keeps most running. The
journal names the constraint wherever it decided, and says "costs more" of a dearer way alone.
"""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from controlplane.policy import prices, relief
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import current_view, holds_state, live_replicas, setup_patience_s
from controlplane.policy.ladder import attempt_size, may_start, start_slots
from controlplane.policy.once import per_pass
from controlplane.policy.plan import Alternative, StartReplica
from controlplane.policy.pools import why_none
from controlplane.policy.proved import Failure
from controlplane.policy.recall import recalled
from controlplane.policy.slots import emptied_with, empty_slots, room
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of
from controlplane.protocol.spec import max_contributors

EVICT, REPLACE, HOLD, RESTART, WAIT = "evict", "evict_and_replace", "hold_and_replace", "restart", "wait"
QUEUE = "queue"
BESIDE = "start_beside"
"""Open for one that still trains alone: no way out of a failure."""
ORDER = (BESIDE, REPLACE, HOLD, EVICT, RESTART, WAIT)
"""Among ways that cost the same: the one that keeps most running."""
MIN_HOLD_S = 60.0
"""Survivors wait at least so long for a replacement whose start has been measured."""
PRICES = {EVICT: prices.evict_s, REPLACE: prices.evict_and_replace_s, HOLD: prices.hold_and_replace_s}


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`cost_gpu_s` None: it cannot be carried out. `bar`: what rules it out; "" for nothing."""

    action: str
    cost_gpu_s: float | None
    bar: str = ""

    @property
    def open(self) -> bool:
        """It may be taken."""
        return self.cost_gpu_s is not None and not self.bar


class Case(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Failures with what they put at stake, each part worked out when it is first asked for."""

    snapshot: JobSnapshot
    config: PolicyConfig
    failures: tuple[Failure, ...]

    @property
    def needed(self) -> int:
        """Replicas without which nothing is trained."""
        return max(1, self.snapshot.job.spec.resources.min_replicas)

    @cached_property
    def holders(self) -> tuple[ReplicaFact, ...]:
        """Who can go on."""
        return (*_holders_left(self.snapshot, self.failures), *self.recalled)

    @cached_property
    def recalled(self) -> tuple[ReplicaFact, ...]:
        """Who can because the next view takes it back."""
        return recalled(self.snapshot, self.config, self.failures, needed=self.needed)

    @cached_property
    def starts(self) -> tuple[StartReplica, ...]:
        """Of the failed slots, at once."""
        slots = startable(self.snapshot, self.config, self.failures)
        return start_slots(self.snapshot, self.config, slots, self.failures)

    @cached_property
    def no_start(self) -> str:
        """Why there are no `starts`; "" where there are."""
        return "" if self.starts else self._why_none[0]

    @cached_property
    def fits(self) -> bool:
        """There are devices for a start."""
        return True if self.starts else self._why_none[1]

    @cached_property
    def times(self) -> prices.Times:
        """What it costs, in seconds."""
        return prices.times_of(self.snapshot, self.config)

    @cached_property
    def stakes(self) -> prices.Stakes:
        """What it costs, in devices."""
        return _stakes(self.snapshot, self.config, self.failures, len(self.starts))

    @cached_property
    def _why_none(self) -> tuple[str, bool]:
        return _no_start(self.snapshot, self.config, self.failures)


def case_of(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Case:
    """One for each set of failures of a pass, however many rules weigh it."""
    cases = _cases(snapshot, config)
    # A case keeps its failures, so no other tuple has their identity while it is kept.
    if id(failures) not in cases:
        cases[id(failures)] = Case(snapshot=snapshot, config=config, failures=failures)
    return cases[id(failures)]


@per_pass
def _cases(snapshot: JobSnapshot, config: PolicyConfig) -> dict[int, Case]:
    return {}


def ways_out(case: Case) -> tuple[Way, ...]:
    """Every way, in `ORDER`. Two of them never differ in what they count as lost."""
    on = tuple(_on(case, action) for action in (REPLACE, HOLD, EVICT))
    again = Way(action=RESTART, cost_gpu_s=prices.restart_s(case.times, case.stakes), bar=spent(case.snapshot))
    if all(failure.gone or failure.proved for failure in case.failures):
        wait = Way(action=WAIT, cost_gpu_s=None, bar="what failed does not come back by itself")
    else:
        after_s = min((way.cost_gpu_s for way in (*on, again) if way.open and way.cost_gpu_s is not None), default=0.0)
        wait = Way(action=WAIT, cost_gpu_s=prices.wait_s(case.times, case.stakes, after_s=after_s))
    return (*on, again, wait)


def startable(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[ReplicaFact, ...]:
    """Failed slots that may start again in the same breath: their last start came to something,
    and the budget pays for it. No more than are missing then: one whose successor is on its way
    already is not started again."""
    slots = (f.replica for f in failures if f.replica.failed_starts == 0 and may_start(snapshot, config, f.replica))
    return tuple(slots)[: room(snapshot, lost=_lost(failures))]


def may_hold(case: Case) -> bool:
    """Too few hold the newest state, but who is coming makes up the number: they wait for it, which
    is cheaper than that everything starts again from the checkpoint (`prices`). They train on
    while it catches up, so never where the number that computes is fixed."""
    snapshot, config = case.snapshot, case.config
    if current_view(snapshot) is None or not case.holders or max_contributors(snapshot.job.spec):
        return False
    lost, again = _lost(case.failures), startable(snapshot, config, case.failures)
    coming = [r for r in live_replicas(snapshot) if r.index not in lost and r not in case.holders]
    wanted = empty_slots(snapshot, lost=lost, taken=len(again))
    empty = (r for r in emptied_with(snapshot, wanted) if _unfailed(r) and may_start(snapshot, config, r))
    starts = start_slots(snapshot, config, (*again, *empty), case.failures)
    starting = min(len(starts), len(again) + len(wanted))
    if len(case.holders) + len(coming) + starting < case.needed:
        return False
    return bool(case.failures) or snapshot.now_s - snapshot.view_since_s <= hold_limit_s(snapshot, config)


def beside(case: Case, start: StartReplica | None, *, late_s: float = 0.0) -> Way:
    """Another one is started, as `start` says, beside the one that still trains and holds each step
    up by `late_s`; then one view swaps them."""
    replica = case.failures[0].replica
    price = prices.beside_s(case.times, case.stakes, late_s=late_s)
    if why := relief.cannot(case.snapshot, replica):
        return Way(action=BESIDE, cost_gpu_s=None, bar=why)
    if start is None:
        return Way(
            action=BESIDE,
            cost_gpu_s=None,
            bar=spent(case.snapshot) or why_none(case.snapshot, "no free devices for a replica beside it"),
        )
    return Way(action=BESIDE, cost_gpu_s=price)


def hold_limit_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """How long after their view those who are left wait for the replacement: twice what a restart
    would have cost them; a whole setup where no start has been measured."""
    patience_s, times = setup_patience_s(snapshot), prices.times_of(snapshot, config)
    if snapshot.learned.start_replica_s is None:
        return patience_s
    return min(patience_s, max(MIN_HOLD_S, 2.0 * (times.start_s + times.at_risk_s)))


def cheapest(ways: Iterable[Way]) -> Way | None:
    """Of those that may be taken."""
    return min((way for way in ways if way.open), key=_rank, default=None)


def alternatives(ways: tuple[Way, ...], taken: Way, because: str) -> tuple[Alternative, ...]:
    """The ways not taken, cheapest first, impossible ones last. `because`: the constraint that
    decided against all the others where none of their own did."""
    others = [
        Alternative(action=way.action, cost_gpu_s=way.cost_gpu_s, why_not=_why_not(way, taken, because))
        for way in ways
        if way.action != taken.action
    ]
    return tuple(sorted(others, key=lambda a: (a.cost_gpu_s is None, a.cost_gpu_s or 0.0, a.action)))


def _why_not(way: Way, taken: Way, because: str) -> str:
    if way.bar:
        return way.bar
    assert way.cost_gpu_s is not None, "a way without a price has its reason"
    if taken.cost_gpu_s is None or way.cost_gpu_s < taken.cost_gpu_s:
        return because
    return "costs more" if way.cost_gpu_s > taken.cost_gpu_s else "costs the same and keeps less running"


def _lost(failures: tuple[Failure, ...]) -> frozenset[int]:
    return frozenset(failure.replica.index for failure in failures)


def _rank(way: Way) -> tuple[float, int]:
    return way.cost_gpu_s or 0.0, ORDER.index(way.action)


def _on(case: Case, action: str) -> Way:
    """A way on which nobody who is left ends."""
    left = len(case.holders)
    if not left:
        return Way(action=action, cost_gpu_s=None, bar="no replica with the newest state would be left")
    trains = current_view(case.snapshot) is not None
    few = f"{number_of(left, 'replica')} would be left, {case.needed} must be" if trains and left < case.needed else ""
    if action == EVICT:
        return Way(action=action, cost_gpu_s=prices.evict_s(case.times, case.stakes), bar=few)
    if action == HOLD and not few:
        return Way(action=action, cost_gpu_s=None, bar="enough are left to train meanwhile")
    if action == HOLD and may_hold(case):
        return Way(action=action, cost_gpu_s=prices.hold_and_replace_s(case.times, case.stakes))
    if not case.fits:
        return Way(action=action, cost_gpu_s=None, bar=case.no_start)
    stakes, bar = case.stakes, case.no_start
    if bar:
        stakes = msgspec.structs.replace(stakes, started=min(stakes.missing, len(case.failures)))
    else:
        bar = few if action == REPLACE else "what is coming does not make up the number in time"
    return Way(action=action, cost_gpu_s=PRICES[action](case.times, stakes), bar=bar)


def _stakes(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], starts: int) -> prices.Stakes:
    lost = {failure.replica.index for failure in failures}
    asked = snapshot.attempt.replicas if snapshot.attempt else max(1, len(snapshot.replicas))
    usual = min(asked, max_contributors(snapshot.job.spec) or asked)
    gpus = max((replica.world_size for replica in snapshot.replicas), default=1)
    missing = max(0, usual - sum(replica.index not in lost for replica in live_replicas(snapshot)))
    placeable = attempt_size(snapshot, config, failures) // gpus
    return prices.Stakes(gpus=gpus, asked=usual, missing=missing, started=min(missing, starts), placeable=placeable)


def _holders_left(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> tuple[ReplicaFact, ...]:
    """Who can go on; before the first view, who may still come."""
    lost = {failure.replica.index for failure in failures}
    left = tuple(replica for replica in live_replicas(snapshot) if replica.index not in lost)
    if current_view(snapshot) is None:
        return left
    return tuple(replica for replica in left if holds_state(snapshot, replica))


def _no_start(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[str, bool]:
    """(why none of the failed slots starts again at once, whether there are devices for one)."""
    slots = tuple(failure.replica for failure in failures)
    if failures and not room(snapshot, lost=_lost(failures)):
        return "its successor is there already", True
    if not start_slots(snapshot, config, slots, failures):
        return why_none(snapshot, "no free device fits a replica"), False
    if spent(snapshot) and not any(may_start(snapshot, config, slot) for slot in slots):
        return spent(snapshot), True
    return "its last start came to nothing, so the next one waits", True


def _unfailed(slot: ReplicaFact) -> bool:
    """None of its starts in a row failed but for refusals, which cost nothing."""
    return slot.failed_starts <= slot.refused_starts
