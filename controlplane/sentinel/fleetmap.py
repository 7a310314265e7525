"""What the sentinel must know from the tables, looked at once a second: which nodes and
devices there are, which rank was placed where, which limits hold there.

Theory of operation. Whoever changes a row of a node, of its devices or of a rank on it publishes an event
that names the node, in the same transaction; events are numbered in commit order. `MapFollower` keeps the
number that it has read up to and reads the nodes anew that later events name, nothing else. Connections of
nodes that flap are not told one by one (`fleet.flapping`): their rows say when. All of it is read again
once a minute, and where events are missing: after a restore, or when they were forgotten.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from django.db.models import Q

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.numbers import spec_of
from controlplane.policy.risk import PAST_ERRORS_S
from controlplane.policy.xid import look_up
from controlplane.protocol.launch import RankRef
from controlplane.recovery.models import Signal
from controlplane.runtime import beats, events
from controlplane.runtime.clock import AHEAD_S, after, ago
from controlplane.runtime.isolate import isolated
from controlplane.runtime.models import Event
from controlplane.runtime.shards import shard_of

DEFAULT_RISK = 0.30
DEFAULT_HYSTERESIS_S = 30.0
DEFAULT_SILENCE_S = 2.0
CUT_S = 60.0
WHOLE_S = 60.0
"""All is read again this often: what nothing told of is known then at the latest."""
OVERLAP_S = 5.0
"""A transaction that says when a connection ended commits within this time."""
MAX_TOUCHED = 500
"""Of more nodes at once, all are read: SQLite takes a thousand parameters."""
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
_DEVICE = ("node_id", "index", "id", "present", "risk", "healthy", "uuid", "uuid_since")


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
    """`job_id` of the unreleased rank on it. `healthy`: nothing keeps it from work. `since_s`: since when
    this one, by its `uuid`, is there (Unix seconds; 0: since the first)."""

    id: str
    present: bool
    risk: float | None
    job_id: str | None
    healthy: bool = True
    uuid: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """From the job's spec."""

    silence_s: float = DEFAULT_SILENCE_S
    risk: float = DEFAULT_RISK
    hysteresis_s: float = DEFAULT_HYSTERESIS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMap:
    """`placed`: every unreleased rank and its node; `jobs_on`: node to its jobs; `error_s`: when
    a device was last accused of an error, in Unix seconds, of the last day; `nodes_of`: of each job its nodes, also
    those in other shards; `out`: devices that are not there or that something keeps from work."""

    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    devices: dict[tuple[str, int], DeviceInfo] = field(default_factory=dict)
    placed: dict[RankRef, str] = field(default_factory=dict)
    jobs_on: dict[str, set[str]] = field(default_factory=dict)
    limits: dict[str, JobLimits] = field(default_factory=dict)
    error_s: dict[tuple[str, int], float] = field(default_factory=dict)
    nodes_of: dict[str, set[str]] = field(default_factory=dict)
    out: set[tuple[str, int]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Of nodes and devices that it was made with."""
        for node_id, jobs in self.jobs_on.items():
            for job_id in jobs:
                self.nodes_of.setdefault(job_id, set()).add(node_id)
        self.out.update(key for key, info in self.devices.items() if not (info.present and info.healthy))


def read_map() -> FleetMap:
    """All of it, a query for each kind of row."""
    return MapFollower().turn()


class MapFollower:
    """Keeps one `FleetMap` of each of `count` shards, which it changes in place, up to date. Of one thread. A job's
    limits and its nodes are in each of them."""

    def __init__(self, count: int = 1) -> None:
        self._limits: dict[str, JobLimits] = {}
        self._nodes_of: dict[str, set[str]] = {}
        self.maps = tuple(FleetMap(limits=self._limits, nodes_of=self._nodes_of) for _ in range(count))
        self.whole_reads = 0
        self.touched: frozenset[str] | None = None
        """Nodes that the last turn read; None: all."""
        self._seq = -1
        self._whole_at = 0.0
        self._away: dict[str, datetime] = {}
        self._ranks_on: dict[str, list[RankRef]] = {}
        self._devices_of: dict[str, list[int]] = {}

    def turn(self) -> FleetMap:
        """Read what has changed since the last turn; the first shard's. The same objects each time; where it fails, all
        of it is read in the next."""
        newest = events.newest_seq()
        touched = None if self._must_read_all(newest) else self._touched(newest)
        # What is committed while it is read has a later number, and is read again in the next turn.
        self._seq = -1
        self.touched = None
        if touched is None or len(touched) > MAX_TOUCHED:
            self._read_all()
        else:
            self._read(touched)
            self.touched = frozenset(touched)
        self._judge_away()
        self._seq = newest
        return self.maps[0]

    def of(self, node_id: str) -> FleetMap:
        """The map of the node's shard."""
        return self.maps[shard_of(node_id, len(self.maps))]

    def shards_of(self, job_id: str) -> set[int]:
        """Shards with a node that a rank of the job is placed on."""
        return {shard_of(node_id, len(self.maps)) for node_id in self._nodes_of.get(job_id, ())}

    def _must_read_all(self, newest: int) -> bool:
        missing = newest < self._seq or events.forgotten_up_to() > self._seq
        return self._seq < 0 or missing or time.monotonic() - self._whole_at >= WHOLE_S

    def _touched(self, newest: int) -> set[str]:
        told = Event.objects.filter(seq__gt=self._seq, seq__lte=newest).exclude(node_id="")
        since = ago(OVERLAP_S)
        moved = Node.objects.filter(Q(connected_at__gte=since) | Q(disconnected_at__gte=since))
        return set(told.values_list("node_id", flat=True)) | set(moved.values_list("id", flat=True))

    def _read_all(self) -> None:
        """From nothing: what is in no table any more is gone."""
        for here in self.maps:
            for kept in (here.nodes, here.devices, here.placed, here.jobs_on, here.limits, here.error_s):
                kept.clear()
            here.out.clear()
        for index in (self._away, self._ranks_on, self._devices_of, self._nodes_of):
            index.clear()
        self.whole_reads += 1
        self._whole_at = time.monotonic()
        self._add(None)

    def _read(self, node_ids: set[str]) -> None:
        for node_id in node_ids:
            self._forget(node_id)
        if node_ids:
            self._add(node_ids)

    def _forget(self, node_id: str) -> None:
        here = self.of(node_id)
        here.nodes.pop(node_id, None)
        self._away.pop(node_id, None)
        for index in self._devices_of.pop(node_id, ()):
            here.devices.pop((node_id, index), None)
            here.out.discard((node_id, index))
            here.error_s.pop((node_id, index), None)
        for rank in self._ranks_on.pop(node_id, ()):
            # A rank's slot may be on another node by now, and read before this one.
            if here.placed.get(rank) == node_id:
                del here.placed[rank]
        for job_id in here.jobs_on.pop(node_id, ()):
            self._nodes_of[job_id].discard(node_id)
            if not self._nodes_of[job_id]:
                del self._nodes_of[job_id]
                here.limits.pop(job_id, None)

    def _add(self, node_ids: set[str] | None) -> None:
        """Of these nodes, which the map does not have; of all for None."""
        self._add_nodes(node_ids)
        holder = self._add_ranks(node_ids)
        devices = Device.objects.all() if node_ids is None else Device.objects.filter(node_id__in=node_ids)
        for node_id, index, id_, present, risk, healthy, uuid, since in devices.values_list(*_DEVICE):
            self._devices_of.setdefault(node_id, []).append(index)
            here = self.of(node_id)
            here.devices[node_id, index] = DeviceInfo(
                id=id_,
                present=present,
                risk=risk,
                job_id=holder.get(id_),
                healthy=healthy,
                uuid=uuid,
                since_s=since.timestamp() if since is not None else 0.0,
            )
            if not (present and healthy):
                here.out.add((node_id, index))
        for job in Job.objects.filter(pk__in=self._nodes_of.keys() - self._limits.keys()):
            # A spec that cannot be read leaves that job with the defaults, and the others their own.
            isolated("limits", job.id, partial(_add_limits, self._limits, job))
        for place, at_s in _accused(node_ids).items():
            self.of(place[0]).error_s[place] = at_s

    def _add_nodes(self, node_ids: set[str] | None) -> None:
        rows = Node.objects.filter(revoked_at=None)
        rows = rows if node_ids is None else rows.filter(pk__in=node_ids)
        for id_, name, connected, session_id, ended_at in rows.values_list(
            "id", "name", "connected", "session_id", "disconnected_at"
        ):
            self.of(id_).nodes[id_] = NodeInfo(name=name, connected=connected, session_id=session_id)
            if not connected and ended_at is not None:
                self._away[id_] = ended_at

    def _judge_away(self) -> None:
        """Whose web process ended, and how long ago, changes without an event."""
        if not self._away:
            return
        alive, recently, soon = beats.live_web(), ago(CUT_S), after(AHEAD_S)
        for node_id, ended_at in list(self._away.items()):
            here = self.of(node_id).nodes
            info = here[node_id]
            cut = recently < ended_at <= soon and info.session_id.partition(".")[0] not in alive
            if cut != info.cut:
                here[node_id] = replace(info, cut=cut)
            if ended_at <= recently:
                del self._away[node_id]

    def _add_ranks(self, node_ids: set[str] | None) -> dict[str, str]:
        """The job of each device that is held."""
        holder: dict[str, str] = {}
        ranks = Rank.objects.filter(released_at=None)
        ranks = ranks if node_ids is None else ranks.filter(node_id__in=node_ids)
        for *ref, node_id, device_id in ranks.values_list(*_RANK):
            rank = RankRef(*ref)
            here = self.of(node_id)
            here.placed[rank] = node_id
            self._ranks_on.setdefault(node_id, []).append(rank)
            here.jobs_on.setdefault(node_id, set()).add(rank.job_id)
            self._nodes_of.setdefault(rank.job_id, set()).add(node_id)
            holder[device_id] = rank.job_id
        return holder


def _accused(node_ids: Collection[str] | None) -> dict[tuple[str, int], float]:
    """When a device's driver last reported an XID that accuses it, within a day."""
    rows = Signal.objects.filter(kind="xid", seen_at__gte=ago(PAST_ERRORS_S)).order_by("seen_at")
    rows = rows if node_ids is None else rows.filter(node_id__in=node_ids)
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
