"""What a job's time was, written down as its commits are counted: runs of the GPU-second ledger.

Called by `recovery.steps`, which counts each commit once, in the same transaction: so the ledger has the very gaps of
which the effective time is made. A batch of reports changes the newest run of its job, or begins one.
"""

from collections.abc import Sequence

import msgspec

from controlplane.jobs.models import Job
from controlplane.policy.ledger.facts import Cause
from controlplane.policy.ledger.runs import Gone, Grown, Saved, grow
from controlplane.policy.pace import Commit, Pace
from controlplane.policy.spent import Spent
from controlplane.policy.spent import count as count_spent
from controlplane.recovery import ledger_rows
from controlplane.recovery.ledger_models import LedgerRun


class Gaps:
    """Those of one batch of a job, in sequence."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._gone: list[Gone] = []
        self._resumed: dict[int, int] = {}

    def count(self, spent: Spent, commit: Commit, pace: Pace) -> None:
        """As `policy.spent.count`; keeps the gap that it judged."""
        since_epoch = spent.epoch
        since = spent.step + 1 if commit.attempt == spent.attempt else self._resume_step(commit.attempt)
        gap = count_spent(spent, commit, pace)
        if gap is None:
            return
        done = commit.step + 1
        self._gone.append(
            Gone(
                gap=gap,
                attempt=commit.attempt,
                since_epoch=since_epoch,
                epoch=commit.epoch,
                since=min(since, done),
                done=done,
            )
        )

    def write(self, saves: Sequence[Saved]) -> None:
        """To the table: an update, and what begins."""
        if not self._gone:
            return
        row = LedgerRun.objects.filter(job=self._job).order_by("-pk").first()
        old = None if row is None else grown_of(row)
        newest, begun = old, list[Grown]()
        for gone in _with(self._gone, saves):
            new = grow(newest, gone)
            if new is not None:
                newest = new
                begun.append(new)
        if row is not None and old is not None and old.done != row.done:
            ledger_rows.extend_run(row.pk, old)
        ledger_rows.add_runs(self._job, begun)

    def _resume_step(self, attempt: int) -> int:
        if attempt not in self._resumed:
            found = self._job.attempts.filter(number=attempt).values_list("resume_step", flat=True).first()
            self._resumed[attempt] = found or 0
        return self._resumed[attempt]


def _with(gone: Sequence[Gone], saves: Sequence[Saved]) -> list[Gone]:
    """Each save belongs to the gap in which it was committed; to the newest, where that is told by no clock."""
    found: list[list[Saved]] = [[] for _ in gone]
    for save in saves:
        within = (at for at, each in enumerate(gone) if each.gap.from_s < save.at_s <= each.gap.until_s)
        found[next(within, -1)].append(save)
    return [msgspec.structs.replace(each, saves=tuple(its)) for each, its in zip(gone, found, strict=True)]


def grown_of(row: LedgerRun) -> Grown:
    """As the core has it."""
    cause, lost_cause = Cause(row.cause_kind, row.cause_id), Cause(row.lost_cause_kind, row.lost_cause_id)
    return Grown(**{name: getattr(row, name) for name in ledger_rows.PLAIN}, cause=cause, lost_cause=lost_cause)
