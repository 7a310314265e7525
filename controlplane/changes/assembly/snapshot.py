"""All parts of a job's snapshot put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from controlplane.changes.assembly.counted import Announced, Try, idle, refused, reissued
from controlplane.changes.assembly.measured import Saves, Times, learned_times, saves_found
from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.policy import bars
from controlplane.policy.asked import Elsewhere
from controlplane.policy.disruption_counts import DisruptionCounts
from controlplane.policy.fleet import FleetSnapshot, HardwareIncident
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import SUCCEEDED
from controlplane.policy.snapshot import (
    AttemptFact,
    BarFact,
    BudgetFact,
    CheckpointFact,
    JobFact,
    JobSnapshot,
    NodeFact,
    Placement,
    ReplicaFact,
    SignalFact,
)
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.states import CheckpointState, CommandState

NOTHING_COUNTED = DisruptionCounts()
MAX_CHECKPOINTS = 20
OFF_THE_LADDER = frozenset({CheckpointState.WRITING, CheckpointState.PRUNED})
_LOST = frozenset({CommandState.FAILED, CommandState.EXPIRED, CommandState.SUPERSEDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The attempt's newest view, as `JobSnapshot` has it."""

    view: View
    since_s: float
    install: Install | None
    installed_s: float | None
    flushes: Iterable[Flush]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is charged, in all and within the budget's window; replicas that were evicted. Of what is charged: whole
    attempts, replicas `of_attempt` that lives, and `of_program` within the window."""

    restarts: int
    in_window: int
    evictions: int
    attempts: int
    of_attempt: int
    of_program: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`acts` within `counted.WINDOW_S`; what findings of that time `name`, as (node id, device index or None);
    how many `devices` there are, and the `sizes` of nodes that are named whole."""

    acts: int
    named: Iterable[tuple[str, int | None]]
    devices: int
    sizes: Mapping[str, int]
    clock_set_s: float | None = None
    clock_step_s: float = 0.0
    elsewhere: Elsewhere | None = None
    disruption: DisruptionCounts = NOTHING_COUNTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """`job` and `attempt` as their rows say, without what is worked out here. `lives`: the newest incarnation of each
    slot that the job ever had; `end_codes`, `tries`, `views`: newest first, and read only as far as needed."""

    now_s: float
    blind: bool
    job: JobFact
    lives: Mapping[int, int]
    attempt: AttemptFact | None
    end_codes: Iterable[str]
    tries: Iterable[Try]
    replicas: tuple[ReplicaFact, ...]
    membership: Membership | None
    views: Iterable[Announced]
    signals: tuple[SignalFact, ...]
    nodes: tuple[NodeFact, ...]
    bars: tuple[BarFact, ...]
    checkpoints: Iterable[CheckpointFact]
    saves: Saves
    times: Times
    ledger: Ledger
    fleet: Fleet
    requests: Iterable[RequestFact]
    queue: QueuePlace | None = None
    recommended: tuple[Recommendation, ...] = ()


