"""What the sentinel must know from the tables, refreshed once a second: which nodes and
devices there are, which rank was placed where, which limits hold there."""

from dataclasses import dataclass, field
from functools import partial

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.numbers import spec_of
from controlplane.policy.risk import WINDOW_SAMPLES
from controlplane.protocol.launch import RankRef
from controlplane.runtime import beats
from controlplane.runtime.clock import ago
from controlplane.runtime.isolate import isolated

DEFAULT_RISK = 0.30
DEFAULT_HYSTERESIS_S = 30.0
DEFAULT_SILENCE_S = 2.0
CUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """`cut`: its connection ended with the web process that held it, less than `CUT_S` ago."""

    name: str
    connected: bool
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """`job_id` of the unreleased rank on it."""

    id: str
    present: bool
    risk: float | None
    job_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """From the job's spec."""

    silence_s: float = DEFAULT_SILENCE_S
    risk: float = DEFAULT_RISK
    hysteresis_s: float = DEFAULT_HYSTERESIS_S
    window_samples: int = WINDOW_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMap:
    """`placed`: every unreleased rank and its node; `jobs_on`: node to its jobs."""

    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    devices: dict[tuple[str, int], DeviceInfo] = field(default_factory=dict)
    placed: dict[RankRef, str] = field(default_factory=dict)
    jobs_on: dict[str, set[str]] = field(default_factory=dict)
    limits: dict[str, JobLimits] = field(default_factory=dict)


def read_map() -> FleetMap:
    """A query for each kind of row."""
    alive = beats.live_web()
    recently = ago(CUT_S)
    nodes = {
        node.id: NodeInfo(
            name=node.name,
            connected=node.connected,
            cut=not node.connected
            and node.disconnected_at is not None
            and node.disconnected_at > recently
            and node.session_id.partition(".")[0] not in alive,
        )
        for node in Node.objects.filter(revoked_at=None)
    }
    placed: dict[RankRef, str] = {}
    jobs_on: dict[str, set[str]] = {}
    holder: dict[str, str] = {}
    for rank in Rank.objects.filter(released_at=None).select_related("replica__attempt"):
        replica, attempt = rank.replica, rank.replica.attempt
        ref = RankRef(attempt.job_id, attempt.number, replica.index, replica.incarnation, rank.rank)
        placed[ref] = rank.node_id
        jobs_on.setdefault(rank.node_id, set()).add(attempt.job_id)
        holder[rank.device_id] = attempt.job_id
    devices = {
        (device.node_id, device.index): DeviceInfo(
            id=device.id, present=device.present, risk=device.risk, job_id=holder.get(device.id)
        )
        for device in Device.objects.all()
    }
    limits: dict[str, JobLimits] = {}
    for job in Job.objects.filter(pk__in=set(holder.values())):
        # A spec that cannot be read leaves that job with the defaults, and the others their own.
        isolated("limits", job.id, partial(_add_limits, limits, job))
    return FleetMap(nodes=nodes, devices=devices, placed=placed, jobs_on=jobs_on, limits=limits)


def _add_limits(limits: dict[str, JobLimits], job: Job) -> None:
    limits[job.id] = _limits(job)


def _limits(job: Job) -> JobLimits:
    resiliency = spec_of(job).spec.resiliency
    return JobLimits(
        silence_s=resiliency.timeouts.silence_s,
        risk=resiliency.risk.threshold,
        hysteresis_s=resiliency.risk.hysteresis_s,
        window_samples=resiliency.risk.window_samples,
    )
