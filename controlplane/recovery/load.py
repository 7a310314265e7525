"""Rows to `JobSnapshot`: the only border between tables and the policy.

Called under the job's row lock. Reads Redis for the hot picture (who is silent, who
waits); when that is away the readings are None and the policy is told it is blind.
"""

from collections import defaultdict
from itertools import pairwise, takewhile
from typing import Any

import msgspec
from django.db.models import Max, Sum

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import LOCAL_KIND, spec_of
from controlplane.policy import snapshot as facts
from controlplane.protocol.membership import Flush, Install, MemberRole, View
from controlplane.protocol.rank_faults import is_scheduled
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import (
    UNFIT,
    WAITING_PHASES,
    AttemptState,
    CheckpointState,
    IncidentState,
    JobState,
    NodeState,
    RankState,
    ReplicaState,
)
from controlplane.recovery import sight, signals
from controlplane.recovery.learned import learned_of, saves_of, undisturbed
from controlplane.recovery.ledger import budget_of
from controlplane.recovery.models import Decision, Signal, ViewRow
from controlplane.runtime import bus
from controlplane.runtime.clock import ago, now
from controlplane.scheduling.selectors import reserved_nodes

GOVERNOR_WINDOW_S = 60.0
MAX_CHECKPOINTS = 20
MAX_REISSUES_READ = 20
MAX_REFUSED_READ = 20
"""Their pauses have long stopped growing."""
GONE_STATES = (RankState.EXITED, RankState.LOST)
WAITING = frozenset(str(phase) for phase in WAITING_PHASES)
DESTRUCTIVE_RULES = ("replica_failure", "restart", "straggler")
TOLD_ONLY = "tell"


def load_snapshot(job: Job) -> facts.JobSnapshot:
    """Everything the policy may know about this job now."""
    moment = now()
    attempt = job.attempts.order_by("-number").first()
    view = _newest_view(job, attempt)
    hot_ranks = bus.read_hot(f"job:{job.id}")
    nodes = node_facts(job)
    times = undisturbed(job)
    open_signals = signals.open_for(job.id, [node.id for node in nodes])
    return facts.JobSnapshot(
        now_s=moment.timestamp(),
        blind=sight.is_blind(),
        job=_job_fact(job),
        attempt=_attempt_fact(attempt),
        replicas=_replica_facts(attempt, view, hot_ranks),
        view=msgspec.convert(view.view, View) if view else None,
        view_since_s=view.announced_at.timestamp() if view else 0.0,
        install=msgspec.convert(view.install, Install) if view and view.install else None,
        installed_s=view.ordered_at.timestamp() if view and view.ordered_at else None,
        flushes=_flushes(view),
        signals=tuple(_signal_fact(row) for row in open_signals),
        nodes=nodes,
        checkpoints=_checkpoint_facts(job),
        saves=saves_of(job, times),
        budget=budget_of(job),
        learned=learned_of(job, times),
        acts_last_window=_recent_acts(),
        reissued_views=_reissued(job, attempt),
        fleet_devices=sum(len(node.devices) for node in nodes),
        suspect_devices=_suspect_devices(nodes),
    )


def _job_fact(job: Job) -> facts.JobFact:
    progressed = job.steps.aggregate(at=Max("at"))["at"]
    opened = job.incidents.exclude(state=IncidentState.RESOLVED).values_list("opened_at", flat=True).first()
    spec = spec_of(job).spec
    training_s, fired = _rehearsed(job) if is_scheduled(spec.resiliency.faults) else (None, 0)
    return facts.JobFact(
        id=job.id,
        name=job.name,
        state=JobState(job.state),
        spec=spec,
        epoch=job.epoch,
        committed_step=job.committed_step,
        created_s=job.created_at.timestamp(),
        cancel_requested=job.cancel_requested,
        finished=job.trained,
        progressed_s=progressed.timestamp() if progressed else None,
        incident_opened_s=opened.timestamp() if opened else None,
        training_s=training_s,
        faults_fired=fired,
        looked_s=job.looked_at.timestamp() if job.looked_at else None,
        looks_taken=job.looks_taken,
    )


