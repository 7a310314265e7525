"""Certificates of simulated recoveries: the edge of `changes.due.certificates`, and rows in memory as that reads them.

No step is computed again here and no undisturbed run is made: that one check has nothing to judge by, so that the most
that a certificate says is "incomplete". That none is red is what the checkers are asked.
"""

from collections.abc import Sequence

from controlplane.changes.due.certificates import FIRST_S, GIVE_UP_S, PENDING, certified
from controlplane.changes.due.checks import LOSSES, Check, Window
from controlplane.changes.due.course import Incarnation, Mark, Seen, Step
from controlplane.policy.plan import Decision, SetReplicaState
from controlplane.protocol.spec import micro_batch_count, ranks_per_replica
from controlplane.protocol.states import CheckpointState, IncidentOutcome, ReplicaState
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.course import IncidentRow, incident_id
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import Rows, StepRow

BACK = (IncidentOutcome.RECOVERED, IncidentOutcome.MITIGATED)
NOT_GOOD = (CheckpointState.WRITING, CheckpointState.CORRUPT)


def opened(rows: Rows, at_s: float) -> None:
    """Another one. Of the commits and views until then, the newest."""
    rows.incidents += 1
    announced = rows.course.announced_s
    epoch = max((each for each, since_s in announced.items() if since_s < at_s), default=0)
    attempt = rows.announced[epoch].attempt if epoch else 1
    steps = [(row.attempt, row.step) for row in rows.steps.values() if row.at_s <= at_s]
    of_attempt, step = max(steps, default=(0, -1))
    mark = Mark(of_attempt=of_attempt, step=step, attempt=max(attempt, of_attempt), epoch=epoch)
    rows.course.incidents[incident_id(rows.incidents)] = IncidentRow(mark)


def closed(rows: Rows, incident: str, outcome: IncidentOutcome, now_s: float) -> None:
    """What is open, if anything is. Where training is back, a certificate is due."""
    rows.incident_s = None
    row = rows.course.incidents.get(incident)
    if row is None:
        return
    of_attempt, step = max(rows.steps, default=(0, -1))
    attempt = rows.attempt.number if rows.attempt is not None else 1
    row.ended = Mark(of_attempt=of_attempt, step=step, attempt=attempt, epoch=max(rows.announced, default=0))
    row.over_s = now_s
    row.due_s, row.state = (now_s + FIRST_S, PENDING) if outcome in BACK else (now_s, "")


def decided(rows: Rows, decision: Decision) -> None:
    """Whose eviction it is, in which epoch."""
    for act in decision.actions:
        if isinstance(act, SetReplicaState) and act.to is ReplicaState.EVICTED:
            rows.course.decided_in[act.replica, act.incarnation] = rows.epoch


