"""Rows to what `policy.queue` plans with: who waits, what each node lends, who holds devices and until when.

Grouped by node and job, so that no row of a rank is an object here; what nodes lend is read by `load_lenders`. Specs do
not change, so what a start takes is worked out once in a process. With one pending job nothing of this is read. Reads
alone.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from django.db.models import Count, Min, QuerySet

from controlplane.access.rights import EVERYTHING, Rights
from controlplane.changes.assembly.queue import (
    LEAVING,
    Held,
    held_back,
    holder_of,
    may_be_outranked,
    uncounted,
    used_by_project,
)
from controlplane.fleet import ends, reservations
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, JobPace, Rank, Replica
from controlplane.policies import selectors as policies
from controlplane.policy.asked import Again
from controlplane.policy.queue import until
from controlplane.policy.queue.demand import first_demand
from controlplane.policy.queue.ends import limited_s, over_s
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.queue.rows import Demand, Holder, Pending, QueueConfig, QueueFleet, config_of
from controlplane.policy.queue.schedule import again as placed_again
from controlplane.policy.queue.schedule import growth, schedule
from controlplane.policy.queue.words import place_of as place_in
from controlplane.policy.rules.lifecycle import parked_words
from controlplane.protocol.spec import JobSpec, TrainSpec
from controlplane.protocol.states import QUEUED_JOB, AttemptState, JobState
from controlplane.recovery import stakes
from controlplane.recovery.load_devices import NODES_A_QUERY
from controlplane.recovery.load_lenders import lenders
from controlplane.recovery.load_projects import any_quota, has_quota, shares_of
from controlplane.recovery.load_specs import Kept, specs_of
from controlplane.recovery.stakes import recent_of
from controlplane.recovery.unseen import as_seen_by, as_seen_from
from controlplane.runtime.clock import now, now_s
from controlplane.runtime.locks import lock_fleet
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Prepared, Several
from controlplane.scheduling.models import SpareReservation

NOBODY = "job_dry_run"


def place_of(job: Job, *, yielded: int = 0) -> QueuePlace | None:
    """Where the job stands; None: it is not in the queue, or alone there and outranks nobody. `yielded`: so many of its
    replicas do not run for now; where it trains that is where one more would stand."""
    if job.state == JobState.RUNNING and yielded and (kept := specs_of([job.id]).get(job.id)) is not None:
        queue, fleet = as_seen_from(job.project, waiting(), load_fleet())
        return place_in(growth(queue, fleet, config(), now_s(), _begun_as(job, kept, kept.grows)), job.id)
    if job.state not in QUEUED_JOB or job.cancel_requested:
        return None
    if not (_others_wait(job) or _outranks(job) or any_quota()):
        return None
    queue = waiting()
    queue, fleet = as_seen_from(job.project, queue, load_fleet(queue))
    return place_in(schedule(queue, fleet, config(), now_s()), job.id)


def again(job: Job, *, lock: bool = False) -> Again | None:
    """What its project's quota has for a job that runs and is placed again at once; None: its project has none. `lock`:
    the fleet is locked for that, as for any start, so that nobody else starts on the same quota until the commit."""
    kept = specs_of([job.id]).get(job.id) if has_quota(job.project) else None
    if kept is None:
        return None
    if lock:
        lock_fleet()
    queue, fleet = as_seen_from(job.project, waiting(), load_fleet(without=job.id))
    return placed_again(queue, fleet, config(), now_s(), _begun_as(job, kept, kept.later))


def config() -> QueueConfig:
    """Of the fleet's policy."""
    return config_of(policies.of_fleet())


_OUTRANKED = Prepared(
    lambda priority: Job.objects.filter(state=JobState.RUNNING, priority__lt=priority).values_list("pk")[:1],
    priority=NUMBER,
)


def _outranks(job: Job) -> bool:
    return bool(_OUTRANKED(priority=job.priority))


