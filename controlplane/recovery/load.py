"""Rows to `JobSnapshot`: the only border between tables and the policy.

Called under the job's row lock. Reads Redis for the live state (who is silent, who
waits); when that is away the readings are None and the policy is told it is blind.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import msgspec
from django.db.models import Max, OuterRef, Q, Subquery

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
from controlplane.fleet.models import Device, Node
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, JobPace, Rank, RankSpeed
from controlplane.jobs.numbers import LOCAL_KIND
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
from controlplane.recovery.models import Decision, ViewRow
from controlplane.runtime import bus
from controlplane.runtime.clock import now

MAX_BARS_READ = 200
NEWEST_STEPS = 20
"""The newest commit is among the steps with the highest numbers: of a fresh attempt, the last one's."""


def load_snapshot(job: Job) -> facts.JobSnapshot:
    """Everything the policy may know about this job now. Of the fleet beyond the job's own nodes nothing yet:
    what a rule asks of it `recovery.load_candidates` answers."""
    moment = now()
    attempt = job.attempts.order_by("-number").first()
    view = _newest_view(job, attempt)
    readings = cast("Mapping[str, Reading]", bus.read_live(f"job:{job.id}") or {})
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
        times=learned.times_of(job),
        ledger=ledger.ledger_of(job),
        fleet=_fleet(),
        requests=asked.of_job(job),
        queue=load_queue.place_of(job, yielded=attempt.yielded if attempt is not None else 0),
        recommended=recommended.of_attempt(job, attempt),
    )
    return snapshot_of(parts)


def _fleet() -> Fleet:
    closed = disruption.closings()
    named = disruption.suspicions(closed)
    sizes = device_counts({node_id for node_id, index in named if index is None})
    clock_set_s, clock_step_s = health_gate.clock_step()
    suspect_nodes = {node_id for node_id, _ in suspect_devices(named, sizes)}
    return Fleet(
        acts=disruption.recent_acts(closed),
        named=named,
        devices=enrolled(Device.objects.all()).count(),
        sizes=sizes,
        clock_set_s=clock_set_s,
        clock_step_s=clock_step_s,
        elsewhere=Elsewhere(segments=_segments_of(suspect_nodes), divided=_is_divided()),
        disruption=disruption.counted(closed),
    )


def _job_fact(job: Job) -> facts.JobFact:
    newest = job.steps.order_by("-attempt", "-step").values_list("at", flat=True)[:NEWEST_STEPS]
    progressed = max(newest, default=None)
    opened = job.incidents.filter(state__in=LIVE_INCIDENT).aggregate(at=Max("opened_at"))["at"]
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


def _end_codes(attempt: Attempt | None) -> Iterator[str]:
    """Newest first. Few jobs have one that makes the older ones be read."""
    if attempt is not None:
        yield attempt.end_code
        older = attempt.job.attempts.filter(number__lt=attempt.number).order_by("-number")
        yield from older.values_list("end_code", flat=True)[: MAX_REFUSED_READ - 1]


def _newest_view(job: Job, attempt: Attempt | None) -> ViewRow | None:
    if attempt is None:
        return None
    newest = ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch").first()
    # Each view takes the job's epoch. A job ahead of its views was set back: its ranks are in
    # one that is not known here, and get a new one.
    return newest if newest is not None and newest.epoch >= job.epoch else None


def _membership(view: ViewRow | None) -> Membership | None:
    if view is None:
        return None
    return Membership(
        view=msgspec.convert(view.view, View),
        since_s=view.announced_at.timestamp(),
        install=msgspec.convert(view.install, Install) if view.install else None,
        installed_s=view.ordered_at.timestamp() if view.ordered_at else None,
        flushes=[msgspec.convert(row.flush, Flush) for row in view.flush_rows.all()],
    )


def _views(job: Job, attempt: Attempt | None) -> Iterator[Announced]:
    if attempt is not None:
        rows = ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch")[:MAX_REISSUES_READ]
        yield from (Announced(row.view["members"], row.resumed_at is not None) for row in rows)


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


def _bars(job: Job) -> tuple[facts.BarFact, ...]:
    """Places that ends of the job's own ranks accuse, the newest; the policy says how long."""
    codes = {code for code in range(-64, 256) if bars.accuses(code)}
    told = Q(exit_code__in=codes) | Q(exit_signal__in=[-code for code in codes if code < 0])
    rows = Rank.objects.filter(told, replica__attempt__job=job, released_at__isnull=False)
    columns = ("replica_id", "rank", "node_id", "exit_code", "exit_signal", "released_at")
    ended = list(rows.order_by("-released_at").values_list(*columns)[:MAX_BARS_READ])
    beside = _beside({row[0] for row in ended}, {row[2] for row in ended})
    ends = []
    for replica_id, rank, node_id, exit_code, exit_signal, released_at in ended:
        code = exit_code if exit_code is not None else -(exit_signal or 0)
        assert released_at is not None, "only ranks that are gone are read"
        there = tuple(beside[replica_id, node_id])
        ends.append(End(rank=rank, code=code, at_s=released_at.timestamp(), beside=there))
    return bars_found(ends, _slow_bars(job))


def _slow_bars(job: Job) -> Iterator[facts.BarFact]:
    """Devices under ranks that were slow beside their peers when they left, by their last scoring."""
    left = (ReplicaState.EVICTED, ReplicaState.ENDED)
    rows = RankSpeed.objects.filter(rank__replica__attempt__job=job, rank__replica__state__in=left)
    rows = rows.exclude(straggler="").order_by("-rank__replica__state_since")
    columns = ("straggler", "cause", "rank__node_id", "rank__device__index", "rank__replica__state_since")
    for score, cause, node_id, index, left_at in rows.values_list(*columns)[:MAX_BARS_READ]:
        if bars.is_slow(score, cause):
            yield bars.of_slow(node_id, index, since_s=left_at.timestamp())


def _beside(replicas: set[int], nodes: set[str]) -> Mapping[tuple[int, str], list[facts.Placement]]:
    """Where the ranks of each of these replicas are, by replica and node."""
    rows = Rank.objects.filter(replica_id__in=replicas, node_id__in=nodes).order_by("rank")
    found: dict[tuple[int, str], list[facts.Placement]] = defaultdict(list)
    for replica_id, rank, node_id, index in rows.values_list("replica_id", "rank", "node_id", device_index()):
        found[replica_id, node_id].append(facts.Placement(rank=rank, node_id=node_id, device_index=index))
    return found


def _checkpoint_facts(job: Job) -> list[facts.CheckpointFact]:
    gone = [str(state) for state in OFF_THE_LADDER]
    begun = Attempt.objects.filter(job_id=OuterRef("job_id"), number=OuterRef("attempt"))
    rows = job.checkpoints.exclude(state__in=gone).order_by("-step", "-epoch")[:MAX_CHECKPOINTS]
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
        for row in rows.annotate(begun_at=Subquery(begun.values("resume_step")[:1]))
    ]


def _segments_of(node_ids: Collection[str]) -> dict[str, str]:
    if not node_ids:
        return {}
    rows = of_nodes(Node.objects.filter(revoked_at=None), "pk", node_ids)
    return {node_id: name for node_id, name in rows.values_list("id", "segment") if node_id in node_ids}


def _is_divided() -> bool:
    """The nodes of the fleet are not all in one segment."""
    names = Node.objects.filter(revoked_at=None).order_by().values_list("segment", flat=True).distinct()
    return len(names[:2]) > 1


def segments() -> dict[str, str]:
    """The segment of each node of the fleet, by id; "" for none."""
    return dict(Node.objects.filter(revoked_at=None).values_list("id", "segment"))
