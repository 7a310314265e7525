"""Rows to `JobSnapshot`: the only border between tables and the policy.

Called under the job's row lock. Reads Redis for the live state (who is silent, who
waits); when that is away the readings are None and the policy is told it is blind.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import pairwise, takewhile

import msgspec
from django.db.models import Count, Max, Q, QuerySet

from controlplane.fleet.models import Device, Node
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, JobPace, Rank
from controlplane.jobs.numbers import LOCAL_KIND
from controlplane.jobs.selectors import device_index, past_lives
from controlplane.policy import bars
from controlplane.policy import snapshot as facts
from controlplane.policy.asked import Elsewhere
from controlplane.policy.elsewhere import own_nodes
from controlplane.policy.facts import LIVE_ATTEMPT, TERMINAL_JOB
from controlplane.policy.findings import KINDS
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.rank_faults import is_scheduled
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import (
    LIVE_INCIDENT,
    UNFIT,
    AttemptState,
    CheckpointState,
    JobState,
)
from controlplane.recovery import asked, counts, recompute, sight, signals
from controlplane.recovery.learned import learned_of, saves_of, undisturbed
from controlplane.recovery.ledger import budget_of
from controlplane.recovery.load_devices import of_nodes
from controlplane.recovery.load_nodes import own_facts
from controlplane.recovery.load_replicas import replica_facts
from controlplane.recovery.models import Decision, Signal, ViewRow
from controlplane.runtime import bus, windows
from controlplane.runtime.clock import now

BUDGET_WINDOW_S = 60.0
MAX_CHECKPOINTS = 20
MAX_REISSUES_READ = 20
MAX_BARS_READ = 200
NEWEST_STEPS = 20
"""The newest commit is among the steps with the highest numbers: of a fresh attempt, the last one's."""
MAX_REFUSED_READ = 20
"""Their pauses have long stopped growing."""


def load_snapshot(job: Job) -> facts.JobSnapshot:
    """Everything the policy may know about this job now. Of the fleet beyond the job's own nodes nothing yet:
    what a rule asks of it `recovery.load_candidates` answers."""
    moment = now()
    attempt = job.attempts.order_by("-number").first()
    view = _newest_view(job, attempt)
    live_ranks = bus.read_live(f"job:{job.id}")
    replicas, bars = replica_facts(attempt, view, live_ranks), _bars(job)
    found = tuple(sight.phase_now(fact, live_ranks) for fact in _signal_facts(signals.open_for(job.id)))
    nodes = own_facts(job, own_nodes(replicas, found, bars))
    times = undisturbed(job)
    suspected = suspects()
    suspect_nodes = tuple(sorted({node_id for node_id, _ in suspected}))
    clock_set_s, clock_step_s = sight.clock_step()
    return facts.JobSnapshot(
        now_s=moment.timestamp(),
        blind=sight.is_blind(),
        job=msgspec.structs.replace(_job_fact(job), past_lives=past_lives(attempt)),
        attempt=_attempt_fact(attempt),
        replicas=replicas,
        view=msgspec.convert(view.view, View) if view else None,
        view_since_s=view.announced_at.timestamp() if view else 0.0,
        install=msgspec.convert(view.install, Install) if view and view.install else None,
        installed_s=view.ordered_at.timestamp() if view and view.ordered_at else None,
        flushes=_flushes(view),
        signals=found,
        nodes=nodes,
        bars=bars,
        checkpoints=_checkpoint_facts(job),
        saves=saves_of(job, times),
        budget=budget_of(job),
        learned=learned_of(job, times),
        acts_last_window=recent_acts(),
        reissued_views=_reissued(job, attempt),
        fleet_devices=_enrolled(Device.objects.all()).count(),
        suspect_devices=len(suspected),
        suspect_nodes=suspect_nodes,
        clock_set_s=clock_set_s,
        clock_step_s=clock_step_s,
        elsewhere=Elsewhere(segments=_segments_of(suspect_nodes), divided=_is_divided()),
        requests=asked.of_job(job),
    )


def _job_fact(job: Job) -> facts.JobFact:
    newest = job.steps.order_by("-attempt", "-step").values_list("at", flat=True)[:NEWEST_STEPS]
    progressed = max(newest, default=None)
    opened = job.incidents.filter(state__in=LIVE_INCIDENT).aggregate(at=Max("opened_at"))["at"]
    spec = environment.told_to_policy(job)
    training_s, fired = _schedule_position(job) if is_scheduled(spec.resiliency.faults) else (None, 0)
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
        end_held_until_s=held.timestamp() if (held := recompute.held_until(job)) else None,
        progressed_s=progressed.timestamp() if progressed else None,
        incident_opened_s=opened.timestamp() if opened else None,
        training_s=training_s,
        faults_fired=fired,
        looked_s=job.looked_at.timestamp() if job.looked_at else None,
        looks_taken=job.looks_taken,
        ahead=msgspec.convert(job.ahead, facts.AheadFact, str_keys=True),
        env_opens=environment.opens(job),
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
        refused_attempts=_refused(attempt),
        max_contributors=attempt.max_contributors,
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
    newest = ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch").first()
    # Each view takes the job's epoch. A job ahead of its views was set back: its ranks are in
    # one that is not known here, and get a new one.
    return newest if newest is not None and newest.epoch >= job.epoch else None