def place_of_new(document: JobSpec, rights: Rights = EVERYTHING) -> QueuePlace | None:
    """Where a job of this spec would stand if it were submitted now, told to these rights; None: no job waits."""
    queue = waiting()
    if not queue and not any_quota():
        return None
    new = Pending(
        id=NOBODY,
        name=document.metadata.name,
        priority=document.spec.scheduling.priority,
        submitted_s=now_s(),
        demand=demand_of_new(document.spec),
        project=document.metadata.project,
        preemptible=document.spec.scheduling.preemptible,
        limit_s=limited_s(document.spec.scheduling.time_limit_s, None, now_s()),
    )
    seen = as_seen_from(document.metadata.project, [*queue, new], load_fleet([*queue, new]))
    queue, fleet = as_seen_by(rights, *seen)
    return place_in(schedule(queue, fleet, config(), now_s()), NOBODY)


def demand_of_new(spec: TrainSpec) -> Demand:
    """What a job that was submitted now would take."""
    limit_s = spec.scheduling.time_limit_s
    expected_s = over_s(now_s(), limit_s=limit_s, begun_s=None, left=spec.training.steps, recent=())
    return msgspec.structs.replace(first_demand(spec), over_s=expected_s)


def _begun_as(job: Job, kept: Kept, demand: Demand) -> Pending:
    """A job that runs, with what it takes more, or anew."""
    return Pending(
        id=job.id,
        name=job.name,
        priority=job.priority,
        submitted_s=job.created_at.timestamp(),
        demand=demand,
        project=job.project,
        preemptible=kept.preemptible,
    )


_OTHERS = Prepared(lambda job: _pending().exclude(pk=job).values_list("pk")[:1], job=TEXT)


def _others_wait(job: Job) -> bool:
    return bool(_OTHERS(job=job.pk))


def _pending() -> QuerySet[Job]:
    return Job.objects.filter(state__in=QUEUED_JOB, cancel_requested=False)


def waiting_count() -> int:
    """How many jobs are pending."""
    return int(_pending().count())


_WAITING = Prepared(lambda: _pending().values_list("id", "name", "priority", "created_at", "project"))


def waiting() -> list[Pending]:
    """Every pending job."""
    found = _WAITING()
    kept = specs_of([row[0] for row in found])
    rows = [row for row in found if row[0] in kept]
    placed = _end_codes()
    held = _held_up(placed, [job_id for job_id, *_ in rows if kept[job_id].has_env])
    over = _over({job_id: kept[job_id] for job_id, *_ in rows}, placed) if _ends_count() else {}
    return [
        Pending(
            id=job_id,
            name=name,
            priority=priority,
            submitted_s=at.timestamp(),
            demand=msgspec.structs.replace(
                kept[job_id].later if job_id in placed else kept[job_id].first, over_s=over.get(job_id)
            ),
            held=held.get(job_id, ""),
            project=project,
            preemptible=kept[job_id].preemptible,
            limit_s=limited_s(kept[job_id].limit_s, placed[job_id][-1][1] if job_id in placed else None, now_s()),
        )
        for job_id, name, priority, at, project in rows
    ]


_RESERVED = Prepared(lambda: SpareReservation.objects.order_by().values_list("device__node_id", "job_id").distinct())


def load_fleet(queue: Iterable[Pending] = (), *, without: str = "") -> QueueFleet:
    """Nodes that take work and who holds devices; with what those would lose that this queue outranks. `without`: id of
    a job that is counted as having nothing; "": of none."""
    held = [here for here in _held() if here.job_id != without]
    spares = [kept for kept in _SPARES() if kept[1] != without]
    reserved = dict(_RESERVED())
    highest = max((job.priority for job in queue if not job.held), default=None)
    projects = shares_of(_counted(held, spares))
    borrowers = {share.name for share in projects if share.quota is not None and share.used > share.quota}
    rows, suffered = [*held, *(_Here(*row) for row in spares)], stakes.preempted()
    holders = tuple(_holders(rows, outranked=highest, borrowers=borrowers, suffered=suffered))
    leave = {node_id: ends.known(row) for node_id, row in ends.first_by_node().items()}
    lent = tuple(lenders(_by_node(held), reserved, leave, reservations.by_node()))
    holders += until.returning(lent, leave)
    return QueueFleet(nodes=lent, holders=holders, preempted=sum(suffered.values()), projects=projects)


def used() -> Mapping[str, int]:
    """Devices that count for each project now, also for one without a quota: the same figures as in `load_fleet`."""
    return used_by_project(_counted(_held(), _SPARES()))


