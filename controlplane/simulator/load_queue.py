"""Rows in memory to what `policy.queue` plans with (`changes.assembly.queue`): as `recovery.load_queue` reads them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from controlplane.changes.assembly.measured import RECENT
from controlplane.changes.assembly.queue import (
    HOUR_S,
    LEAVING,
    Asks,
    Held,
    Piece,
    Trained,
    held_back,
    holder_of,
    lender_of,
    may_be_outranked,
    stake_of,
    uncounted,
    used_by_project,
)
from controlplane.policy import findings
from controlplane.policy.asked import Again
from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.config import PolicyConfig
from controlplane.policy.leaving import is_away
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.queue import until
from controlplane.policy.queue.demand import first_demand, growth_demand, later_demand
from controlplane.policy.queue.ends import limited_s, over_s
from controlplane.policy.queue.place import FRONT, QueuePlace
from controlplane.policy.queue.rows import Holder, Lender, Pending, QueueFleet, QueuePlan, Share, Stake, config_of
from controlplane.policy.queue.schedule import again as placed_again
from controlplane.policy.queue.schedule import growth, schedule
from controlplane.policy.queue.shares import in_turn
from controlplane.policy.queue.words import place_of as place_in
from controlplane.policy.rules.lifecycle import parked_words
from controlplane.policy.snapshot import NodeFact
from controlplane.protocol.states import (
    LIVE_REQUEST,
    QUEUED_JOB,
    AttemptState,
    JobState,
    ReplicaState,
    RequestState,
)
from controlplane.simulator.load import places, there
from controlplane.simulator.rows import NodeRow, ReplicaRow, Rows
from controlplane.simulator.shared import NO_PROJECTS, Part, Projects, YieldRow

CAME_TO_IT = (*LIVE_REQUEST, RequestState.DONE)


def place_of(
    rows: Rows, nodes: Iterable[NodeFact], config: PolicyConfig, now_s: float, projects: Projects = NO_PROJECTS
) -> QueuePlace | None:
    """Where the job stands; None: it is not in the queue, or alone there and outranks nobody. `nodes`: the fleet, as no
    job sees it as its own."""
    mine = rows.spec.scheduling.priority
    if rows.state == JobState.RUNNING and rows.attempt is not None and rows.attempt.yielded:
        queue = [_pending(each, config, now_s, projects) for each in rows.jobs.values() if _waits(each)]
        mine_now = _pending(rows, config, now_s, projects)
        grower = msgspec.structs.replace(mine_now, demand=growth_demand(rows.spec), held="", limit_s=None)
        fleet = fleet_of(rows.jobs, [], nodes, config, now_s, projects)
        return place_in(growth(queue, fleet, config_of(config), now_s, grower), rows.job_id)
    others = [each for each in rows.jobs.values() if each is not rows]
    if not _waits(rows):
        return None
    outranks = any(row.state == JobState.RUNNING and row.spec.scheduling.priority < mine for row in others)
    if not outranks and not any(map(_waits, others)) and not projects.shares:
        return None
    return place_in(plan_of(rows.jobs, nodes, config, now_s, projects), rows.job_id)


def again(
    rows: Rows, nodes: Iterable[NodeFact], config: PolicyConfig, now_s: float, projects: Projects
) -> Again | None:
    """What its project's quota has for a job that runs and is placed again at once; None: its project has none."""
    if projects.of.get(rows.job_id, "") not in {share.name for share in projects.shares if share.quota is not None}:
        return None
    others = {job_id: each for job_id, each in rows.jobs.items() if each is not rows}
    queue = [_pending(each, config, now_s, projects) for each in others.values() if _waits(each)]
    begun = _pending(rows, config, now_s, projects)
    mine = msgspec.structs.replace(begun, demand=later_demand(rows.spec), held="", limit_s=None)
    return placed_again(queue, fleet_of(others, [], nodes, config, now_s, projects), config_of(config), now_s, mine)


def plan_of(
    jobs: Mapping[str, Rows],
    nodes: Iterable[NodeFact],
    config: PolicyConfig,
    now_s: float,
    projects: Projects = NO_PROJECTS,
) -> QueuePlan:
    """The queue's plan over all jobs."""
    queue = [_pending(rows, config, now_s, projects) for rows in jobs.values() if _waits(rows)]
    return schedule(queue, fleet_of(jobs, queue, nodes, config, now_s, projects), config_of(config), now_s)


