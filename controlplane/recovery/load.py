"""Rows to `JobSnapshot`: the only border between tables and the policy.

Called under the job's row lock. Reads Redis for the live state (who is silent, who
waits); when that is away the readings are None and the policy is told it is blind.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec
from django.db.models import Count, Max, OuterRef, Q, QuerySet, Subquery

from controlplane.changes.assembly.counted import MAX_REFUSED_READ, MAX_REISSUES_READ, Announced
from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.changes.assembly.replicas import accused, replicas_of, signal_facts
from controlplane.changes.assembly.rows import Reading
from controlplane.changes.assembly.snapshot import (
    MAX_CHECKPOINTS,
    OFF_THE_LADDER,
    End,
    Fleet,
    Membership,
    Parts,
    bars_found,
    snapshot_of,
)
from controlplane.checkpoints.models import Checkpoint
from controlplane.fleet.models import Device, Node
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, JobPace, Rank, RankSpeed, StepRecord
from controlplane.jobs.numbers import LOCAL_KIND, NEWEST_ATTEMPT
from controlplane.jobs.selectors import device_index, lives_of
from controlplane.policy import bars
from controlplane.policy import snapshot as facts
from controlplane.policy.asked import Elsewhere
from controlplane.policy.elsewhere import own_nodes
from controlplane.policy.facts import LIVE_ATTEMPT, TERMINAL_JOB
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.rank_faults import is_scheduled
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import LIVE_INCIDENT, AttemptState, CheckpointState, JobState, ReplicaState
from controlplane.recovery import (
    asked,
    disruption,
    health_gate,
    learned,
    ledger,
    load_queue,
    recommended,
    recompute,
    signals,
    spikes,
)
from controlplane.recovery.load_devices import device_counts, enrolled, of_nodes
from controlplane.recovery.load_nodes import own_facts
from controlplane.recovery.load_replicas import slots_of
from controlplane.recovery.models import Decision, FlushRow, Incident, ViewRow
from controlplane.runtime import shards, windows
from controlplane.runtime.clock import now
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOST, NUMBER, TEXT, Prepared, Several, figures_of

MAX_BARS_READ = 200
NEWEST_STEPS = 20
"""The newest commit is among the steps with the highest numbers: of a fresh attempt, the last one's."""


def load_snapshot(job: Job) -> facts.JobSnapshot:
    """Everything the policy may know about this job now. Of the fleet beyond the job's own nodes nothing yet:
    what a rule asks of it `recovery.load_candidates` answers."""
    moment, steps = now(), windows.known()
    attempt = NEWEST_ATTEMPT.first(job=job.id)
    view = _newest_view(job, attempt)
    readings = cast("Mapping[str, Reading]", shards.read_whole(f"job:{job.id}"))
    membership = _membership(view)
    replicas = replicas_of(slots_of(attempt, readings), membership.view if membership else None)
    opened = spikes.with_losses(map(signals.fact_of, signals.open_for(job.id)), attempt)
    bars, found = _bars(job), _signal_facts(opened, replicas if _lives(attempt) else (), readings)
    parts = Parts(
        now_s=moment.timestamp(),
        blind=health_gate.is_blind(),
        job=_job_fact(job),
        lives=lives_of(attempt),
        attempt=_attempt_fact(attempt),
        end_codes=_end_codes(attempt),
        tries=ledger.tries_of(job),
        replicas=replicas,
        membership=membership,
        views=_views(job, attempt),
        signals=found,
        nodes=own_facts(job, own_nodes(replicas, found, bars)),
        bars=bars,
        checkpoints=_checkpoint_facts(job),
        saves=learned.saves_of(job),
        times=learned.times_of(job, steps),
        ledger=ledger.ledger_of(job, attempt.number if attempt is not None else 0, steps),
        fleet=_fleet(steps),
        requests=asked.of_job(job),
        queue=load_queue.place_of(job, yielded=attempt.yielded if attempt is not None else 0),
        recommended=recommended.of_attempt(job, attempt),
    )
    return snapshot_of(parts)


_DEVICE_NUMBER = Prepared(lambda: figures_of(enrolled(Device.objects.all()), number=Count("pk")))


