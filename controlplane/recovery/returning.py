"""Hellos of many nodes to rows, in one transaction: as many statements for a thousand as for one.

What follows from a hello for a job is the core's (`changes.handshake`), and mostly nothing does: an agent comes back on
the journal and with the devices that it had, and lists ranks that continue (`is_quiet`), or it comes for the first time
and there is nothing on its node. Of such nodes the sessions are written together; what stands in their way, or follows,
is asked of all of them at once. Every other hello, and each of a batch that fails, the writer applies by itself
(`ingest.open_session`), so that a bad one stops no other.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max

from controlplane.changes.handshake import Fenced, greeting_of, is_quiet
from controlplane.changes.turn import OVER
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet import sessions
from controlplane.fleet.models import Device, KnownEnd, Node, NodeLife
from controlplane.fleet.services import LISTED, devices_differ
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.selectors import wanting_nodes
from controlplane.jobs.services import TERMINAL, wake_job_later, wake_jobs
from controlplane.policy.signals.devices import DeviceGone
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.protocol.frames import AgentHello
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import AttemptState, CommandState
from controlplane.recovery import signals
from controlplane.runtime import events
from controlplane.runtime.locks import lock_rows, retrying
from controlplane.runtime.logs import get
from controlplane.runtime.outages import is_outage
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, TEXT, Prepared, Several

_log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A hello, and the session that it opens."""

    node_id: str
    session_id: str
    said: AgentHello


@dataclass(slots=True)
class _Around:
    """What the rows have about these nodes and the jobs that they name. `jobs_of`: by node, those that its hello locks
    and wakes; `newest`: numbers of jobs' newest attempts; `marked`: nodes of which something is known from before."""

    nodes: Mapping[str, Node]
    jobs: Mapping[str, Job]
    jobs_of: Mapping[str, set[str]]
    newest: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, dict[RankRef, bool]] = field(default_factory=dict)
    devices: Mapping[str, dict[int, tuple[object, ...]]] = field(default_factory=dict)
    marked: Collection[str] = ()


def open_quiet(hellos: Sequence[Return]) -> dict[str, int]:
    """Of each node that comes back as it was, or is new, its newest event that was applied; its session is open. Of a
    node's hellos the first is meant. The others are `ingest.open_session`'s, and so are all where they could not be
    written together. Raises the error of a database that is away."""
    first: dict[str, Return] = {}
    for hello in hellos:
        first.setdefault(hello.node_id, hello)
    try:
        return retrying(lambda: _open_quiet(first), "open sessions")
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("hellos could not be applied together: one by one", number=len(first))
        return {}


def _open_quiet(hellos: Mapping[str, Return]) -> dict[str, int]:
    """The newest event applied of each node whose session was opened."""
    with events.unit_of_work():
        around = _around(hellos)
        quiet = {node.id: node for node in around.nodes.values() if _is_quiet(node, hellos[node.id].said, around)}
        if not quiet:
            return {}
        said = {
            node_id: sessions.Said(
                session_id=hello.session_id,
                boot_id=hello.said.boot_id,
                journal_id=hello.said.journal_id,
                version=hello.said.agent_version,
                newest=hello.said.protocol_max,
                segment=hello.said.segment,
            )
            for node_id, hello in hellos.items()
        }
        sessions.opened(quiet.values(), said)
        dispatch.requeue_of_nodes(quiet)
        _settle(quiet, around)
        woken = set().union(*(around.jobs_of[node_id] for node_id in quiet))
        wake_jobs(sorted(woken))
        for job_id in wanting_nodes():
            if job_id not in woken:
                wake_job_later(job_id)
        return {node.id: node.last_event_seq for node in quiet.values()}


def _around(hellos: Mapping[str, Return]) -> _Around:
    """Jobs are locked first, by id, then the nodes; the rest is read under these locks."""
    named = {node_id: _named(hello.said) for node_id, hello in hellos.items()}
    known = set().union(*named.values())
    jobs_of: dict[str, set[str]] = defaultdict(set)
    for node_id, job_id in _JOBS_ON(nodes=hellos):
        jobs_of[node_id].add(job_id)
    asked: dict[str, set[str]] = defaultdict(set)
    for node_id, job_id in _ASKED(nodes=hellos):
        asked[node_id].add(job_id)
    live = {job_id for some in batched(known.union(*asked.values()), MOST) for job_id in _LIVE(jobs=some)}
    for node_id in hellos:
        jobs_of[node_id] |= (named[node_id] | asked[node_id]) & live
    jobs = {
        job_id: job
        for some in batched(sorted(set().union(*jobs_of.values())), MOST)
        for job_id, job in lock_rows(Job, some).items()
    }
    around = _Around(nodes=lock_rows(Node, hellos), jobs=jobs, jobs_of=jobs_of)
    around.newest = {job: number for some in batched(known & jobs.keys(), MOST) for job, number in _NEWEST(jobs=some)}
    around.held = _held([node_id for node_id, hello in hellos.items() if hello.said.ranks])
    devices: dict[str, dict[int, tuple[object, ...]]] = defaultdict(dict)
    for node_id, index, *listed in _DEVICES(nodes=hellos):
        devices[node_id][index] = tuple(listed)
    around.devices = devices
    if new := [node.id for node in around.nodes.values() if not node.journal_id]:
        around.marked = {*_HEARD(nodes=new), *_NOTICED(nodes=new)}
    return around


