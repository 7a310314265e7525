"""Nodes that are not heard, as pages tell of them: since when, whether their ranks still commit, and when
something will be done about it.

The same facts and the same pure functions that the decisions come from; it writes nothing. `of_job` and
`of_node` tell everything, for one page. `of_jobs` and `of_nodes` tell what does not move by itself, for lists
and for the patches of events, in a number of queries that does not grow with the jobs and nodes asked for.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from controlplane.fleet.models import Node
from controlplane.jobs import environment
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.policies import selectors as policies
from controlplane.policy import snapshot as facts
from controlplane.policy.silence import NotHeard, not_heard, unheard
from controlplane.policy.snapshot import LIVE_REPLICA
from controlplane.protocol.membership import View
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import STARTING_JOB, AttemptState, JobState, NodeState, ReplicaState
from controlplane.recovery import health_gate, signals
from controlplane.recovery.load import NEWEST_STEPS, load_snapshot
from controlplane.recovery.models import Signal, ViewRow
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.runtime.logs import get
from controlplane.runtime.prepared import TEXT, Prepared, Several

RUNS = STARTING_JOB | {JobState.RUNNING, JobState.RECOVERING}
Told = dict[str, Any]
_log = get(__name__)


def of_job(job: Job) -> list[Told]:
    """One for each silent node of the job's replicas, by name; mostly none, and then nothing is loaded."""
    if job.state not in RUNS or not Signal.objects.filter(kind="node_silent", job=job, settled_at=None).exists():
        return []
    return [
        _told(job.id, fact)
        | {
            "silent_s": round(fact.silent_s, 1),
            "acts_at": None if fact.acts_at_s is None else iso(from_s(fact.acts_at_s)),
            "sentence": fact.sentence,
        }
        for fact in unheard(load_snapshot(job), policies.of_job(job.id))
    ]


def of_node(node_id: str) -> list[Told]:
    """The same of one node, for each job that has replicas there."""
    jobs = Job.objects.filter(signals__kind="node_silent", signals__node_id=node_id, signals__settled_at=None)
    return [told for job in jobs.distinct().order_by("id") for told in of_job(job) if told["node_id"] == node_id]


def of_jobs(job_ids: Collection[str]) -> dict[str, list[Told]]:
    """By job, by name of the node; only jobs of which a node is not heard."""
    return {job_id: told for job_id, told in _tell(_OF_JOBS(ids=job_ids)).items() if told}


def of_nodes(node_ids: Collection[str]) -> dict[str, list[Told]]:
    """By node, by job; only nodes that are not heard."""
    found: dict[str, list[Told]] = defaultdict(list)
    for told_of_job in _tell(_OF_NODES(ids=node_ids)).values():
        for told in told_of_job:
            found[told["node_id"]].append(told)
    return dict(found)


def _open(**which: Any) -> "QuerySet[Signal]":
    rows = Signal.objects.filter(kind="node_silent", settled_at=None, job__state__in=RUNS, node__isnull=False, **which)
    return rows.order_by("job_id", "id")


_OF_JOBS: Prepared[Signal] = Prepared(lambda ids: _open(job_id__in=ids), ids=Several(TEXT))
_OF_NODES: Prepared[Signal] = Prepared(lambda ids: _open(node_id__in=ids), ids=Several(TEXT))


def _told(job_id: str, fact: NotHeard) -> Told:
    return {
        "job_id": job_id,
        "node_id": fact.node_id,
        "node_name": fact.node_name,
        "since": iso(from_s(fact.since_s)),
        "commits": fact.commits,
        "left_out": fact.left_out,
    }


def _tell(rows: Iterable[Signal]) -> dict[str, list[Told]]:
    """By job id, in order of it; nothing more is read where there is no finding."""
    by_job: dict[str, list[Signal]] = defaultdict(list)
    for row in rows:
        by_job[str(row.job_id)].append(row)
    if not by_job:
        return {}
    return {
        snapshot.job.id: [_told(snapshot.job.id, fact) for fact in not_heard(snapshot)]
        for snapshot in _snapshots(by_job)
    }