def _fleet(steps: list[ClockStep]) -> Fleet:
    """`steps`: of `windows.known`."""
    closed = disruption.closings(steps)
    named = disruption.suspicions(closed, steps)
    sizes = device_counts({node_id for node_id, index in named if index is None})
    clock_set_s, clock_step_s = health_gate.clock_step()
    suspect_nodes = {node_id for node_id, _ in suspect_devices(named, sizes)}
    return Fleet(
        acts=disruption.recent_acts(closed, steps),
        named=named,
        devices=_DEVICE_NUMBER()[0][0],
        sizes=sizes,
        clock_set_s=clock_set_s,
        clock_step_s=clock_step_s,
        elsewhere=Elsewhere(segments=_segments_of(suspect_nodes), divided=_is_divided()),
        disruption=disruption.counted(closed, steps),
    )


def _steps_at(job: object) -> QuerySet[StepRecord, datetime]:
    rows = StepRecord.objects.filter(job=job).order_by("-attempt", "-step")
    return rows.values_list("at", flat=True)[:NEWEST_STEPS]


_STEPS_AT = Prepared(_steps_at, job=TEXT)
_OPENED_AT = Prepared(
    lambda job: figures_of(Incident.objects.filter(job=job, state__in=LIVE_INCIDENT), at=Max("opened_at")), job=TEXT
)


def _job_fact(job: Job) -> facts.JobFact:
    progressed = max(_STEPS_AT(job=job.id), default=None)
    opened = _OPENED_AT(job=job.id)[0][0]
    spec = environment.told_to_policy(job)
    training_s, fired = _schedule_position(job) if is_scheduled(spec.resiliency.faults) else (None, 0)
    limited = spec.scheduling.time_limit_s > 0.0
    begun = job.attempts.order_by("number").values_list("started_at", flat=True).first() if limited else None
    return facts.JobFact(
        id=job.id,
        begun_s=begun.timestamp() if begun else None,
        name=job.name,
        state=JobState(job.state),
        spec=spec,
        epoch=job.epoch,
        committed_step=job.committed_step,
        created_s=job.created_at.timestamp(),
        cancel_requested=job.cancel_requested,
        finished=job.trained,
        end_held_until_s=held.timestamp() if (held := recompute.held_until(job)) else None,
        progressed_s=progressed.timestamp() if progressed else None,
        incident_opened_s=opened.timestamp() if opened else None,
        training_s=training_s,
        faults_fired=fired,
        looked_s=job.looked_at.timestamp() if job.looked_at else None,
        looks_taken=job.looks_taken,
        ahead=msgspec.convert(job.ahead, facts.AheadFact, str_keys=True),
        env_opens=environment.opens(job),
        parked_by=job.parked_by,
        project=job.project,
    )


def _schedule_position(job: Job) -> tuple[float, int]:
    """(seconds of all committed steps, faults of the job's schedule given so far)."""
    kept = JobPace.objects.filter(job=job).values_list("trained_s", flat=True).first()
    return kept or 0.0, Decision.objects.filter(job=job, rule="rehearsal", applied=True).count()


def _attempt_fact(attempt: Attempt | None) -> facts.AttemptFact | None:
    if attempt is None:
        return None
    return facts.AttemptFact(
        number=attempt.number,
        state=AttemptState(attempt.state),
        layout=msgspec.convert(attempt.layout, Parallelism),
        replicas=attempt.replicas,
        started_s=attempt.started_at.timestamp(),
        resume_step=attempt.resume_step,
        end_code=attempt.end_code,
        max_contributors=attempt.max_contributors,
        yielded=attempt.yielded,
    )


def _older_end_codes(job: object, number: object) -> QuerySet[Attempt, str]:
    rows = Attempt.objects.filter(job=job, number__lt=number).order_by("-number")
    return rows.values_list("end_code", flat=True)[: MAX_REFUSED_READ - 1]


_OLDER_END_CODES = Prepared(_older_end_codes, job=TEXT, number=NUMBER)


