"""What one batch of a node's events shares while it is applied."""

from dataclasses import dataclass, field
from datetime import datetime

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.launch import RankRef
from controlplane.recovery.identity import rank_of
from controlplane.recovery.steps import StepMerge
from controlplane.runtime.clock import now


@dataclass(slots=True, kw_only=True)
class Heard:
    """`jobs` are locked; `touched` are rung after it, those in `sure`
    with a decision certain; `at` is the present event's time by the server's clock; `timed`
    have new timing reports. `ranks`: rows that were read, all of this node."""

    node: Node
    jobs: dict[str, Job]
    at: datetime = field(default_factory=now)
    touched: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    timed: set[str] = field(default_factory=set)
    freed: bool = False
    merge: StepMerge = field(default_factory=StepMerge)
    points: list[dict[str, object]] = field(default_factory=list)
    ranks: dict[RankRef, Rank] = field(default_factory=dict)

    def rank(self, ref: RankRef) -> Rank:
        """The row, proved to be this node's. Raises IdentityMismatch."""
        row = self.ranks.get(ref)
        if row is None:
            row = self.ranks[ref] = rank_of(self.node.id, ref)
        return row

    def wake(self, job_id: str, *, sure: bool = False) -> None:
        """What was told may call for a decision: the job is looked at after the commit."""
        self.touched.add(job_id)
        if sure:
            self.sure.add(job_id)
