"""What the simulated server keeps, handed to `changes.assembly`."""

from collections.abc import Iterator

import msgspec

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly.counted import WINDOW_S, Try, is_suspicion
from controlplane.changes.assembly.measured import RECENT, SAVE_LIMIT_S, Saves, Times
from controlplane.changes.assembly.replicas import reading_key, replicas_of, signal_facts
from controlplane.changes.assembly.rows import Device, Hosts, Incarnation, InUse, Known, Node, Ranks, Reading, Slot
from controlplane.changes.assembly.snapshot import (
    Fleet,
    FleetParts,
    Ledger,
    Membership,
    Parts,
    bars_found,
    carried,
    fleet_snapshot_of,
    snapshot_of,
)
from controlplane.changes.due.findings import DECIDED
from controlplane.policy.budget import OF_A_REPLICA, Rung
from controlplane.policy.facts import LIVE_ATTEMPT, TERMINAL_JOB
from controlplane.policy.findings import KINDS
from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.policy.snapshot import (
    LIVE_REPLICA,
    AheadFact,
    AttemptFact,
    JobFact,
    JobSnapshot,
    NodeFact,
    Placement,
    ReplicaFact,
    SignalFact,
)
from controlplane.policy.timeouts import Observed, section_timeouts, setup_grows, timeout_of
from controlplane.protocol.rank_faults import is_scheduled
from controlplane.protocol.states import ReplicaState, RequestKind, Section
from controlplane.simulator.known import end_of
from controlplane.simulator.rows import NodeRow, ReplicaRow, Rows


def load(rows: Rows, now_s: float, blind: bool, place: QueuePlace | None = None) -> JobSnapshot:
    """One consistent picture at `now_s` of the server's clock. `place`: where it stands in the queue."""
    attempts = [*([rows.attempt] if rows.attempt is not None else []), *reversed(rows.attempts)]
    replicas = replicas_of((_slot(rows, row, now_s) for _, row in sorted(rows.replicas.items())), rows.view)
    parts = Parts(
        now_s=now_s,
        blind=blind,
        job=_job(rows),
        lives=rows.lives,
        attempt=_attempt(rows),
        end_codes=(row.end_code for row in attempts),
        tries=(Try(row.ended_s is not None, row.end_code, row.saved) for row in attempts),
        replicas=replicas,
        membership=_membership(rows),
        views=reversed(rows.views.values()),
        signals=_signals(rows, replicas, now_s),
        nodes=load_nodes(rows, now_s, blind),
        bars=bars_found(rows.ends, rows.bars),
        checkpoints=rows.checkpoints,
        saves=_saves(rows, now_s),
        times=_times(rows),
        ledger=_ledger(rows, now_s),
        fleet=_fleet(rows, now_s),
        requests=_requests(rows),
        recommended=_recommended(rows),
        queue=place,
    )
    return snapshot_of(parts)


def _recommended(rows: Rows) -> tuple[Recommendation, ...]:
    number = rows.attempt.number if rows.attempt is not None else 0
    return tuple(fact for key, fact in rows.recommended.items() if key.startswith(f"{number}:"))


def _job(rows: Rows) -> JobFact:
    scheduled = is_scheduled(rows.spec.resiliency.faults)
    first = next((row for row in (*rows.attempts, rows.attempt) if row is not None), None)
    limited = rows.spec.scheduling.time_limit_s > 0.0
    return JobFact(
        id=rows.job_id,
        begun_s=first.started_s if first is not None and limited else None,
        name=rows.name,
        state=rows.state,
        spec=rows.spec,
        epoch=rows.epoch,
        committed_step=rows.committed_step,
        created_s=rows.created_s,
        cancel_requested=rows.cancel_requested,
        finished=rows.trained,
        progressed_s=rows.progressed_s,
        incident_opened_s=rows.incident_s,
        training_s=rows.trained_s if scheduled else None,
        faults_fired=rows.faults_fired if scheduled else 0,
        looked_s=rows.looked_s,
        looks_taken=rows.looks_taken,
        env_opens=rows.env_opens,
        parked_by=rows.parked_by,
        ahead=msgspec.convert(rows.ahead, AheadFact, str_keys=True),
    )


def _membership(rows: Rows) -> Membership | None:
    """A job ahead of its views was set back: its ranks are in one that is not known here."""
    if rows.view is None or rows.view.epoch < rows.epoch:
        return None
    return Membership(
        view=rows.view,
        since_s=rows.view_since_s,
        install=rows.install,
        installed_s=rows.installed_s,
        flushes=rows.flushes.values(),
    )


def _times(rows: Rows) -> Times:
    return Times(
        steps=rows.calm,
        starts=rows.starts[-RECENT:],
        transfers=rows.catch_ups,
        saves=rows.saves_s[-RECENT:],
        setup_limit_s=_setup_limit_s(rows),
    )


