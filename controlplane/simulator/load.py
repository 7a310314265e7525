"""Rows to the snapshot that `decide` sees: the simulated twin of `recovery.load`."""

from statistics import mean

import msgspec

from controlplane.changes.turn import OVER
from controlplane.policy.snapshot import (
    AttemptFact,
    BudgetFact,
    DeviceFact,
    JobFact,
    JobSnapshot,
    LearnedTimes,
    NodeFact,
    ReplicaFact,
    SignalFact,
)
from controlplane.policy.stuck import AT_WORK
from controlplane.policy.void import PHASE_SINCE
from controlplane.protocol.states import WAITING_PHASES, Phase, Section
from controlplane.simulator.rows import JOB_ID, NodeRow, ReplicaRow, Rows

CONNECTED_S = 3.0
ACTS_WINDOW_S = 60.0
CORRELATED_WINDOW_S = 60.0


def load(rows: Rows, now_s: float, blind: bool) -> JobSnapshot:
    """One consistent picture at `now_s` of the server's clock."""
    replicas = tuple(_replica(rows, row, now_s) for _, row in sorted(rows.replicas.items()))
    nodes = load_nodes(rows, now_s, blind)
    suspects = [n for n in nodes if now_s - rows.suspect_since_s.get(n.id, -CORRELATED_WINDOW_S) < CORRELATED_WINDOW_S]
    return JobSnapshot(
        now_s=now_s,
        blind=blind,
        job=JobFact(
            id=JOB_ID,
            name="sim",
            state=rows.state,
            spec=rows.spec,
            epoch=rows.epoch,
            committed_step=rows.committed_step,
            created_s=0.0,
            finished=rows.trained,
            progressed_s=rows.progressed_s,
            past_lives={index: life for index, life in rows.lives.items() if index not in rows.replicas},
        ),
        attempt=_attempt(rows),
        replicas=replicas,
        view=rows.view,
        view_since_s=rows.view_since_s,
        install=rows.install,
        installed_s=rows.installed_s,
        flushes=tuple(flush for _, flush in sorted(rows.flushes.items())),
        signals=tuple(_signal(rows, signal) for _, signal in sorted(rows.signals.items())),
        nodes=nodes,
        bars=tuple(rows.bars),
        checkpoints=tuple(rows.checkpoints),
        budget=BudgetFact(
            restarts_total=rows.charged,
            restarts_in_window=rows.charged,
            evictions_total=rows.evictions,
            no_progress_cycles=rows.no_progress,
        ),
        learned=LearnedTimes(
            step_s=rows.step_s,
            step_max_s=rows.step_max_s,
            start_replica_s=mean(rows.starts) if rows.starts else None,
            catch_up_s=mean(rows.catch_ups) if rows.catch_ups else None,
        ),
        acts_last_window=sum(now_s - act_s < ACTS_WINDOW_S for act_s in rows.acts_s),
        reissued_views=rows.reissued_views,
        fleet_devices=sum(len(node.devices) for node in nodes),
        suspect_devices=sum(len(node.devices) for node in suspects),
        suspect_nodes=tuple(node.id for node in suspects),
        requests=tuple(request for _, request in sorted(rows.requests.items())),
    )


def load_nodes(rows: Rows, now_s: float, blind: bool) -> tuple[NodeFact, ...]:
    """The fleet, by id."""
    return tuple(_node(rows, row, now_s, blind) for _, row in sorted(rows.nodes.items()))


def _signal(rows: Rows, signal: SignalFact) -> SignalFact:
    """With the present phase of the rank that it is about."""
    replica = rows.replicas.get(signal.replica if signal.replica is not None else -1)
    if signal.kind != "rank_overdue" or replica is None or replica.incarnation != signal.incarnation:
        return signal
    began_s = replica.phase_since_s.get(signal.rank if signal.rank is not None else -1)
    return msgspec.structs.replace(signal, evidence={**signal.evidence, PHASE_SINCE: began_s})


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
    )


def _replica(rows: Rows, row: ReplicaRow, now_s: float) -> ReplicaFact:
    size = len(row.placements)
    view = rows.view
    in_view = view is not None and any(
        m.replica == row.index and m.incarnation == row.incarnation for m in view.members
    )
    waiting = len(row.phases) == size and all(phase in WAITING_PHASES for phase in row.phases.values())
    return ReplicaFact(
        index=row.index,
        incarnation=row.incarnation,
        state=row.state,
        state_since_s=row.state_since_s,
        world_size=size,
        placements=row.placements,
        joined_ranks=len(row.joined),
        exited_ranks=len(row.exited),
        in_view=in_view,
        contributing=row.contributing,
        standby=row.standby and not row.contributing,
        committed_step=row.committed_step,
        waiting=waiting,
        saving=Phase.SAVING in row.phases.values(),
        silent_s=now_s - min(row.spoke_s.values()) if len(row.spoke_s) == size else None,
        working_since_s=_working_since_s(row, size),
        times_out=row.times_out,
        out_s=row.out_s,
        stopped=row.stopped,
        failed_starts=row.failed_starts,
        relieved=row.relieved,
        ordered_out=row.ordered_out,
        ordered_s=row.ordered_s,
    )


def _working_since_s(row: ReplicaRow, size: int) -> float | None:
    """As `recovery.health_gate.working_since_s`; a rank that is mute counts as one at work."""
    phases = set(row.phases.values())
    in_step = len(row.told) == size and all(status.section is Section.STEP for status in row.told.values())
    if not in_step or phases - AT_WORK - WAITING_PHASES or not phases & AT_WORK:
        return None
    return max(row.told_since_s.values())


def _node(rows: Rows, row: NodeRow, now_s: float, blind: bool) -> NodeFact:
    held = {
        (placement.node_id, placement.device_index)
        for replica in (*rows.replicas.values(), *rows.ghosts)
        if replica.state not in OVER or not replica.stopped
        for placement in replica.placements
    }
    silent_s = now_s - row.seen_s
    devices = tuple(
        DeviceFact(
            index=index,
            uuid=f"{row.id}-{index}",
            free=(row.id, index) not in held and not row.reserved,
            held=(row.id, index) in held,
            healthy=index not in row.lost_devices,
        )
        for index in range(row.devices)
    )
    return NodeFact(
        id=row.id,
        name=row.id,
        state=row.state,
        connected=silent_s < CONNECTED_S,
        silent_s=None if blind else silent_s,
        devices=devices,
        warm=row.warm,
        warmed_s=now_s,
        reserved_for=JOB_ID if row.reserved else None,
    )