def _end_codes(attempt: Attempt | None) -> Iterator[str]:
    """Newest first. Few jobs have one that makes the older ones be read."""
    if attempt is not None:
        yield attempt.end_code
        yield from _OLDER_END_CODES(job=attempt.job_id, number=attempt.number)


def _views_of(job: object, attempt: object) -> QuerySet[ViewRow]:
    return ViewRow.objects.filter(job=job, attempt=attempt).order_by("-epoch")


_NEWEST_VIEW = Prepared(lambda **of: _views_of(**of)[:1], job=TEXT, attempt=NUMBER)
_ANNOUNCED = Prepared(
    lambda **of: _views_of(**of).values_list("view", "resumed_at")[:MAX_REISSUES_READ], job=TEXT, attempt=NUMBER
)


def _newest_view(job: Job, attempt: Attempt | None) -> ViewRow | None:
    if attempt is None:
        return None
    newest = _NEWEST_VIEW.first(job=job.id, attempt=attempt.number)
    # Each view takes the job's epoch. A job ahead of its views was set back: its ranks are in
    # one that is not known here, and get a new one.
    return newest if newest is not None and newest.epoch >= job.epoch else None


_FLUSHES = Prepared(lambda view: FlushRow.objects.filter(view=view).values_list("flush", flat=True), view=NUMBER)


def _membership(view: ViewRow | None) -> Membership | None:
    if view is None:
        return None
    return Membership(
        view=msgspec.convert(view.view, View),
        since_s=view.announced_at.timestamp(),
        install=msgspec.convert(view.install, Install) if view.install else None,
        installed_s=view.ordered_at.timestamp() if view.ordered_at else None,
        flushes=[msgspec.convert(flush, Flush) for flush in _FLUSHES(view=view.pk)],
    )


def _views(job: Job, attempt: Attempt | None) -> Iterator[Announced]:
    if attempt is not None:
        for view, resumed_at in _ANNOUNCED(job=job.id, attempt=attempt.number):
            yield Announced(view["members"], resumed_at is not None)