def fleet_of(
    jobs: Mapping[str, Rows],
    queue: list[Pending],
    nodes: Iterable[NodeFact],
    config: PolicyConfig,
    now_s: float,
    projects: Projects = NO_PROJECTS,
) -> QueueFleet:
    """Nodes and who holds devices, with what those would lose that this queue outranks."""
    shares = shares_of(jobs, projects)
    known = tuple(nodes)
    lent = tuple(_lenders(jobs, known, config, now_s))
    leave = {node.id: node.end for node in known if node.end is not None}
    suffered = preempted(jobs, now_s, projects)
    holders = (
        msgspec.structs.replace(each, suffered=suffered[each.project])
        for each in _holders(jobs, queue, config, now_s, projects)
    )
    return QueueFleet(
        nodes=lent,
        holders=(*holders, *until.returning(lent, leave)),
        projects=shares,
        preempted=sum(suffered.values()),
    )


def preempted(jobs: Mapping[str, Rows], now_s: float, projects: Projects) -> Counter[str]:
    """How often jobs of each project were asked to yield within an hour, but for what came to nothing."""
    found = Counter[str]()
    for rows in jobs.values():
        found[projects.of.get(rows.job_id, "")] += sum(_is_of_late(row, now_s) for row in rows.yields.values())
    return found


def shares_of(jobs: Mapping[str, Rows], projects: Projects) -> tuple[Share, ...]:
    """Each project with a quota, and what its jobs have."""
    counts = (
        (projects.of.get(rows.job_id, ""), len(list(places(rows))), _spares(rows), rows.spec.resources.spares.gpus)
        for rows in jobs.values()
    )
    used = used_by_project(counts)
    return tuple(msgspec.structs.replace(share, used=used.get(share.name, 0)) for share in projects.shares)


def front(jobs: Mapping[str, Rows], config: PolicyConfig, now_s: float, number: int = FRONT) -> list[str]:
    """Ids of so many jobs of the queue that are first in line; those that a person parked are not in it."""
    queue = [_pending(rows, config, now_s) for rows in jobs.values() if _waits(rows) and not rows.parked_by]
    return [job.id for job in in_turn(queue)[:number]]


def _waits(rows: Rows) -> bool:
    return rows.state in QUEUED_JOB and not rows.cancel_requested


def _pending(rows: Rows, config: PolicyConfig, now_s: float, projects: Projects = NO_PROJECTS) -> Pending:
    newest = rows.attempt
    attempts = [*([newest] if newest is not None else []), *reversed(rows.attempts)]
    leaves = rows.state == JobState.PREEMPTED and newest is not None and newest.state is AttemptState.STOPPING
    held = parked_words(rows.name, rows.parked_by) if rows.parked_by else LEAVING if leaves else ""
    held = held or held_back([(each.end_code, each.started_s) for each in attempts], config, now_s)
    return Pending(
        id=rows.job_id,
        name=rows.name,
        priority=rows.spec.scheduling.priority,
        submitted_s=rows.created_s,
        demand=msgspec.structs.replace(
            later_demand(rows.spec) if attempts else first_demand(rows.spec),
            over_s=over_s(
                now_s,
                limit_s=rows.spec.scheduling.time_limit_s,
                begun_s=_begun_s(rows),
                left=rows.spec.training.steps - rows.committed_step,
                recent=rows.calm[:RECENT],
            ),
        ),
        held=held if rows.env_opens else held or "its env does not open",
        project=projects.of.get(rows.job_id, ""),
        preemptible=rows.spec.scheduling.preemptible,
        limit_s=limited_s(rows.spec.scheduling.time_limit_s, _begun_s(rows), now_s),
    )


def _begun_s(rows: Rows) -> float | None:
    first = next((row for row in (*rows.attempts, rows.attempt) if row is not None), None)
    return first.started_s if first is not None else None


def _lenders(
    jobs: Mapping[str, Rows], nodes: Iterable[NodeFact], config: PolicyConfig, now_s: float
) -> Iterator[Lender]:
    named, whole = defaultdict[str, set[int]](set), set[str]()
    tables = [rows.signals for rows in jobs.values()][:1]
    for signal in (signal for table in tables if isinstance(table, Part) for signal in table.of_none()):
        if signal.node_id is not None and findings.accuses(signal, config):
            if signal.device_index is None:
                whole.add(signal.node_id)
            else:
                named[signal.node_id].add(signal.device_index)
    for node in nodes:
        up = node.connected and not node.unhealthy and node.id not in whole
        if node.state in PLACEABLE and (up or (node.end is not None and is_away(node.end, now_s))):
            lender = lender_of(node.id, node.devices, named=named[node.id], owner=node.reserved_for or "")
            yield from until.lent(lender, node.end, now_s)


