"""Why a job waits in the queue."""

from controlplane.protocol.rest.base import Answer


class QueuedJob(Answer, frozen=True, kw_only=True):
    """A job that is named in the place of another. `expected_end_at`: by its steps that are left and their pace;
    null: not known, or it has not started."""

    id: str
    name: str
    priority: int
    expected_end_at: str | None = None


class QueuedPreemption(Answer, frozen=True, kw_only=True):
    """A running job that yields its devices to another. `asked`: it was, and saves; else it is with the other's next
    pass. `lost_gpu_s`: what that is expected to cost, in GPU-seconds."""

    id: str
    name: str
    priority: int
    devices: int | None
    lost_gpu_s: float | None
    asked: bool


class QueuedSpared(Answer, frozen=True, kw_only=True):
    """A running job of lower priority that is not asked to yield. `until_at`: from then on `why` holds no more; null:
    that is not known."""

    id: str
    name: str
    priority: int
    why: str
    until_at: str | None


class JobQueue(Answer, frozen=True, kw_only=True):
    """Where a job stands among all that wait for devices. `place` from 1 of `waiting` pending jobs; null: it is not in
    the queue, and nothing else is said of it. `turn`: first, beside or backfill (there is room), next (jobs ahead of
    it are placed first), behind (what is free is kept for a job ahead of it), no_room, too_large (the nodes that take
    work could not hold it if every job ended), quota (its project may use no more devices now) or held (it waits for
    something that is no device). `may_start`: it
    starts if it can be placed; `behind`: else the job that it waits for. `needs` in words; `devices_free` of its
    type (null: it is not in the queue), `nodes_free` with as many free as it takes of each (null: it takes them
    anywhere). `ahead`: the first of `ahead_count`. `makes_room`: running jobs whose ends, one after the other, are
    expected to make room for it alone. `preempts`: running jobs that yield devices to it: of lower priority, or of
    projects that use more than their quota. `expected_at`: when it is expected to start; null: not known. `outranks`:
    running jobs of lower priority whose devices would be enough, whether or not they may be preempted.
    `no_preemption`: why none of them is asked to yield; "": some are, or none could help. `spared`: the first of
    those that are left alone."""

    job_id: str
    priority: int
    place: int | None
    waiting: int
    turn: str
    may_start: bool
    sentence: str
    needs: str
    devices_free: int | None
    nodes_free: int | None
    behind: str | None
    ahead: list[QueuedJob]
    ahead_count: int
    makes_room: list[QueuedJob]
    preempts: list[QueuedPreemption]
    expected_at: str | None
    outranks: list[QueuedJob]
    no_preemption: str
    spared: list[QueuedSpared]
