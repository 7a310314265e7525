"""Who waits, who holds devices and what those would lose, of rows: what `policy.queue` plans with.

What is read, and how, is the loaders' (`recovery.load_queue`, `simulator.load_queue`). Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from controlplane.changes.assembly.counted import MAX_REFUSED_READ, refused
from controlplane.changes.assembly.measured import Times, learned_times
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.ladder import backoff_s
from controlplane.policy.queue.ends import over_s
from controlplane.policy.queue.rows import Holder, Lender, Part, Stake
from controlplane.policy.snapshot import DeviceFact
from controlplane.protocol.states import QUEUED_JOB, UNFIT, JobState

HOUR_S = 3600.0
LEAVING = "its ranks still save and leave their devices"
PAUSES = "no node would start its last attempt, and it pauses before the next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """How often a job was asked to yield: in all; by the queue within an hour, but for what came to nothing; when the
    newest came to something (`done_s`), and to nothing (`nothing_s`), server seconds."""

    number: int = 0
    times: int = 0
    done_s: float | None = None
    nothing_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A job whose `attempt` runs since `begun_s`, and trains since `first_view_s` (None: not yet). `step` steps are
    committed, `kept` of them are in a checkpoint that outlives its devices. `recent`: seconds of its newest steps,
    `saves`: of its newest saves. `grown_s`: when it last took back a replica that it had yielded (None: never)."""

    attempt: int
    begun_s: float
    first_view_s: float | None
    step: int
    kept: int
    recent: Sequence[float] = ()
    saves: Sequence[float] = ()
    asks: Asks = Asks()
    grown_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One life of a replica that has `devices` by node. `trains`: it is one that its job counts on."""

    index: int
    incarnation: int
    devices: Mapping[str, int]
    trains: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job that has `devices` by node. `recent`: seconds of its newest steps, of which `left` are to come (None: not
    known). `yields_to`: whom it is asked to yield to, "" where a person asks; None: it is not. `gives`: replicas that
    leave for the job `gives_to`, by index and incarnation. `pieces`: all of its replicas, where they were read;
    `least`: so many must train. `limit_s`: its time limit since `begun_s`, 0 for none. `uncounted`,
    `suffered`: see `Holder`."""

    id: str
    name: str
    priority: int
    state: str
    devices: Mapping[str, int]
    left: int | None = None
    recent: Sequence[float] = ()
    yields_to: str | None = None
    stake: Stake | None = None
    gives: Collection[tuple[int, int]] = ()
    gives_to: str = ""
    pieces: Sequence[Piece] = ()
    least: int = 1
    project: str = ""
    limit_s: float = 0.0
    begun_s: float | None = None
    uncounted: int = 0
    suffered: int = 0


def uncounted(spares: int, asked: int) -> int:
    """Of so many devices of nodes that are a job's spares those that count for no quota: beyond what it asks for."""
    return max(0, spares - asked)


def stake_of(job: Trained, policy: PolicyConfig) -> Stake:
    """What it would lose if it were preempted now."""
    step_s = float(median(job.recent)) if job.recent else policy.default_step_s
    again_s = policy.default_start_s + policy.default_catch_up_s
    asks, begun_s = job.asks, max(job.begun_s, job.grown_s or 0.0)
    return Stake(
        attempt=job.attempt,
        begun_s=begun_s,
        at_risk_s=max(0, job.step - job.kept) * step_s,
        save_s=learned_times(Times(saves=job.saves)).save_p95_s,
        step_s=step_s,
        again_s=max(0.0, job.first_view_s - job.begun_s) if job.first_view_s is not None else again_s,
        came_back=asks.done_s is not None and asks.done_s <= begun_s,
        asked=asks.number,
        times=asks.times,
        kept_s=asks.nothing_s,
    )


def may_be_outranked(
    state: str, priority: int, *, highest: int | None, preemptible: bool, borrows: bool = False
) -> bool:
    """A job that what waits with priority `highest` might have yield, or (`borrows`) whose project has devices of
    others: what it would lose is read."""
    asked = highest is not None and (priority < highest or borrows)
    return asked and state == JobState.RUNNING and preemptible


def used_by_project(jobs: Iterable[tuple[str, int, int, int]]) -> Mapping[str, int]:
    """Devices that count for each project's quota. Of each job: project, devices under its ranks, devices of nodes that
    are its spares, spare devices that it asks for: whole nodes are reserved, and no more than was asked for counts."""
    found: dict[str, int] = defaultdict(int)
    for project, ranks, spares, asked in jobs:
        found[project] += ranks + spares - uncounted(spares, asked)
    return found


def holder_of(job: Held, now_s: float) -> Holder:
    """With when it is expected to end: at the pace of its newest steps, or by its time limit, whichever is sooner."""
    leaving = Counter[str]()
    for piece in job.pieces:
        if (piece.index, piece.incarnation) in job.gives:
            leaving.update(piece.devices)
    parts = tuple(
        Part(index=piece.index, incarnation=piece.incarnation, devices=tuple(sorted(piece.devices.items())))
        for piece in sorted(job.pieces, key=lambda piece: piece.index)
        if piece.trains and (piece.index, piece.incarnation) not in job.gives
    )
    limit_s = job.limit_s if job.begun_s is not None else 0.0
    return Holder(
        id=job.id,
        name=job.name,
        priority=job.priority,
        devices=tuple(sorted((Counter(job.devices) - leaving).items())),
        ends_s=over_s(now_s, limit_s=limit_s, begun_s=job.begun_s, left=job.left, recent=job.recent),
        leaves=job.state in QUEUED_JOB or job.state in TERMINAL_JOB or job.yields_to is not None,
        yields_to=job.yields_to or job.gives_to,
        stake=job.stake,
        parts=parts if job.stake is not None else (),
        spares=max(0, len(parts) - max(1, job.least)) if job.stake is not None else 0,
        gives=tuple(sorted(leaving.items())),
        project=job.project,
        uncounted=job.uncounted,
        suffered=job.suffered,
    )


def lender_of(node_id: str, devices: Iterable[DeviceFact], *, named: Collection[int], owner: str) -> Lender:
    """A node that takes work, `named`: its devices that open findings accuse; `owner`: whose spare it is, or ""."""
    usable, free = usable_and_free(devices, named)
    return Lender(id=node_id, usable=usable, free={} if owner else free, reserved_for=owner)


def usable_and_free(devices: Iterable[DeviceFact], named: Collection[int]) -> tuple[dict[str, int], dict[str, int]]:
    """(how many can be used, how many of these are free), by model."""
    usable: dict[str, int] = defaultdict(int)
    free: dict[str, int] = defaultdict(int)
    for device in devices:
        if device.healthy and device.index not in named:
            usable[device.model] += 1
            free[device.model] += device.free
    return usable, free


def held_back(ends: Sequence[tuple[str, float]], policy: PolicyConfig, now_s: float) -> str:
    """The pause of a job that no node would start, "" for none. `ends`: (end code, when it was placed) of its
    attempts, the newest first."""
    if not ends:
        return ""
    newest, placed_s = ends[0]
    times = refused(code for code, _ in ends[:MAX_REFUSED_READ])
    return PAUSES if newest == UNFIT and now_s < placed_s + backoff_s(times, policy) else ""