def _lives(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.state in LIVE_ATTEMPT


def _signal_facts(
    found: list[facts.SignalFact], replicas: Sequence[facts.ReplicaFact], readings: Mapping[str, Reading]
) -> tuple[facts.SignalFact, ...]:
    nodes = accused(found)
    return signal_facts(found, owned_devices(nodes) if nodes else frozenset(), replicas, readings)


def owned_devices(only: Collection[str] | None = None) -> frozenset[tuple[str | None, int | None]]:
    """(node id, index) of each device under a living replica of a job that goes on; `only` those of these nodes,
    and where they are many of others too."""
    rows = Rank.objects.filter(
        released_at=None, replica__state__in=LIVE_REPLICA, replica__attempt__state__in=LIVE_ATTEMPT
    ).exclude(replica__attempt__job__state__in=TERMINAL_JOB)
    return frozenset(of_nodes(rows, "node_id", only).values_list("node_id", device_index()))


def _accusing(job: object) -> QuerySet[Rank, tuple[int, int, str, int | None, int | None, datetime | None]]:
    codes = {code for code in range(-64, 256) if bars.accuses(code)}
    told = Q(exit_code__in=codes) | Q(exit_signal__in=[-code for code in codes if code < 0])
    rows = Rank.objects.filter(told, replica__attempt__job=job, released_at__isnull=False).order_by("-released_at")
    columns = rows.values_list("replica_id", "rank", "node_id", "exit_code", "exit_signal", "released_at")
    return columns[:MAX_BARS_READ]


_ACCUSING = Prepared(_accusing, job=TEXT)


def _bars(job: Job) -> tuple[facts.BarFact, ...]:
    """Places that ends of the job's own ranks accuse, the newest; the policy says how long."""
    ended = _ACCUSING(job=job.id)
    beside = _beside({row[0] for row in ended}, {row[2] for row in ended})
    ends = []
    for replica_id, rank, node_id, exit_code, exit_signal, released_at in ended:
        code = exit_code if exit_code is not None else -(exit_signal or 0)
        assert released_at is not None, "only ranks that are gone are read"
        there = tuple(beside[replica_id, node_id])
        ends.append(End(rank=rank, code=code, at_s=released_at.timestamp(), beside=there))
    return bars_found(ends, _slow_bars(job))


def _slow_left(job: object) -> QuerySet[RankSpeed, tuple[str, str, str, int, datetime]]:
    left = (ReplicaState.EVICTED, ReplicaState.ENDED)
    rows = RankSpeed.objects.filter(rank__replica__attempt__job=job, rank__replica__state__in=left)
    rows = rows.exclude(straggler="").order_by("-rank__replica__state_since")
    columns = ("straggler", "cause", "rank__node_id", "rank__device__index", "rank__replica__state_since")
    return rows.values_list(*columns)[:MAX_BARS_READ]


_SLOW_LEFT = Prepared(_slow_left, job=TEXT)


def _slow_bars(job: Job) -> Iterator[facts.BarFact]:
    """Devices under ranks that were slow beside their peers when they left, by their last scoring."""
    for score, cause, node_id, index, left_at in _SLOW_LEFT(job=job.id):
        if bars.is_slow(score, cause):
            yield bars.of_slow(node_id, index, since_s=left_at.timestamp())


def _beside_them(replicas: object, nodes: object) -> QuerySet[Rank, tuple[int, int, str, int]]:
    rows = Rank.objects.filter(replica_id__in=replicas, node_id__in=nodes).order_by("rank")
    return rows.values_list("replica_id", "rank", "node_id", device_index())


_BESIDE = Prepared(_beside_them, replicas=Several(NUMBER), nodes=Several(TEXT))
assert MAX_BARS_READ <= MOST, "so many replicas and nodes are asked for at once"


def _beside(replicas: set[int], nodes: set[str]) -> Mapping[tuple[int, str], list[facts.Placement]]:
    """Where the ranks of each of these replicas are, by replica and node."""
    found: dict[tuple[int, str], list[facts.Placement]] = defaultdict(list)
    for replica_id, rank, node_id, index in _BESIDE(replicas=replicas, nodes=nodes):
        found[replica_id, node_id].append(facts.Placement(rank=rank, node_id=node_id, device_index=index))
    return found


def _ladder(job: object) -> QuerySet[Checkpoint]:
    gone = [str(state) for state in OFF_THE_LADDER]
    begun = Attempt.objects.filter(job_id=OuterRef("job_id"), number=OuterRef("attempt"))
    rows = Checkpoint.objects.filter(job=job).exclude(state__in=gone).order_by("-step", "-epoch")
    return rows.annotate(begun_at=Subquery(begun.values("resume_step")[:1]))[:MAX_CHECKPOINTS]


_LADDER = Prepared(_ladder, job=TEXT)


def _checkpoint_facts(job: Job) -> list[facts.CheckpointFact]:
    return [
        facts.CheckpointFact(
            id=row.id,
            step=row.step,
            path=row.path,
            state=CheckpointState(row.state),
            epoch=row.epoch,
            committed_s=(row.committed_at or row.started_at).timestamp(),
            layout=msgspec.convert(row.layout or {}, Parallelism),
            holders=tuple(tuple(nodes) for nodes in row.holders) if row.kind == LOCAL_KIND else None,
            doubted=bool(row.doubt),
            begun_at=row.begun_at or 0,
            suspect_step=row.suspect_step,
        )
        for row in _LADDER(job=job.id)
    ]


_SEGMENTS = Prepared(
    lambda: Node.objects.filter(revoked_at=None).order_by().values_list("segment", flat=True).distinct()[:2]
)


def _segments_of(node_ids: Collection[str]) -> dict[str, str]:
    if not node_ids:
        return {}
    rows = of_nodes(Node.objects.filter(revoked_at=None), "pk", node_ids)
    return {node_id: name for node_id, name in rows.values_list("id", "segment") if node_id in node_ids}


def _is_divided() -> bool:
    """The nodes of the fleet are not all in one segment."""
    return len(_SEGMENTS()) > 1


def segments() -> dict[str, str]:
    """The segment of each node of the fleet, by id; "" for none."""
    return dict(Node.objects.filter(revoked_at=None).values_list("id", "segment"))
