"""I-quota, in worlds whose projects have quotas: what each uses, added up from ranks and spare nodes anew.

A job starts from the queue, is placed again as its attempt ends, and takes a replica back, within its project's quota
and what others lend and do not use; who borrows allows that it is asked to yield. A replica that failed has its devices
back without asking the queue. What a project has of its own nobody of another takes by priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.protocol.states import QUEUED_JOB
from controlplane.simulator.load import places, there

if TYPE_CHECKING:
    from controlplane.simulator.job import JobRun
    from controlplane.simulator.rows import Rows
    from controlplane.simulator.world import World


class Quotas:
    """Of one world. `borrowed`: how often a job started on what others lend."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.borrowed = 0

    def used(self, project: str, *, but: JobRun | None = None) -> int:
        """Devices of its jobs (but of one): under ranks, and spares as many as are asked for."""
        of = self._world.server.projects.of
        here = (run for run in self._world.runs.values() if run.is_here and run is not but)
        return sum(_counted(run.rows) for run in here if of[run.id] == project)

    def started(self, run: JobRun, *, again: bool = False) -> None:
        """It has begun, or has one replica more. `again`: it is placed again; what is left of its attempt before
        leaves, and is counted no more."""
        project = self._world.server.projects.of[run.id]
        share = next((each for each in self._world.server.projects.shares if each.name == project), None)
        if share is None or share.quota is None:
            return
        mine = _counted(run.rows, newest=again)
        over, lent = self.used(project, but=run) + mine - share.quota, 0
        for other in self._world.server.projects.shares:
            if other.name != project and other.quota is not None:
                unused = other.quota - self.used(other.name)
                lent += min(unused, other.lend) if other.lend is not None and unused > 0 else unused
        most = max(0, lent if share.borrow is None else min(lent, share.borrow))
        self.borrowed += over > 0
        within = over <= (most if run.spec.scheduling.preemptible else 0)
        run.checkers.expect(within, f"I-quota: {project} uses {over} beyond its quota, {most} are lent")

    def may_take(self, head: JobRun, victim: JobRun) -> bool:
        """The head may have the victim yield: it outranks it, and takes nothing that is another project's own; or it is
        within its quota, and the victim's project is beyond its own."""
        of, quotas = self._world.server.projects.of, self._world.server.projects.shares
        quota = {share.name: share.quota for share in quotas if share.quota is not None}
        mine, its = of[head.id], of[victim.id]
        outranked = victim.spec.scheduling.priority < head.spec.scheduling.priority
        if mine == its:
            return outranked
        owes = its in quota and self.used(its) > quota[its]
        return (outranked and (its not in quota or owes)) or (owes and mine in quota and self.used(mine) < quota[mine])


def _counted(rows: Rows, *, newest: bool = False) -> int:
    """`newest`: under ranks of its newest attempt alone."""
    kept = sum(node.devices for node in rows.nodes.values() if node.reserved_for == rows.job_id)
    spares = 0 if rows.state in QUEUED_JOB else min(kept, rows.spec.resources.spares.gpus)
    ranks = [place for row in rows.replicas.values() for place in there(row)] if newest else list(places(rows))
    return len(ranks) + spares