def _snapshots(by_job: dict[str, list[Signal]]) -> Iterable[facts.JobSnapshot]:
    """Of each job what `not_heard` looks at, as `load_snapshot` would give it; of its replicas those
    with ranks on the nodes that its findings name."""
    moment_s, nodes = now_s(), _nodes({row.node_id for rows in by_job.values() for row in rows if row.node_id})
    newest = Attempt.objects.filter(job=OuterRef("pk")).order_by("-number")
    views = ViewRow.objects.filter(job=OuterRef("pk"), attempt=OuterRef("attempt_number")).order_by("-epoch")
    rows = Job.objects.filter(pk__in=by_job).annotate(
        attempt_pk=Subquery(newest.values("pk")[:1]), attempt_number=Subquery(newest.values("number")[:1])
    )
    jobs = list(rows.annotate(view_pk=Subquery(views.values("pk")[:1]), moved_at=_moved()).order_by("pk"))
    attempts = {row.pk: row for row in Attempt.objects.filter(pk__in=[job.attempt_pk for job in jobs])}
    newest_views = {row.pk: row for row in ViewRow.objects.filter(pk__in=[job.view_pk for job in jobs])}
    replicas = _replicas(attempts, nodes)
    for job in jobs:
        attempt, row = attempts.get(job.attempt_pk), newest_views.get(job.view_pk)
        if attempt is None:
            continue
        # As in `load`: a job ahead of its views was set back, and its ranks are in one that is not known.
        view = None if row is None or row.epoch < job.epoch else _view(row)
        named = sorted({signal.node_id for signal in by_job[job.id] if signal.node_id in nodes})
        yield facts.JobSnapshot(
            now_s=moment_s,
            blind=False,
            job=facts.JobFact(
                id=job.id,
                name=job.name,
                state=JobState(job.state),
                spec=environment.told_to_policy(job),
                epoch=job.epoch,
                committed_step=job.committed_step,
                created_s=job.created_at.timestamp(),
                progressed_s=None if job.moved_at is None else job.moved_at.timestamp(),
            ),
            attempt=facts.AttemptFact(
                number=attempt.number,
                state=AttemptState(attempt.state),
                layout=msgspec.convert(attempt.layout, Parallelism),
                replicas=attempt.replicas,
                started_s=attempt.started_at.timestamp(),
            ),
            replicas=tuple(replicas[attempt.pk]),
            view=view,
            signals=tuple(signals.fact_of(signal) for signal in by_job[job.id]),
            nodes=tuple(nodes[node_id] for node_id in named),
        )


def _view(row: ViewRow) -> View | None:
    """None for one that this release cannot read (a newer server wrote it): the decisions stop at that,
    and what is told beside an event must not stop the event."""
    try:
        return msgspec.convert(row.view, View)
    except msgspec.ValidationError as error:
        _log.warning("a view cannot be read", job_id=row.job_id, epoch=row.epoch, error=str(error))
        return None


def _moved() -> Subquery:
    """When the job's newest step was committed, see `load.NEWEST_STEPS`."""
    newest = StepRecord.objects.filter(job=OuterRef(OuterRef("pk"))).order_by("-attempt", "-step").values("pk")
    return Subquery(StepRecord.objects.filter(pk__in=newest[:NEWEST_STEPS]).order_by("-at").values("at")[:1])


def _nodes(node_ids: Collection[str]) -> dict[str, facts.NodeFact]:
    heard, clock = health_gate.silent_by_node(), health_gate.clock_step()
    return {
        node.id: facts.NodeFact(
            id=node.id,
            name=node.name,
            state=NodeState(node.state),
            connected=node.connected,
            silent_s=health_gate.silent_s(node, heard, clock),
            devices=(),
        )
        for node in Node.objects.filter(pk__in=node_ids, revoked_at=None)
    }


def _of_newest_lives() -> Q:
    """Of ranks: those of their slot's newest incarnation in its attempt."""
    newer = Replica.objects.filter(
        attempt=OuterRef("replica__attempt"),
        index=OuterRef("replica__index"),
        incarnation__gt=OuterRef("replica__incarnation"),
    )
    return Q(~Exists(newer))


def _replicas(attempts: dict[int, Attempt], nodes: Collection[str]) -> dict[int, list[facts.ReplicaFact]]:
    """Of each attempt the newest life of its live replicas, with their ranks on these nodes."""
    rows = Rank.objects.filter(
        _of_newest_lives(), replica__attempt__in=attempts, replica__state__in=LIVE_REPLICA, node__in=nodes
    )
    ranks: dict[int, list[Rank]] = defaultdict(list)
    for rank in rows.select_related("replica", "device").order_by("replica__index", "replica__incarnation", "rank"):
        ranks[rank.replica_id].append(rank)
    found: dict[int, list[facts.ReplicaFact]] = defaultdict(list)
    for here in ranks.values():
        replica = here[0].replica
        found[replica.attempt_id].append(
            facts.ReplicaFact(
                index=replica.index,
                incarnation=replica.incarnation,
                state=ReplicaState(replica.state),
                state_since_s=replica.state_since.timestamp(),
                world_size=len(here),
                placements=tuple(
                    facts.Placement(rank=rank.rank, node_id=rank.node_id, device_index=rank.device.index)
                    for rank in here
                ),
            )
        )
    return found
