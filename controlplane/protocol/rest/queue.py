"""Who waits in the queue and why, and what the fleet's devices are in use for."""

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


class ReservedDevices(Answer, frozen=True, kw_only=True):
    """So many free `devices` are reserved for a project, from one moment until the other (`Reservation`)."""

    id: str
    project: str
    devices: int
    starts_at: str
    ends_at: str


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
    those that are left alone. `reserved`: the first reservations for other projects that keep free devices from it."""

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
    reserved: list[ReservedDevices]


class WaitingJob(Answer, frozen=True, kw_only=True):
    """A row of the queue: `place` from 1, the first in line. `needs` in words, which takes `devices` of `gpu_type`
    (null: of any). `behind`: the job that it waits for, where it may not start before that one. What the other fields
    mean, `JobQueue` says."""

    job_id: str
    name: str
    project: str
    owner: str
    state: str
    priority: int
    place: int
    submitted_at: str
    turn: str
    may_start: bool
    sentence: str
    needs: str
    devices: int
    gpu_type: str | None
    behind: QueuedJob | None
    expected_at: str | None
    makes_room: list[QueuedJob]
    preempts: list[QueuedPreemption]
    outranks: list[QueuedJob]
    no_preemption: str


class CapacityCounts(Answer, frozen=True, kw_only=True):
    """Each device in one of seven: `devices` = in_use (a job has it) + free + reserved (free for one project's jobs
    alone) + spare (kept for a job) + draining + cordoned + down (it or its node is of no use now). `leaving`: so many
    of those in use are on nodes that take no new work, so nobody gets them when their job ends."""

    nodes: int
    devices: int
    in_use: int
    leaving: int
    free: int
    reserved: int
    spare: int
    draining: int
    cordoned: int
    down: int


class SegmentCapacity(Answer, frozen=True, kw_only=True):
    """Devices of one type in one segment (an NVLink domain or a block of the network; "": of nodes that name none)."""

    segment: str
    counts: CapacityCounts


class TypeCapacity(Answer, frozen=True, kw_only=True):
    """Devices of one model: in all, and by segment, of which the first are listed and `left_out` more are not."""

    gpu_type: str
    counts: CapacityCounts
    segments: list[SegmentCapacity]
    left_out: int


class ExpectedEnd(Answer, frozen=True, kw_only=True):
    """A job that has `devices`, and when it is expected to end: by its steps that are left and their pace, now where it
    leaves already (`leaves`): it has ended, or yields."""

    id: str
    name: str
    priority: int
    devices: int
    expected_end_at: str
    leaves: bool


class Yielding(Answer, frozen=True, kw_only=True):
    """A running job that yields its `devices`: to the job `to`, or because a person asked (null). `trains_on`: they are
    those of some of its replicas, and the others train on; else it saves and yields all. What that is expected to
    cost, in GPU-seconds; null: not known."""

    id: str
    name: str
    priority: int
    devices: int
    trains_on: bool
    to: QueuedJob | None
    lost_gpu_s: float | None


class Capacity(Answer, frozen=True, kw_only=True):
    """What the devices of the fleet are in use for at `at`. `ends`: the first jobs that are expected to end, the
    soonest first, of `ends_count`; of `ends_unknown` more that have devices nobody knows when they end. `yields`: the
    first of `yields_count`. `types_left_out`: models beyond those listed, the largest, which `counts` has too.
    `reserved`: for whom, and until when, of the first of `reserved_count` reservations that run."""

    as_of_seq: int
    at: str
    waiting: int
    counts: CapacityCounts
    types: list[TypeCapacity]
    types_left_out: int
    ends: list[ExpectedEnd]
    ends_count: int
    ends_unknown: int
    yields: list[Yielding]
    yields_count: int
    reserved: list[ReservedDevices]
    reserved_count: int