class Certificates:
    """Of one server, and the rows as its core reads them."""

    def __init__(self, rows: Rows, kernel: Kernel, checkers: Checkers) -> None:
        self._rows, self._kernel, self._checkers = rows, kernel, checkers

    def sweep(self) -> list[str]:
        """Judge what is due; returns the incidents that need nothing any more."""
        done = []
        for incident, row in self._rows.course.incidents.items():
            if row.due_s is None or row.due_s > self._kernel.now_s:
                continue
            row.due_s = None
            for found in certified(self, incident) if row.state else ():
                row.state, row.checks = found.state, found.checks
                row.due_s = None if found.again_s is None else self._kernel.now_s + found.again_s
                self._checkers.certified(incident, found)
            done += [incident] if row.due_s is None else []
        return done

    def course(self, incident: str) -> tuple[Mark, Mark]:
        """By its marks."""
        row = self._rows.course.incidents[incident]
        assert row.ended is not None, "it is over"
        return row.began, row.ended

    def over_s(self, incident: str) -> float:
        """By the kernel's clock."""
        return self._kernel.now_s - (self._rows.course.incidents[incident].over_s or 0.0)

    def views_since(self, epoch: int) -> list[Seen]:
        """All are kept."""
        found = (view for number, view in sorted(self._rows.announced.items()) if number >= epoch)
        return [
            Seen(
                epoch=view.epoch,
                attempt=view.attempt,
                members=frozenset((member.replica, member.incarnation) for member in view.members),
            )
            for view in found
        ]

    def evicted_since(self, epoch: int) -> dict[Incarnation, int]:
        """By the decisions."""
        return {who: before for who, before in self._rows.course.decided_in.items() if before >= epoch}

    def gone(self, who: frozenset[Incarnation], *, attempts: range) -> dict[Incarnation, int]:
        """By what became of them."""
        kept = self._rows.course
        of = {each: kept.attempts[each] for each in who}
        return {each: number for each, number in of.items() if each in kept.decided_in or number in attempts}

    def newest_until(self, mark: Mark, limit: int) -> Sequence[StepRow]:
        """By attempt and number."""
        return [row for row in reversed(self._steps()) if not mark.is_before(row)][:limit]

    def newest_between(self, began: Mark, ended: Mark, limit: int) -> tuple[Sequence[StepRow], int]:
        """By attempt and number."""
        rows = [row for row in reversed(self._steps()) if began.is_before(row) and not ended.is_before(row)]
        return rows[:limit], len(rows)

    def oldest_after(self, mark: Mark, limit: int) -> Sequence[StepRow]:
        """By attempt and number."""
        return [row for row in self._steps() if mark.is_before(row)][:limit]

    def since_report_s(self, step: Step) -> float:
        """By when an agent has heard it."""
        return self._kernel.now_s - self._rows.steps[step.attempt, step.step].at_s

    def apart_s(self, one: Step, other: Step) -> float:
        """As before."""
        return abs(self.since_report_s(one) - self.since_report_s(other))

    def newest_step(self) -> int:
        """As told."""
        return self._rows.committed_step

    def micro_batch_count(self) -> int:
        """By the spec."""
        return micro_batch_count(self._rows.spec)

    def ranks_of(self, attempt: int) -> int:
        """Every attempt here has the spec's layout but for the number of replicas."""
        return ranks_per_replica(self._rows.spec.parallelism)

    def missing(self, first: int, last: int) -> Sequence[int]:
        """As told."""
        known = {step for _, step in self._rows.steps}
        return [number for number in range(first, last + 1) if number not in known]

    def spans(self) -> Sequence[tuple[int, int]]:
        """As told."""
        known = [*self._rows.attempts, *([self._rows.attempt] if self._rows.attempt is not None else [])]
        begun = {each.number: each.resume_step - 1 for each in known}
        numbers: dict[int, list[int]] = {}
        for attempt, step in self._rows.steps:
            numbers.setdefault(attempt, [begun.get(attempt, step)]).append(step)
        return [(min(each), max(each)) for each in numbers.values()]

    def first_since(self, epoch: int) -> tuple[int, int] | None:
        """By attempt and number."""
        return next(((row.attempt, row.step) for row in self._steps() if row.epoch >= epoch), None)

    def saves_before(self, epoch: int, *, attempt: int) -> Sequence[tuple[int, int, int]]:
        """As they came."""
        saves = (row for row in self._rows.saves.values() if row.fact is not None and row.state not in NOT_GOOD)
        found = ((row.attempt, row.fact.step, row.fact.epoch) for row in saves if row.fact is not None)
        return [each for each in found if each[2] < epoch and each[0] >= attempt]

    def equality(self, incident: str, window: Window) -> Check:
        """Nothing to judge by."""
        return Check(name=LOSSES, ok=None, detail="no undisturbed run is simulated")

    def equality_comes(self, incident: str) -> bool:
        """Never."""
        return False

    def equality_put_off(self, incident: str) -> bool:
        """Nothing is to begin."""
        return False

    def equality_given_up(self, incident: str) -> bool:
        """Reports that are missing for so long do not come."""
        return self.over_s(incident) >= GIVE_UP_S

    def _steps(self) -> list[StepRow]:
        """In the order of commits."""
        return [row for _, row in sorted(self._rows.steps.items())]