def _counted(held: Sequence["_Here"], spares: Iterable[tuple[str, str, int]]) -> Iterable[tuple[str, int, int, int]]:
    """Of each job that has devices, see `used_by_project`. `spares`: see `_spares`."""
    ranks, kept = Counter[str](), Counter[str]()
    for here in held:
        ranks[here.job_id] += here.number
    for _, job_id, number in spares:
        kept[job_id] += number
    for ids in batched(sorted({*ranks, *kept}), NODES_A_QUERY):
        specs = specs_of(ids)
        for job_id, project in Job.objects.filter(pk__in=ids).values_list("id", "project"):
            asked = specs[job_id].spares if job_id in specs else 0
            yield project, ranks[job_id], kept[job_id], asked


class _Here(NamedTuple):
    """So many devices of a node that a job has."""

    node_id: str
    job_id: str
    number: int
    replica: int = 0


def _count(rows: QuerySet[Any], node: str, owner: str) -> QuerySet[Any, tuple[str, Any, int]]:
    return rows.order_by().values_list(node, owner).annotate(number=Count("pk"))


_SPARES = Prepared(
    lambda: _count(SpareReservation.objects.exclude(job__state__in=QUEUED_JOB), "device__node_id", "job_id")
)
"""(node, job, devices) of nodes that are spares. What a job keeps that waits to be placed again is nobody else's until
it has ended."""
_HELD = Prepared(lambda: _count(Rank.objects.filter(released_at=None), "node_id", "replica_id"))
_JOBS_OF = Prepared(
    lambda lives: Replica.objects.filter(pk__in=lives).values_list("pk", "attempt__job_id"), lives=Several(NUMBER)
)


def _held() -> list[_Here]:
    """Counted by replica first: a rank's row is joined with nothing."""
    rows = _HELD()
    jobs: dict[int, str] = {}
    for some in batched(sorted({replica for _, replica, _ in rows}), NODES_A_QUERY):
        jobs |= dict(_JOBS_OF(lives=some))
    return [_Here(node_id, jobs[replica], number, replica) for node_id, replica, number in rows if replica in jobs]


def _by_node(held: Sequence[_Here]) -> Mapping[str, int]:
    """How many devices of each node somebody holds."""
    used: dict[str, int] = defaultdict(int)
    for here in held:
        used[here.node_id] += here.number
    return used


def _holders(
    rows: Sequence[_Here], *, outranked: int | None, borrowers: Collection[str], suffered: Mapping[str, int]
) -> Iterable[Holder]:
    """Each job that has devices. What they would lose is read of those of a lower priority than `outranked`.
    `suffered`: see `stakes.preempted`."""
    devices: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for here in rows:
        devices[here.job_id][here.node_id] += here.number
    yields, gives = stakes.yielding(), stakes.giving()
    kept = Counter[str]()
    ranks: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for here in rows:
        if here.replica:
            ranks[here.job_id].append((here.node_id, here.replica, here.number))
        else:
            kept[here.job_id] += here.number
    for ids in batched(sorted(devices), NODES_A_QUERY):
        specs = specs_of(ids)
        limited = _begun([job_id for job_id, spec in specs.items() if spec.limit_s])
        paces = dict(JobPace.objects.filter(job__in=ids).values_list("job_id", "pace"))
        columns = ("id", "name", "priority", "state", "committed_step", "project")
        found = list(Job.objects.filter(pk__in=ids).values_list(*columns))
        able = {
            job_id: (step, paces.get(job_id))
            for job_id, _, priority, state, step, project in found
            if job_id in specs and job_id not in yields and job_id not in gives
            if may_be_outranked(
                state,
                priority,
                highest=outranked,
                preemptible=specs[job_id].preemptible,
                borrows=project in borrowers,
            )
        }
        stake_of = stakes.stakes_of(able, policies.of_fleet()) if able else {}
        read = {*able, *gives.keys() & set(ids)}
        pieces = stakes.pieces_of((row for job_id in read for row in ranks[job_id]), read) if read else {}
        for job_id, name, priority, state, step, project in found:
            spec = specs.get(job_id)
            held = Held(
                id=job_id,
                name=name,
                priority=priority,
                state=state,
                devices=devices[job_id],
                left=spec.steps - step if spec is not None else None,
                recent=recent_of(paces.get(job_id)),
                yields_to=yields.get(job_id),
                stake=stake_of.get(job_id),
                gives_to=gives[job_id][0] if job_id in gives else "",
                gives=gives[job_id][1] if job_id in gives else (),
                pieces=pieces.get(job_id, ()),
                least=spec.least if spec is not None else 1,
                project=project,
                limit_s=spec.limit_s if spec is not None else 0.0,
                begun_s=limited.get(job_id),
                uncounted=uncounted(kept[job_id], spec.spares) if spec is not None else 0,
                suffered=suffered.get(project, 0),
            )
            yield holder_of(held, now_s())


