"""What the sentinel must know from the tables, refreshed once a second: which nodes and
devices there are, which rank was placed where, which limits hold there."""

from dataclasses import dataclass, field
from functools import partial

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.numbers import spec_of
from controlplane.policy.risk import PAST_ERRORS_S
from controlplane.policy.xid import look_up
from controlplane.protocol.launch import RankRef
from controlplane.recovery.models import Signal
from controlplane.runtime import beats
from controlplane.runtime.clock import AHEAD_S, after, ago
from controlplane.runtime.isolate import isolated

DEFAULT_RISK = 0.30
DEFAULT_HYSTERESIS_S = 30.0
DEFAULT_SILENCE_S = 2.0
CUT_S = 60.0
_RANK = (
    "replica__attempt__job_id",
    "replica__attempt__number",
    "replica__index",
    "replica__incarnation",
    "rank",
    "node_id",
    "device_id",
)
"""The fields of `RankRef`, then where it is placed: of a hundred thousand ranks no objects are made."""
_DEVICE = ("node_id", "index", "id", "present", "risk", "healthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """`cut`: its connection ended with the web process that held it, less than `CUT_S` ago.
    `session_id` of its newest connection, which names that process."""

    name: str
    connected: bool
    cut: bool = False
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """`job_id` of the unreleased rank on it. `healthy`: nothing keeps it from work."""

    id: str
    present: bool
    risk: float | None
    job_id: str | None
    healthy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """From the job's spec."""

    silence_s: float = DEFAULT_SILENCE_S
    risk: float = DEFAULT_RISK
    hysteresis_s: float = DEFAULT_HYSTERESIS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMap:
    """`placed`: every unreleased rank and its node; `jobs_on`: node to its jobs; `error_s`: when
    a device was last accused of an error, in Unix seconds, of the last day."""

    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    devices: dict[tuple[str, int], DeviceInfo] = field(default_factory=dict)
    placed: dict[RankRef, str] = field(default_factory=dict)
    jobs_on: dict[str, set[str]] = field(default_factory=dict)
    limits: dict[str, JobLimits] = field(default_factory=dict)
    error_s: dict[tuple[str, int], float] = field(default_factory=dict)


def read_map() -> FleetMap:
    """A query for each kind of row."""
    alive = beats.live_web()
    recently = ago(CUT_S)
    rows = Node.objects.filter(revoked_at=None)
    nodes = {
        id_: NodeInfo(
            name=name,
            connected=connected,
            session_id=session_id,
            cut=not connected
            and ended_at is not None
            and recently < ended_at <= after(AHEAD_S)
            and session_id.partition(".")[0] not in alive,
        )
        for id_, name, connected, session_id, ended_at in rows.values_list(
            "id", "name", "connected", "session_id", "disconnected_at"
        )
    }
    placed: dict[RankRef, str] = {}
    jobs_on: dict[str, set[str]] = {}
    holder: dict[str, str] = {}
    for *ref, node_id, device_id in Rank.objects.filter(released_at=None).values_list(*_RANK):
        rank = RankRef(*ref)
        placed[rank] = node_id
        jobs_on.setdefault(node_id, set()).add(rank.job_id)
        holder[device_id] = rank.job_id
    devices = {
        (node_id, index): DeviceInfo(id=id_, present=present, risk=risk, job_id=holder.get(id_), healthy=healthy)
        for node_id, index, id_, present, risk, healthy in Device.objects.values_list(*_DEVICE)
    }
    limits: dict[str, JobLimits] = {}
    for job in Job.objects.filter(pk__in=set(holder.values())):
        # A spec that cannot be read leaves that job with the defaults, and the others their own.
        isolated("limits", job.id, partial(_add_limits, limits, job))
    return FleetMap(nodes=nodes, devices=devices, placed=placed, jobs_on=jobs_on, limits=limits, error_s=_accused())


def _accused() -> dict[tuple[str, int], float]:
    """When a device's driver last reported an XID that accuses it, within a day."""
    since = ago(PAST_ERRORS_S)
    rows = Signal.objects.filter(kind="xid", seen_at__gte=since).order_by("seen_at")
    found = {}
    for node_id, index, value, seen_at in rows.values_list("node_id", "device_index", "value", "seen_at"):
        if node_id is not None and index is not None and look_up(int(value)).accuses:
            found[node_id, index] = seen_at.timestamp()
    return found


def _add_limits(limits: dict[str, JobLimits], job: Job) -> None:
    limits[job.id] = _limits(job)


def _limits(job: Job) -> JobLimits:
    resiliency = spec_of(job).spec.resiliency
    return JobLimits(
        silence_s=resiliency.timeouts.silence_s,
        risk=resiliency.risk.threshold,
        hysteresis_s=resiliency.risk.hysteresis_s,
    )
