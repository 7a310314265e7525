"""A hello to rows: the edge of `changes.handshake`. Decides nothing."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from django.db.models import Q

from controlplane.changes.handshake import Greeting, greeted, learned
from controlplane.changes.kinds import Audit, Change, Close, Count, Publish
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import TERMINAL
from controlplane.protocol.frames import AgentHello, RankStatus
from controlplane.protocol.states import CommandState
from controlplane.recovery import answers
from controlplane.recovery.commit import commit
from controlplane.recovery.rows import JobRows

UNKNOWN = "node.unknown_ranks"
MAX_UNKNOWN = 64
"""Ranks of one node that no row knows and that are stopped at a time, more than it has devices. What a node lists
beyond them waits for a later hello: else one node's word alone would hold up what all others have to say."""


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
    nobody, unknown = JobRows(None), _Unknown(node)
    for job_id in sorted(listed.keys() | (rows if greeting.renewed else {})):
        of_it = {**over, **rows}.get(job_id)
        if of_it is None or (listed[job_id] and not (job_id in mine or _was_placed(node, job_id))):
            of_it = nobody
        closed: list[str] = []
        changes = greeted(of_it, unknown.few(of_it, listed[job_id]), greeting)
        commit(unknown.noted(changes, of_it, closed), of_it)
        for command in Command.objects.filter(pk__in=closed).select_related("node"):
            answers.beside(command)
    unknown.report()


class _Unknown:
    """The ranks of one hello that no row knows: how many are stopped, and what is said of all of them together."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._left: int | None = None
        self._dropped = 0
        self._said: list[tuple[JobRows, Audit | Publish]] = []

    def few(self, rows: JobRows, listed: list[RankStatus]) -> list[RankStatus]:
        """Without those beyond `MAX_UNKNOWN`, counted with what this node stops already."""
        held = {(rank.attempt, rank.replica, rank.incarnation, rank.rank) for rank in rows.held(self._node.id)}
        found = []
        for status in listed:
            ref = status.ref
            if (ref.attempt, ref.replica, ref.incarnation, ref.rank) not in held and not self._has_room(rows):
                self._dropped += 1
                continue
            found.append(status)
        return found

    def _has_room(self, rows: JobRows) -> bool:
        if self._left is None:
            self._left = MAX_UNKNOWN - len(rows.stops_under_way(self._node.id))
        self._left -= 1
        return self._left >= 0

    def noted(self, changes: Iterable[Change], rows: JobRows, closed: list[str]) -> Iterator[Change]:
        """With the commands that it closes, and without what is told once for all."""
        for change in changes:
            if isinstance(change, Close):
                closed.append(change.command)
            if isinstance(change, Audit | Publish) and UNKNOWN in (getattr(change, "action", ""), _kind(change)):
                self._said.append((rows, change))
                continue
            yield change

    def report(self) -> None:
        """One line in the audit log and one event a hello, however many there are."""
        lines = [(rows, change) for rows, change in self._said if isinstance(change, Audit)]
        if len(lines) == 1 and not self._dropped:
            for rows, change in self._said:
                commit([change], rows)
        elif lines or self._dropped:
            rows = lines[0][0] if lines else JobRows(None)
            commit(self._of_all([change for _, change in lines]), rows)

    def _of_all(self, lines: list[Audit]) -> Iterator[Change]:
        name, more = self._node.name, f" {self._dropped} more wait for their turn." if self._dropped else ""
        if lines:
            sentence = (
                f"Node {name} runs {len(lines)} replicas that this database does not know: they are stopped, with"
            )
            sentence += f" time to save.{more}"
            whose = {"replicas": [dict(line.data) for line in lines], "left_out": self._dropped}
            yield Audit(f"node:{name}", UNKNOWN, sentence, whose, subject=self._node.id)
            yield Publish(UNKNOWN, sentence, node=self._node.id)
        if self._dropped:
            yield Count(name, "unknown_rank", f"more than {MAX_UNKNOWN} at a time", self._dropped)


def _kind(change: Audit | Publish) -> str:
    return change.kind if isinstance(change, Publish) else ""


def _was_placed(node: Node, job_id: str) -> bool:
    return Rank.objects.filter(node=node, replica__attempt__job_id=job_id).exists()