def _held(node_ids: Collection[str]) -> Mapping[str, dict[RankRef, bool]]:
    """By node its ranks that are not proved gone, and which of them are fenced (`row_facts.is_fenced`)."""
    found: dict[str, dict[RankRef, bool]] = defaultdict(dict)
    for node_id, replica, attempt, *ref in _HELD(nodes=node_ids):
        found[node_id][RankRef(*ref)] = replica in OVER or attempt == AttemptState.ENDED
    return found


def _is_quiet(node: Node, said: AgentHello, around: _Around) -> bool:
    """Its name is that of its row, and neither its jobs nor its devices have anything new from it."""
    if node.name != said.node_name or devices_differ(around.devices.get(node.id, {}), said.devices):
        return False
    if not (node.boot_id and node.journal_id):
        return _is_first(node, said, around)
    greeting = greeting_of(
        said, node_id=node.id, journal_id=node.journal_id, boot_id=node.boot_id, applied_seq=node.last_event_seq
    )
    fences = {
        seen.job_id: Fenced(around.newest.get(seen.job_id, 0), around.jobs[seen.job_id].epoch)
        for seen in said.jobs
        if seen.job_id in around.jobs and around.jobs[seen.job_id].state not in TERMINAL
    }
    return is_quiet(said, greeting, fences, around.held.get(node.id, {}))


def _is_first(node: Node, said: AgentHello, around: _Around) -> bool:
    """No session of it was ever open since it enrolled, and nothing was placed there: no hello can say anything of
    what was before."""
    new = (node.boot_id, node.journal_id, node.last_event_seq, node.gap_since) == ("", "", 0, None)
    alone = not said.ranks and not around.jobs_of[node.id] and node.id not in around.marked
    return new and alone and bool(said.boot_id and said.journal_id)


def _settle(quiet: Mapping[str, Node], around: _Around) -> None:
    """Findings that these nodes are silent, or that a device is gone which its driver lists."""
    over: list[tuple[signals.Signal, str]] = []
    for row in _FINDINGS(nodes=quiet):
        node = quiet[row.node_id or ""]
        if row.kind == NodeSilent.KIND:
            over.append((row, f"node {node.name} is connected again"))
        elif around.devices[node.id].get(row.device_index, (False,))[-1]:
            over.append((row, "the device is back"))
    signals.settle_together(over)


def _named(said: AgentHello) -> set[str]:
    return {seen.job_id for seen in said.jobs} | {status.ref.job_id for status in said.ranks}


_JOBS_ON: Prepared[tuple[str, str]] = Prepared(
    lambda nodes: Rank.objects.filter(node__in=nodes, released_at=None)
    .values_list("node_id", "replica__attempt__job_id").distinct(),
    nodes=Several(TEXT),
)  # fmt: skip
_ASKED: Prepared[tuple[str, str]] = Prepared(
    lambda nodes: Command.objects.filter(node__in=nodes, state=CommandState.ACKNOWLEDGED).exclude(job=None)
    .values_list("node_id", "job_id").distinct(),
    nodes=Several(TEXT),
)  # fmt: skip
_LIVE: Prepared[str] = Prepared(
    lambda jobs: Job.objects.filter(pk__in=jobs).exclude(state__in=TERMINAL).values_list("id", flat=True),
    jobs=Several(TEXT),
)
_NEWEST: Prepared[tuple[str, int]] = Prepared(
    lambda jobs: Attempt.objects.filter(job__in=jobs).order_by().values_list("job").annotate(newest=Max("number")),
    jobs=Several(TEXT),
)
_HELD: Prepared[Any] = Prepared(
    lambda nodes: Rank.objects.filter(node__in=nodes, released_at=None).values_list(
        "node_id", "replica__state", "replica__attempt__state", "replica__attempt__job_id", "replica__attempt__number",
        "replica__index", "replica__incarnation", "rank",
    ),
    nodes=Several(TEXT),
)  # fmt: skip
_DEVICES: Prepared[Any] = Prepared(
    lambda nodes: Device.objects.filter(node__in=nodes).values_list("node_id", "index", *LISTED), nodes=Several(TEXT)
)
_HEARD: Prepared[str] = Prepared(
    lambda nodes: NodeLife.objects.filter(node__in=nodes, last_event_seq__gt=0).values_list("node_id", flat=True),
    nodes=Several(TEXT),
)
_NOTICED: Prepared[str] = Prepared(
    lambda nodes: KnownEnd.objects.filter(node__in=nodes, over_at=None).values_list("node_id", flat=True),
    nodes=Several(TEXT),
)
_FINDINGS: Prepared[signals.Signal] = Prepared(
    lambda nodes: signals.Signal.objects.filter(
        node__in=nodes, kind__in=(NodeSilent.KIND, DeviceGone.KIND), settled_at=None
    ).order_by("id"),
    nodes=Several(TEXT),
)