def _rehearsed(job: Job) -> tuple[float, int]:
    """(seconds of all committed steps, faults of the job's schedule given so far)."""
    training_s = job.steps.aggregate(total=Sum("step_time_s"))["total"] or 0.0
    return training_s, Decision.objects.filter(job=job, rule="rehearsal", applied=True).count()


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
        refused_attempts=_refused(attempt),
    )


def _refused(attempt: Attempt) -> int:
    """Attempts in a row, it included, of which nodes would start nothing."""
    if attempt.end_code != UNFIT:
        return 0
    codes = attempt.job.attempts.order_by("-number").values_list("end_code", flat=True)[:MAX_REFUSED_READ]
    return len(list(takewhile(lambda code: code == UNFIT, codes)))


def _newest_view(job: Job, attempt: Attempt | None) -> ViewRow | None:
    if attempt is None:
        return None
    return ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch").first()


def _flushes(view: ViewRow | None) -> tuple[Flush, ...]:
    if view is None:
        return ()
    rows = view.flush_rows.order_by("replica", "rank")
    return tuple(msgspec.convert(row.flush, Flush) for row in rows)


def _replica_facts(
    attempt: Attempt | None, view: ViewRow | None, hot_ranks: dict[str, Any] | None
) -> tuple[facts.ReplicaFact, ...]:
    """The newest incarnation of each slot, by index."""
    if attempt is None:
        return ()
    members = {(m["replica"], m["incarnation"]) for m in view.view["members"]} if view else set()
    slots: dict[int, list[Replica]] = defaultdict(list)
    rows = attempt.replica_rows.prefetch_related("ranks__device").order_by("index", "-incarnation")
    for row in rows:
        slots[row.index].append(row)
    return tuple(
        _replica_fact(lives[0], members, hot_ranks, *_failed_starts(lives)) for _, lives in sorted(slots.items())
    )


def _failed_starts(lives: list[Replica]) -> tuple[int, int]:
    """(incarnations in a row, newest first, that ended before they ever contributed, how many of
    them a node refused); what a person ordered out says nothing about its start."""
    young = takewhile(lambda life: not life.contributed, lives)
    failed = [life for life in young if life.state == ReplicaState.EVICTED and not life.ordered_out]
    return len(failed), sum(life.refused for life in failed)


def _replica_fact(
    row: Replica, members: set[tuple[int, int]], hot_ranks: dict[str, Any] | None, failed: int, refused: int
) -> facts.ReplicaFact:
    ranks = sorted(row.ranks.all(), key=lambda rank: rank.rank)
    return facts.ReplicaFact(
        index=row.index,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        state_since_s=row.state_since.timestamp(),
        world_size=len(ranks),
        placements=tuple(
            facts.Placement(rank=rank.rank, node_id=rank.node_id, device_index=rank.device.index) for rank in ranks
        ),
        joined_ranks=sum(rank.joined_at is not None and rank.state not in GONE_STATES for rank in ranks),
        exited_ranks=sum(rank.state == RankState.EXITED for rank in ranks),
        in_view=(row.index, row.incarnation) in members,
        contributing=row.contributing,
        standby=not row.contributing and (row.caught_up or {}).get("role") == MemberRole.STANDBY,
        committed_step=row.committed_step,
        waiting=_waits(row, ranks, hot_ranks),
        stopped=all(rank.released_at is not None for rank in ranks),
        failed_starts=failed,
        ordered_out=row.ordered_out,
        ordered_s=row.ordered_at.timestamp() if row.ordered_at else None,
        refused=row.refused,
        refused_starts=refused,
    )


def _waits(row: Replica, ranks: list[Rank], hot_ranks: dict[str, Any] | None) -> bool:
    """Every rank sits in a phase that waits for others. A rank nobody hears waits for
    nobody, as far as we know."""
    if not hot_ranks or not ranks:
        return False
    seen = [hot_ranks.get(f"{row.index}.{row.incarnation}.{rank.rank}") for rank in ranks]
    return all(live is not None and live["phase"] in WAITING and live["silent_s"] < sight.FRESH_S for live in seen)


def _signal_fact(row: Signal) -> facts.SignalFact:
    return facts.SignalFact(
        id=row.id,
        kind=row.kind,
        seen_s=row.seen_at.timestamp(),
        replica=row.replica,
        incarnation=row.incarnation,
        rank=row.rank,
        node_id=row.node_id,
        device_index=row.device_index,
        value=row.value,
        threshold=row.threshold,
        evidence=row.evidence,
        incident_id=row.incident_id,
    )