def _flushes(view: ViewRow | None) -> tuple[Flush, ...]:
    if view is None:
        return ()
    rows = view.flush_rows.order_by("replica", "rank")
    return tuple(msgspec.convert(row.flush, Flush) for row in rows)


def _signal_facts(rows: list[Signal]) -> tuple[facts.SignalFact, ...]:
    """A finding about hardware under no living replica is the fleet's own affair."""
    accused = {row.node_id for row in rows if row.kind in KINDS and row.node_id is not None}
    owned = owned_devices(accused) if accused else frozenset()
    return tuple(
        signals.fact_of(row, of_fleet=row.kind in KINDS and (row.node_id, row.device_index) not in owned)
        for row in rows
    )


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
    found: set[facts.BarFact] = set()
    for replica_id, rank, node_id, exit_code, exit_signal, released_at in ended:
        code = exit_code if exit_code is not None else -(exit_signal or 0)
        assert released_at is not None, "only ranks that are gone are read"
        found.update(bars.bars_of(tuple(beside[replica_id, node_id]), rank, code, since_s=released_at.timestamp()))
    return tuple(sorted(found, key=lambda bar: (bar.node_id, bar.code, bar.device_index or 0, bar.since_s)))


def _beside(replicas: set[int], nodes: set[str]) -> Mapping[tuple[int, str], list[facts.Placement]]:
    """Where the ranks of each of these replicas are, by replica and node."""
    rows = Rank.objects.filter(replica_id__in=replicas, node_id__in=nodes).order_by("rank")
    found: dict[tuple[int, str], list[facts.Placement]] = defaultdict(list)
    for replica_id, rank, node_id, index in rows.values_list("replica_id", "rank", "node_id", device_index()):
        found[replica_id, node_id].append(facts.Placement(rank=rank, node_id=node_id, device_index=index))
    return found


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
            doubted=bool(row.doubt),
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda fact: fact.id))


def recent_acts() -> int:
    """Destructive acts of the governor's window, over the whole fleet."""
    return windows.within(counts.acts(), "at", BUDGET_WINDOW_S).count()


def _reissued(job: Job, attempt: Attempt | None) -> int:
    """Views in a row with unchanged members since a step was last committed."""
    if attempt is None:
        return 0
    rows = list(ViewRow.objects.filter(job=job, attempt=attempt.number).order_by("-epoch")[:MAX_REISSUES_READ])
    count = 0
    for newer, older in pairwise(rows):
        if newer.view["members"] != older.view["members"] or newer.resumed_at is not None:
            return count
        count += 1
        if older.resumed_at is not None:
            return count
    return count


def suspects(sizes: Mapping[str, int] | None = None) -> set[tuple[str, int]]:
    """Devices (node id, index) that a finding of the governor's window names; one of hardware counts
    also when it was acted on, so that a flood of them is not cordoned one by one. A node that died
    long ago and was dealt with says nothing about the trust that today's findings deserve. `sizes`:
    how many devices each node has, by id; read for those that it takes unless they are told."""
    named: set[tuple[str, int]] = set()
    rows = windows.within(counts.suspicions(), "seen_at", BUDGET_WINDOW_S)
    found = list(rows.values_list("node_id", "device_index"))
    if sizes is None:
        sizes = device_counts({node_id or "" for node_id, index in found if index is None})
    for node_id, index in found:
        indices = [index] if index is not None else list(range(sizes.get(node_id or "", 0)))
        named |= {(node_id or "", i) for i in indices}
    return named


def device_counts(only: Collection[str] | None = None) -> Mapping[str, int]:
    """How many devices each node of the fleet has, by id; `only` these."""
    rows = of_nodes(_enrolled(Device.objects.all()), "node_id", only).order_by()
    return dict(rows.values_list("node_id").annotate(number=Count("pk")).values_list("node_id", "number"))


def _enrolled(rows: QuerySet[Device]) -> QuerySet[Device]:
    """Those of nodes that were not revoked."""
    return rows.exclude(node__in=Node.objects.exclude(revoked_at=None))


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
