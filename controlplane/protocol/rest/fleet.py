"""Nodes, devices, their histories, and the fleet on one page."""

from controlplane.protocol.rest.base import Answer, Event, Health, Json
from controlplane.protocol.rest.jobs import Rank
from controlplane.protocol.rest.recovery import Decision, Incident, Signal


class HeldBy(Answer, frozen=True, kw_only=True):
    """The rank on a device."""

    job_id: str
    replica: int
    rank: int


class Device(Answer, frozen=True, kw_only=True):
    """A GPU. `live`: its newest readings, absent ones None."""

    id: str
    node_id: str
    index: int
    uuid: str
    model: str
    memory_bytes: int | None
    driver: str
    present: bool
    healthy: bool
    health_reason: str
    risk: float | None
    held_by: HeldBy | None
    spare_for: str | None
    live: Json | None = None


class Node(Answer, frozen=True, kw_only=True):
    """A machine with an agent. `segment`: its NVLink domain or network block, "" if not said.
    `revoked`: its key is worth nothing."""

    id: str
    name: str
    state: str
    state_reason: str
    state_since: str
    connected: bool
    agent_version: str
    segment: str
    devices: list[Device]
    ranks_running: int
    revoked: bool = False
    last_seen_age_s: float | None = None
    agent_cpu_ratio: float | None = None
    agent_rss_bytes: int | None = None


class DeadLetter(Answer, frozen=True, kw_only=True):
    """An event of the node's agent that could not be applied: number `seq` of its journal.
    `reason`: the error; `state`: waiting, replayed or discarded."""

    id: str
    node_id: str
    journal_id: str
    seq: int
    kind: str
    size_bytes: int
    reason: str
    tries: int
    happened_at: str
    first_seen_at: str
    last_seen_at: str
    state: str


class NodeDetail(Node, frozen=True, kw_only=True):
    """A node with what was found and runs there. `dead_letters`: events of its agent that wait
    to be replayed."""

    signals: list[Signal]
    ranks: list[Rank]
    events: list[Event]
    as_of_seq: int
    dead_letters: int = 0


class DeviceSeries(Answer, frozen=True, kw_only=True):
    """One device's history; `t` Unix seconds, the other lists as long, None where missing."""

    index: int
    t: list[float]
    temperature_c: list[float | None]
    power_w: list[float | None]
    utilization_ratio: list[float | None]
    memory_used_bytes: list[float | None]
    sm_clock_mhz: list[float | None]
    risk: list[float | None]


class Series(Answer, frozen=True, kw_only=True):
    """Histories of a node's devices."""

    devices: list[DeviceSeries]


class DeviceCounts(Answer, frozen=True, kw_only=True):
    """Devices of the fleet by what they are good for."""

    total: int
    healthy: int
    at_risk: int
    lost: int
    busy: int
    spare: int


class Overview(Answer, frozen=True, kw_only=True):
    """The fleet on one page. `goodput_24h` None: nothing trained yet."""

    as_of_seq: int
    now: str
    jobs: dict[str, int]
    nodes: dict[str, int]
    devices: DeviceCounts
    open_incidents: int
    decisions_last_hour: int
    goodput_24h: float | None
    recent_incidents: list[Incident]
    recent_decisions: list[Decision]
    health: Health


class Fault(Answer, frozen=True, kw_only=True):
    """A fault the demo can inject; `needs` names the fields it takes."""

    kind: str
    title: str
    description: str
    needs: list[str]