def node_facts(job: Job) -> tuple[facts.NodeFact, ...]:
    """The fleet as this job may use it, by node id."""
    held = set(Rank.objects.filter(released_at=None).values_list("device_id", flat=True))
    reserved = reserved_nodes()
    reserved_devices = set(Device.objects.filter(reservation__isnull=False).values_list("id", flat=True))
    warm = _warm_nodes(job)
    silent = sight.silent_by_node()
    unhealthy = signals.node_checks()
    found = []
    rows = Node.objects.filter(revoked_at=None).prefetch_related("devices").order_by("id")
    for node in rows:
        devices = tuple(
            facts.DeviceFact(
                index=device.index,
                uuid=device.uuid,
                free=device.id not in held and device.id not in reserved_devices,
                held=device.id in held,
                healthy=device.healthy and device.present,
                risk=device.risk,
                memory_bytes=device.memory_bytes,
            )
            for device in sorted(node.devices.all(), key=lambda device: device.index)
        )
        found.append(
            facts.NodeFact(
                id=node.id,
                name=node.name,
                state=NodeState(node.state),
                connected=node.connected,
                silent_s=sight.silent_s(node, silent),
                devices=devices,
                warm=node.id in warm,
                reserved_for=reserved.get(node.id),
                unhealthy=unhealthy.get(node.id, ""),
                segment=node.segment,
            )
        )
    return tuple(found)


def _warm_nodes(job: Job) -> set[str]:
    """Where this job's rank host has been started (an ended host is started again at need)."""
    kinds = ("warm_host", "start_ranks")
    rows = Command.objects.filter(job=job, kind__in=kinds, state="succeeded")
    return set(rows.values_list("node_id", flat=True))


def _checkpoint_facts(job: Job) -> tuple[facts.CheckpointFact, ...]:
    gone = (CheckpointState.WRITING, CheckpointState.PRUNED)
    rows = job.checkpoints.exclude(state__in=gone).order_by("-step", "-epoch")[:MAX_CHECKPOINTS]
    found = [
        facts.CheckpointFact(
            id=row.id,
            step=row.step,
            path=row.path,
            state=CheckpointState(row.state),
            epoch=row.epoch,
            committed_s=(row.committed_at or row.started_at).timestamp(),
            layout=msgspec.convert(row.layout or {}, Parallelism),
            holders=tuple(tuple(nodes) for nodes in row.holders) if row.kind == LOCAL_KIND else None,
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda fact: fact.id))


def _recent_acts() -> int:
    since = ago(GOVERNOR_WINDOW_S)
    made = Decision.objects.filter(rule__in=DESTRUCTIVE_RULES, applied=True, at__gte=since)
    return made.exclude(choice=TOLD_ONLY).count()


def _reissued(job: Job, attempt: Attempt | None) -> int:
    """Views in a row with unchanged members since a step was last committed."""
    if attempt is None:
        return 0
    rows = list(ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch")[:MAX_REISSUES_READ])
    count = 0
    for newer, older in pairwise(rows):
        same = newer.view["members"] == older.view["members"]
        if not same or newer.resumed_at is not None:
            return count
        count += 1
        if older.resumed_at is not None:
            return count
    return count


def _suspect_devices(nodes: tuple[facts.NodeFact, ...]) -> int:
    """Devices that a finding of the governor's window names. A node that died long ago and was
    dealt with says nothing about the trust that today's findings deserve."""
    named: set[tuple[str, int]] = set()
    sizes = {node.id: len(node.devices) for node in nodes}
    kinds = ("node_silent", "device_risk", "xid", "device_lost")
    since = ago(GOVERNOR_WINDOW_S)
    rows = Signal.objects.filter(settled_at=None, seen_at__gte=since, kind__in=kinds, node_id__isnull=False)
    for node_id, index in rows.values_list("node_id", "device_index"):
        indices = [index] if index is not None else list(range(sizes.get(node_id or "", 0)))
        named |= {(node_id or "", i) for i in indices}
    return len(named)