def _setup_limit_s(rows: Rows) -> float | None:
    """Asked only while a replica is being set up."""
    wanted = rows.spec.resiliency.timeouts
    if not setup_grows(wanted) or all(row.state is not ReplicaState.FORMING for row in rows.replicas.values()):
        return None
    loads = rows.attempt.resume_path if rows.attempt is not None else ""
    return timeout_of(section_timeouts(wanted, Observed(transfer_s=rows.transfer_s(loads))), Section.SETUP)


def _saves(rows: Rows, now_s: float) -> Saves:
    begun_s, newest = rows.save_begun_s, rows.checkpoints[-1:]
    committed_s = newest[0].committed_s if newest else None
    return Saves(
        started_s=begun_s if begun_s is not None else committed_s,
        committed_s=committed_s,
        emergency_s=rows.emergency_s,
        writing=begun_s is not None and now_s - begun_s <= SAVE_LIMIT_S,
    )


def _ledger(rows: Rows, now_s: float) -> Ledger:
    since_s, number = now_s - rows.spec.resiliency.budget.window_s, rows.attempt.number if rows.attempt else 0
    return Ledger(
        restarts=len(rows.charged),
        in_window=sum(each.at_s >= since_s for each in rows.charged),
        evictions=rows.evictions,
        attempts=sum(each.rung is Rung.ATTEMPT for each in rows.charged),
        of_attempt=sum(each.rung in OF_A_REPLICA and each.attempt == number for each in rows.charged),
        of_program=sum(each.program and each.at_s >= since_s for each in rows.charged),
    )


def _fleet(rows: Rows, now_s: float) -> Fleet:
    found = [(signal, False) for signal in rows.signals.values()] + [(signal, True) for signal in rows.settled]
    since_s, sizes = rows.budget.since_s(now_s, WINDOW_S), {node.id: node.devices for node in rows.nodes.values()}
    lately = [(signal, settled) for signal, settled in found if signal.seen_s >= since_s]
    return Fleet(
        acts=rows.budget.recent(now_s),
        named=[(s.node_id or "", s.device_index) for s, settled in lately if is_suspicion(s, settled=settled)],
        devices=sum(node.devices for node in rows.nodes.values()),
        sizes=sizes,
        disruption=rows.budget.counted(now_s, _still_suspect(rows, sizes)),
    )


def _still_suspect(rows: Rows, sizes: dict[str, int]) -> set[tuple[str, int]]:
    """Devices that open findings name which came since a minute before the fleet's breaker opened."""
    mine = rows.budget.open.get("")
    if mine is None:
        return set()
    found = [s for s in rows.signals.values() if s.seen_s >= mine.opened_s - WINDOW_S]
    named = ((s.node_id or "", s.device_index) for s in found if is_suspicion(s, settled=False))
    return nodes.suspect_devices(named, sizes)


def load_nodes(rows: Rows, now_s: float, unsure: bool) -> tuple[NodeFact, ...]:
    """The fleet, by id. `unsure`: silence is no evidence."""
    mine = [row for _, row in sorted(rows.nodes.items())]
    held = {(place.node_id, place.device_index) for replica in rows.everywhere() for place in there(replica)}
    used = {place.node_id for place in places(rows)}
    heard_s = {row.id: row.ranks_s[rows.job_id] for row in mine if rows.job_id in row.ranks_s}
    used |= {node_id for node_id, at_s in heard_s.items() if now_s - at_s <= nodes.HOST_KEPT_S}
    reserved = {row.id: row.reserved_for for row in mine if row.reserved_for}
    use = InUse(
        held=held,
        reserved={(row.id, index) for row in mine if row.reserved_for for index in range(row.devices)},
        resets={(row.id, index): at_s for row in mine for index, at_s in row.resets.items()},
    )
    hosts = Hosts(used=used, started=rows.started, warmed=rows.warmed, asked=rows.warm_asked)
    unfit = [signal for signal in rows.signals.values() if signal.kind == NodeUnfit.KIND]
    unhealthy = {str(signal.node_id): str(signal.evidence["detail"]) for signal in unfit}
    known = Known(hosts=hosts, reserved=reserved, unhealthy=unhealthy)
    return nodes.nodes_of(
        (_node(row, now_s, unsure) for row in mine),
        nodes.devices_of((device for row in mine for device in _devices(row)), use),
        known,
        now_s,
    )


def _node(row: NodeRow, now_s: float, unsure: bool) -> Node:
    return Node(
        id=row.id,
        name=row.id,
        state=row.state,
        connected=row.connected,
        unheard_s=None if unsure else now_s - row.seen_s,
        closed_s=None if row.closed_s is None else now_s - row.closed_s,
        misses_events=False,
        segment=row.segment,
        end=end_of(row, now_s),
    )


def _devices(row: NodeRow) -> Iterator[Device]:
    for index in range(row.devices):
        yield (
            row.id,
            (row.id, index),
            index,
            f"{row.id}-{index}",
            index not in row.barred,
            index not in row.lost_devices,
            row.risks.get(index),
            row.memory_bytes,
            row.model,
            None,
        )


