"""Who was left out in an incident, as the database has it: the edge of `changes.due.course`.

Called by `recovery.certificate_rows` and `recovery.recompute`. Order is that of epochs, not of clocks. Reads rows,
writes nothing.
"""

from controlplane.changes.due import course as core
from controlplane.changes.due.course import Incarnation, LeftOut, Mark, Seen
from controlplane.jobs.models import Job, Replica
from controlplane.protocol.states import ReplicaState
from controlplane.recovery.models import Decision, ViewRow


class CourseRows:
    """Of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def views_since(self, epoch: int) -> list[Seen]:
        """By epoch."""
        return [_seen(row) for row in ViewRow.objects.filter(job=self._job, epoch__gte=epoch).order_by("epoch")]

    def evicted_since(self, epoch: int) -> dict[Incarnation, int]:
        """By the decisions that were applied."""
        found: dict[Incarnation, int] = {}
        rows = Decision.objects.filter(job=self._job, applied=True, epoch_before__gte=epoch)
        for actions, before in rows.order_by("epoch_before", "id").values_list("actions", "epoch_before"):
            for act in actions:
                if act.get("action") == "set_replica_state" and act.get("to") == ReplicaState.EVICTED:
                    found[(act["replica"], act["incarnation"])] = before
        return found

    def gone(self, who: frozenset[Incarnation], *, attempts: range) -> dict[Incarnation, int]:
        """By their rows."""
        rows = Replica.objects.filter(attempt__job=self._job, index__in={index for index, _ in who})
        return {
            (row.index, row.incarnation): row.attempt.number
            for row in rows.select_related("attempt")
            if (row.index, row.incarnation) in who
            and (row.state == ReplicaState.EVICTED or row.attempt.number in attempts)
        }


def left_out(job: Job, *, began: Mark, ended: Mark) -> list[LeftOut]:
    """See `changes.due.course`."""
    return core.left_out(CourseRows(job), began=began, ended=ended)


def _seen(row: ViewRow) -> Seen:
    members = frozenset((member["replica"], member["incarnation"]) for member in row.view["members"])
    return Seen(epoch=row.epoch, attempt=row.attempt, members=members)