def snapshot_of(parts: Parts) -> JobSnapshot:
    """The whole."""
    suspects = suspect_devices(parts.fleet.named, parts.fleet.sizes)
    membership = parts.membership
    return JobSnapshot(
        now_s=parts.now_s,
        blind=parts.blind,
        job=msgspec.structs.replace(parts.job, past_lives=_past_lives(parts)),
        attempt=_attempt(parts),
        replicas=parts.replicas,
        view=membership.view if membership is not None else None,
        view_since_s=membership.since_s if membership is not None else 0.0,
        install=membership.install if membership is not None else None,
        installed_s=membership.installed_s if membership is not None else None,
        flushes=_flushes(membership),
        signals=parts.signals,
        nodes=parts.nodes,
        bars=parts.bars,
        checkpoints=_ladder(parts.checkpoints),
        saves=saves_found(parts.saves, parts.times, parts.job.spec),
        budget=BudgetFact(
            restarts_total=parts.ledger.restarts,
            restarts_in_window=parts.ledger.in_window,
            evictions_total=parts.ledger.evictions,
            no_progress_cycles=idle(parts.tries),
            attempt_restarts=parts.ledger.attempts,
            restarts_in_attempt=parts.ledger.of_attempt,
            program_in_window=parts.ledger.of_program,
        ),
        learned=learned_times(parts.times),
        acts_last_window=parts.fleet.acts,
        reissued_views=reissued(parts.views),
        fleet_devices=parts.fleet.devices,
        suspect_devices=len(suspects),
        suspect_nodes=_nodes_of(suspects),
        clock_set_s=parts.fleet.clock_set_s,
        clock_step_s=parts.fleet.clock_step_s,
        elsewhere=parts.fleet.elsewhere,
        requests=tuple(sorted(parts.requests, key=lambda request: request.id)),
        queue=parts.queue,
        recommended=parts.recommended,
        disruption=parts.fleet.disruption,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """Of the fleet's own pass, see `FleetSnapshot`: its findings, all drains that have not ended, and what was only
    recommended."""

    now_s: float
    signals: Iterable[SignalFact]
    nodes: tuple[NodeFact, ...]
    incidents: tuple[HardwareIncident, ...]
    fleet: Fleet
    segments: dict[str, str]
    drains: tuple[RequestFact, ...]
    recommended: tuple[Recommendation, ...] = ()
    paused: bool = False


def fleet_snapshot_of(parts: FleetParts) -> FleetSnapshot:
    """The whole."""
    suspects = suspect_devices(parts.fleet.named, parts.fleet.sizes)
    return FleetSnapshot(
        now_s=parts.now_s,
        signals=tuple(msgspec.structs.replace(signal, of_fleet=True) for signal in parts.signals),
        nodes=parts.nodes,
        incidents=parts.incidents,
        acts_last_window=parts.fleet.acts,
        fleet_devices=parts.fleet.devices,
        suspect_devices=len(suspects),
        suspect_nodes=_nodes_of(suspects),
        segments=parts.segments,
        requests=parts.drains,
        disruption=parts.fleet.disruption,
        recommended=parts.recommended,
        paused=parts.paused,
    )


def _nodes_of(devices: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(sorted({node_id for node_id, _ in devices}))


def _flushes(membership: Membership | None) -> tuple[Flush, ...]:
    return tuple(sorted(membership.flushes, key=lambda each: (each.replica, each.rank))) if membership else ()


def _past_lives(parts: Parts) -> dict[int, int]:
    here = {replica.index for replica in parts.replicas}
    return {index: newest for index, newest in sorted(parts.lives.items()) if index not in here}


def _attempt(parts: Parts) -> AttemptFact | None:
    if parts.attempt is None:
        return None
    return msgspec.structs.replace(parts.attempt, refused_attempts=refused(parts.end_codes))


def _ladder(found: Iterable[CheckpointFact]) -> tuple[CheckpointFact, ...]:
    """The newest from which something might resume, by id."""
    standing = (fact for fact in found if fact.state not in OFF_THE_LADDER)
    newest = sorted(standing, key=lambda fact: (fact.step, fact.epoch), reverse=True)[:MAX_CHECKPOINTS]
    return tuple(sorted(newest, key=lambda fact: fact.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a rank ended: with this exit code or negative signal. `beside`: where its replica's ranks are on its node."""

    rank: int
    code: int
    at_s: float
    beside: tuple[Placement, ...]


def bars_found(ends: Iterable[End], slow: Iterable[BarFact] = ()) -> tuple[BarFact, ...]:
    """Places that ends of the job's own ranks accuse, and those of ranks that left for being slow; the policy says
    how long."""
    found = {bar for end in ends for bar in bars.bars_of(end.beside, end.rank, end.code, since_s=end.at_s)} | {*slow}
    return tuple(sorted(found, key=lambda bar: (bar.node_id, bar.code, bar.device_index or 0, bar.since_s)))


def carried(commands: Iterable[tuple[str, str]]) -> str:
    """What became of a decision's commands, as (state, detail): "" while that is open, "succeeded" where one has, else
    why the first came to nothing."""
    answers = list(commands)
    states = {state for state, _ in answers}
    if CommandState.SUCCEEDED in states:
        return SUCCEEDED
    if states - _LOST:
        return ""
    return next((f"{state}: {detail}" if detail else state for state, detail in answers), "")