def places(rows: Rows) -> Iterator[Placement]:
    """Where processes of a job are that are not proved gone."""
    return (place for row in (*rows.replicas.values(), *rows.ghosts) for place in there(row))


def there(row: ReplicaRow) -> list[Placement]:
    """Where its processes that are not proved gone are."""
    return [place for place in row.placements if place.rank not in row.exited]


def _signals(rows: Rows, replicas: tuple[ReplicaFact, ...], now_s: float) -> tuple[SignalFact, ...]:
    """Of the job, and about any node."""
    found = [signal for _, signal in sorted(rows.signals.items()) if signal.kind in DECIDED]
    readings = {
        reading_key(row.index, row.incarnation, rank): reading
        for row in rows.replicas.values()
        for rank in row.told
        if (reading := _reading(row, rank, now_s)) is not None
    }
    lives = rows.attempt is not None and rows.attempt.state in LIVE_ATTEMPT
    return signal_facts(found, _owned(rows), replicas if lives else (), readings)


def _owned(rows: Rows) -> set[tuple[str | None, int | None]]:
    """Devices under a living replica of any job, as (node id, index)."""
    jobs = (each for each in rows.jobs.values() if each.state not in TERMINAL_JOB)
    live = (each for each in jobs if each.attempt is not None and each.attempt.state in LIVE_ATTEMPT)
    living = (row for each in live for row in each.replicas.values() if row.state in LIVE_REPLICA)
    return {(place.node_id, place.device_index) for row in living for place in there(row)}


def fleet_waits(rows: Rows) -> bool:
    """Something may be decided without the job."""
    hardware = any(signal.kind in KINDS or is_suspicion(signal, settled=False) for signal in rows.signals.values())
    return hardware or bool(rows.requests) or any(node.resets for node in rows.nodes.values())


def load_fleet(rows: Rows, now_s: float, unsure: bool) -> FleetSnapshot:
    """What the fleet's own pass decides on. Incidents that hardware keeps open are not simulated."""
    owned = _owned(rows)
    found = (signal for _, signal in sorted(rows.signals.items()) if signal.kind in KINDS)
    parts = FleetParts(
        now_s=now_s,
        signals=[signal for signal in found if (signal.node_id, signal.device_index) not in owned],
        nodes=load_nodes(rows, now_s, unsure),
        incidents=(),
        fleet=_fleet(rows, now_s),
        segments={row.id: row.segment for row in rows.nodes.values()},
        drains=tuple(request for request in _requests(rows) if request.kind is RequestKind.DRAIN),
    )
    return fleet_snapshot_of(parts)


def _requests(rows: Rows) -> list[RequestFact]:
    """With what became of the commands that carry them out."""
    return [
        msgspec.structs.replace(
            request,
            carried=carried((rows.commands[c].state, rows.commands[c].detail) for c in rows.carriers[request.id]),
        )
        if request.id in rows.carriers
        else request
        for _, request in sorted(rows.requests.items())
    ]


def _attempt(rows: Rows) -> AttemptFact | None:
    row = rows.attempt
    if row is None:
        return None
    return AttemptFact(
        number=row.number,
        state=row.state,
        layout=row.layout,
        replicas=row.replicas,
        started_s=row.started_s,
        resume_step=row.resume_step,
        end_code=row.end_code,
        max_contributors=row.max_contributors,
        yielded=row.yielded,
    )


def _slot(rows: Rows, row: ReplicaRow, now_s: float) -> Slot:
    older = [life for life in reversed(rows.older) if life.index == row.index]
    gone = len(row.exited)
    return Slot(
        lives=[_incarnation(life) for life in (row, *older)],
        ranks=Ranks(len(row.placements), len(row.joined), gone, released=gone),
        placements=row.placements,
        readings=[_reading(row, place.rank, now_s) for place in row.placements],
        released=tuple(sorted(row.exited)) if 0 < gone < len(row.placements) else (),
    )


def _incarnation(row: ReplicaRow) -> Incarnation:
    return Incarnation(
        index=row.index,
        incarnation=row.incarnation,
        state=row.state,
        state_since_s=row.state_since_s,
        contributing=row.contributing,
        contributed=row.contributed,
        role=row.caught_up,
        committed_step=row.committed_step,
        times_out=row.times_out,
        out_s=row.out_s,
        asked_out=row.ordered_out,
        asked_s=row.ordered_s,
        refused=row.refused,
        relieved=row.relieved,
    )


def _reading(row: ReplicaRow, rank: int, now_s: float) -> Reading | None:
    """None also of a rank that is gone."""
    status = row.told.get(rank)
    if status is None or rank in row.exited:
        return None
    return Reading(
        phase=status.phase,
        section=status.section,
        silent_s=now_s - row.spoke_s[rank],
        phase_since_s=row.phase_since_s[rank],
        at=row.spoke_s[rank] + status.silent_s,
    )