def _holders(
    jobs: Mapping[str, Rows], queue: list[Pending], config: PolicyConfig, now_s: float, projects: Projects
) -> Iterator[Holder]:
    over = {each.name for each in shares_of(jobs, projects) if each.quota is not None and each.used > each.quota}
    highest = max((job.priority for job in queue if not job.held), default=None)
    for rows in jobs.values():
        devices, spec = _devices(rows), rows.spec
        asked = [
            row for row_id, row in rows.yields.items() if row.state in LIVE_REQUEST and not _withdrawn(rows, row_id)
        ]
        yields, gives = [row for row in asked if not row.gives], [row for row in asked if row.gives]
        project = projects.of.get(rows.job_id, "")
        able = may_be_outranked(
            rows.state,
            spec.scheduling.priority,
            highest=highest,
            preemptible=spec.scheduling.preemptible,
            borrows=project in over,
        )
        if devices:
            held = Held(
                id=rows.job_id,
                name=rows.name,
                priority=spec.scheduling.priority,
                state=rows.state,
                devices=devices,
                left=spec.training.steps - rows.committed_step,
                recent=rows.calm[:RECENT],
                yields_to=yields[0].urgent if yields else None,
                stake=_stake(rows, config, now_s) if able and not asked else None,
                gives={named for row in gives for named in row.gives},
                gives_to=gives[0].urgent if gives else "",
                pieces=[_piece(row) for row in rows.replicas.values()],
                least=spec.resources.min_replicas,
                limit_s=spec.scheduling.time_limit_s,
                begun_s=_begun_s(rows),
                project=project,
                uncounted=uncounted(_spares(rows), spec.resources.spares.gpus),
            )
            yield holder_of(held, now_s)


def _piece(row: ReplicaRow) -> Piece:
    trains = row.state in (ReplicaState.ACTIVE, ReplicaState.SPARE) and not row.ordered_out and not row.relieved
    return Piece(
        index=row.index,
        incarnation=row.incarnation,
        devices=Counter(place.node_id for place in there(row)),
        trains=trains,
    )


def _withdrawn(rows: Rows, request_id: str) -> bool:
    request = rows.requests.get(request_id)
    return request is not None and bool(request.withdrawn_by)


def _devices(rows: Rows) -> Counter[str]:
    """By node: under its processes that are not proved gone, and those of nodes that are its spares."""
    found = Counter(place.node_id for place in places(rows))
    for node in _spare_nodes(rows):
        found[node.id] += node.devices
    return +found


def _spare_nodes(rows: Rows) -> list[NodeRow]:
    mine = (node for node in rows.nodes.values() if node.reserved_for == rows.job_id)
    return [] if rows.state in QUEUED_JOB else list(mine)


def _spares(rows: Rows) -> int:
    return sum(node.devices for node in _spare_nodes(rows))


def _stake(rows: Rows, config: PolicyConfig, now_s: float) -> Stake | None:
    attempt = rows.attempt
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return None
    asked = rows.yields.values()
    over = [row.ended_s for row in asked if row.ended_s is not None and row.state is not RequestState.DONE]
    done = [row.ended_s for row in asked if row.ended_s is not None and row.state is RequestState.DONE]
    views = [at_s for epoch, at_s in rows.course.announced_s.items() if rows.announced[epoch].attempt == attempt.number]
    trained = Trained(
        attempt=attempt.number,
        begun_s=attempt.started_s,
        first_view_s=min(views, default=None),
        step=rows.committed_step,
        kept=max((fact.step for fact in rows.checkpoints if fact.state in TRUSTED), default=0),
        recent=rows.calm[:RECENT],
        saves=rows.saves_s[-RECENT:],
        asks=Asks(
            number=len(asked),
            times=sum(_is_of_late(row, now_s) for row in asked),
            done_s=max(done, default=None),
            nothing_s=max(over, default=None),
        ),
        grown_s=attempt.grown_s,
    )
    return stake_of(trained, config)


def _is_of_late(row: YieldRow, now_s: float) -> bool:
    """The queue has asked within an hour, and it has not come to nothing."""
    return bool(row.urgent) and now_s - row.asked_s <= HOUR_S and row.state in CAME_TO_IT