def _begun(job_ids: Collection[str]) -> Mapping[str, float]:
    """When the first attempt of each began, from which its time limit counts."""
    rows = Attempt.objects.filter(job__in=list(job_ids)).order_by().values_list("job_id").annotate(at=Min("started_at"))
    return {job_id: at.timestamp() for job_id, at in rows} if job_ids else {}


def _placed() -> QuerySet[Attempt, tuple[str, str, datetime]]:
    rows = Attempt.objects.filter(job__state__in=QUEUED_JOB).order_by("-number")
    return rows.values_list("job_id", "end_code", "started_at")


_PLACED = Prepared(_placed)


def _end_codes() -> Mapping[str, list[tuple[str, float]]]:
    """Of each pending job that has been placed before: (end code, when it was placed), the newest first."""
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for job_id, code, at in _PLACED():
        found[job_id].append((code, at.timestamp()))
    return found


_ENDS = Prepared(lambda at: ends.holding(at).order_by().values_list("pk")[:1], at=MOMENT)
_RESERVATIONS = Prepared(lambda at: reservations.holding(at).order_by().values_list("pk")[:1], at=MOMENT)


def _ends_count() -> bool:
    """Some node is known to leave, or is reserved: who is over before may start there."""
    return bool(_ENDS(at=now()) or _RESERVATIONS(at=now()))


def _over(jobs: Mapping[str, Kept], placed: Mapping[str, list[tuple[str, float]]]) -> Mapping[str, float | None]:
    """When each is expected to be over; asked only while that counts."""
    paces = dict(JobPace.objects.filter(job__in=placed).values_list("job_id", "pace"))
    steps = dict(Job.objects.filter(pk__in=placed).values_list("id", "committed_step"))
    return {
        job_id: over_s(
            now_s(),
            limit_s=kept.limit_s,
            begun_s=placed[job_id][-1][1] if job_id in placed else None,
            left=kept.steps - steps.get(job_id, 0),
            recent=recent_of(paces.get(job_id)),
        )
        for job_id, kept in jobs.items()
    }


def _preempted() -> QuerySet[Job]:
    return _pending().filter(state=JobState.PREEMPTED)


_PREEMPTED = Prepared(lambda: _preempted().values_list("id", "name", "parked_by"))
_LEAVING = Prepared(lambda: _preempted().filter(attempts__state=AttemptState.STOPPING).values_list("id", flat=True))


def _kept_back() -> Mapping[str, str]:
    """Preempted jobs that a person parked, and those whose ranks still save and leave."""
    found = {job_id: parked_words(name, by) for job_id, name, by in _PREEMPTED() if by}
    return dict.fromkeys(_LEAVING(), LEAVING) | found


def _held_up(ends: Mapping[str, list[tuple[str, float]]], with_env: Collection[str]) -> Mapping[str, str]:
    """What jobs wait for that is no device, as `lifecycle` decides it."""
    found: dict[str, str] = {**_kept_back()}
    policy = policies.of_fleet()
    for job_id, attempts in ends.items():
        pause = held_back(attempts, policy, now_s())
        found |= {job_id: pause} if pause else {}
    for some in batched(sorted(with_env), NODES_A_QUERY):
        for job in Job.objects.filter(pk__in=some):
            if not environment.opens(job):
                found[job.id] = "its env was sealed with another HOLDFAST_SECRET_KEY: an administrator is needed"
    return found
