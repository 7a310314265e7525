"""A hello to rows: the edge of `changes.handshake`. Decides nothing."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from django.db.models import Q

from controlplane.changes.handshake import Greeting, greeted, learned
from controlplane.changes.kinds import Change, Close
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import TERMINAL
from controlplane.protocol.frames import AgentHello, RankStatus
from controlplane.protocol.states import CommandState
from controlplane.recovery import answers
from controlplane.recovery.commit import commit
from controlplane.recovery.rows import JobRows


def job_ids(node_id: str, said: AgentHello) -> list[str]:
    """Live jobs whose rows a hello may change: it names them, or has not answered a command of theirs."""
    asked = Command.objects.filter(node_id=node_id, state=CommandState.ACKNOWLEDGED).values("job_id")
    rows = Job.objects.filter(Q(pk__in=_named(said)) | Q(pk__in=asked)).exclude(state__in=TERMINAL)
    return list(rows.values_list("id", flat=True))


def _named(said: AgentHello) -> set[str]:
    return {seen.job_id for seen in said.jobs} | {status.ref.job_id for status in said.ranks}


def greet(node: Node, jobs: dict[str, Job], said: AgentHello, greeting: Greeting, mine: Collection[str]) -> None:
    """What it proves, of each job. The jobs and the node are locked; `mine` have ranks there that are not proved
    gone."""
    rows = {job_id: JobRows(job) for job_id, job in jobs.items()}
    for seen in said.jobs:
        job = jobs.get(seen.job_id)
        if job is not None and job.state not in TERMINAL:
            commit(learned(rows[job.id], seen, greeting), rows[job.id])
    listed: dict[str, list[RankStatus]] = defaultdict(list)
    for status in said.ranks:
        listed[status.ref.job_id].append(status)
    over = {job.id: JobRows(job) for job in Job.objects.filter(pk__in=listed.keys() - rows.keys())}
    for job_id in sorted(listed.keys() | (rows if greeting.renewed else {})):
        of_it = {**over, **rows}.get(job_id)
        if of_it is None or (listed[job_id] and not (job_id in mine or _was_placed(node, job_id))):
            of_it = JobRows(None)
        closed: list[str] = []
        commit(_noted(greeted(of_it, listed[job_id], greeting), closed), of_it)
        for command in Command.objects.filter(pk__in=closed).select_related("node"):
            answers.beside(command)


def _noted(changes: Iterable[Change], closed: list[str]) -> Iterator[Change]:
    """With the commands that it closes."""
    for change in changes:
        if isinstance(change, Close):
            closed.append(change.command)
        yield change


def _was_placed(node: Node, job_id: str) -> bool:
    return Rank.objects.filter(node=node, replica__attempt__job_id=job_id).exists()
