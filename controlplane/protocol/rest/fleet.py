"""Nodes, devices, their histories, and the fleet on one page."""

from typing import Literal

from controlplane.protocol.rest import words
from controlplane.protocol.rest.base import Answer, Event, Health
from controlplane.protocol.rest.breakers import Breaker
from controlplane.protocol.rest.engines import NodeEngine
from controlplane.protocol.rest.jobs import NotHeard, Rank, Unheard
from controlplane.protocol.rest.recovery import Decision, Incident, Signal


class HeldBy(Answer, frozen=True, kw_only=True):
    """The rank on a device. Of a job in a project that you do not see: `job_id` "unseen", and no numbers."""

    job_id: str
    replica: int
    rank: int
    job_name: str = ""


class DeviceLive(Answer, frozen=True, kw_only=True):
    """The newest reading (`protocol.samples.DeviceSample`) with the score of risk (None: too few
    samples) and each part's share of it."""

    index: int
    present: bool = True
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    throttle_reasons: list[str] | None = []
    pcie_replay_total: int | None = None
    nvlink_error_total: int | None = None
    retired_pages_total: int | None = None
    risk: float | None = None
    risk_parts: dict[str, float] = {}


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
    live: DeviceLive | None = None
    capabilities: words.Capabilities = {}


class NodeEnd(Answer, frozen=True, kw_only=True):
    """When a node is known to leave, and to be back (None: nobody knows): by a `spot` notice of its provider, or a
    maintenance `window` that `who` set."""

    id: str
    source: words.EndSource
    leaves_at: str
    back_at: str | None
    reason: str
    who: str


class Window(NodeEnd, frozen=True, kw_only=True):
    """A known end of a node. `over_at`: since when it does not hold any more, and why (`over_by`); a window whose time
    has passed has none."""

    node_id: str
    node_name: str
    said_at: str
    over_at: str | None
    over_by: str
    capabilities: words.Capabilities = {}


class OneWindow(Window, frozen=True, kw_only=True):
    """A known end by itself. `etag`: for If-Match."""

    as_of_seq: int
    etag: str = ""


class ReservedNode(Answer, frozen=True, kw_only=True):
    """A node of a reservation."""

    id: str
    name: str


class Reservation(Answer, frozen=True, kw_only=True):
    """`nodes` are `project`'s own from one moment until the other, as `who` set, of `node_count` the first. `over_at`:
    since when it was cancelled, and by whom (`over_by`); one whose time has passed has none. Of a project that you do
    not see it has "another project", and neither reason nor names of people."""

    id: str
    project: str
    nodes: list[ReservedNode]
    node_count: int
    starts_at: str
    ends_at: str
    reason: str
    who: str
    said_at: str
    over_at: str | None
    over_by: str
    capabilities: words.Capabilities = {}


class OneReservation(Reservation, frozen=True, kw_only=True):
    """A reservation by itself. `etag`: for If-Match."""

    as_of_seq: int
    etag: str = ""


class Node(Answer, frozen=True, kw_only=True):
    """A machine with an agent. `segment`: its NVLink domain or network block, "" if not said.
    `revoked`: its key is worth nothing. `held`: it enrolled with a token that holds, and gets no
    work until an administrator confirms it. `not_heard`: of each job on it, while it is not. `known_end`: when it
    leaves next, or that it is away; None: nobody knows of an end."""

    id: str
    name: str
    state: words.NodeState
    state_reason: str
    state_since: str
    connected: bool
    agent_version: str
    segment: str
    devices: list[Device]
    ranks_running: int
    revoked: bool = False
    held: bool = False
    last_seen_age_s: float | None = None
    agent_cpu_ratio: float | None = None
    agent_rss_bytes: int | None = None
    not_heard: list[NotHeard] = []
    known_end: NodeEnd | None = None
    capabilities: words.Capabilities = {}


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
    state: words.LetterState
    capabilities: words.Capabilities = {}


class NodeDetail(Node, frozen=True, kw_only=True):
    """A node with what was found and runs there. `signals`: open ones, then the newest settled, but for
    `signals_left_out` older ones. `dead_letters`: events of its agent that wait
    to be replayed. `unheard`: what its silence means to each job on it; empty: it is heard. `engine`: what the
    scheduler that gives the nodes out believes of it; None: none is asked, or it has never named this node. `etag`: for
    If-Match."""

    signals: list[Signal]
    ranks: list[Rank]
    events: list[Event]
    as_of_seq: int
    dead_letters: int = 0
    unheard: list[Unheard] = []
    signals_left_out: int = 0
    etag: str = ""
    engine: NodeEngine | None = None


class DeviceSeries(Answer, frozen=True, kw_only=True):
    """One device's history; `t` Unix seconds, the other lists as long, None where missing.
    `row_remap`: 0 nothing, 1 waits for a reset, 2 failed; `throttled`: 1 while it is held back."""

    index: int
    t: list[float]
    temperature_c: list[float | None]
    memory_temperature_c: list[float | None]
    power_w: list[float | None]
    power_limit_w: list[float | None]
    utilization_ratio: list[float | None]
    memory_utilization_ratio: list[float | None]
    memory_used_bytes: list[float | None]
    sm_clock_mhz: list[float | None]
    ecc_corrected_total: list[float | None]
    ecc_uncorrected_total: list[float | None]
    retired_pages_total: list[float | None]
    row_remap: list[float | None]
    throttled: list[float | None]
    pcie_replay_total: list[float | None]
    nvlink_error_total: list[float | None]
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


class Attention(Answer, frozen=True, kw_only=True):
    """What a person should know of: incidents under way (`live`), jobs that failed (`lost`) and
    that nobody has acknowledged, and those whose hardware is out (`hardware`; a lost job's may be
    among them). `incidents`: the newest of all of them."""

    live: int
    lost: int
    hardware: int
    incidents: list[Incident]


class Overview(Answer, frozen=True, kw_only=True):
    """The fleet on one page. `goodput_24h` None: no job ran, or none can be judged yet; `goodput_estimated`: of some
    job in it the full strength was not seen yet; `goodput_unjudged` jobs committed too few steps to be in it.
    `breakers`: the open ones."""

    as_of_seq: int
    now: str
    jobs: dict[str, int]
    nodes: dict[str, int]
    devices: DeviceCounts
    open_incidents: int
    attention: Attention
    decisions_last_hour: int
    goodput_24h: float | None
    recent_incidents: list[Incident]
    recent_decisions: list[Decision]
    health: Health
    goodput_estimated: bool = False
    goodput_unjudged: int = 0
    breakers: list[Breaker] = []


class FaultValue(Answer, frozen=True, kw_only=True):
    """What `value` of a fault means: `label` with its unit, what is taken where none is given, and
    the words to choose from ([]: any number)."""

    label: str
    default: str
    choices: list[str] = []


class Fault(Answer, frozen=True, kw_only=True):
    """A fault the demo can inject; `needs` names the fields it takes; `value` None: it takes none."""

    kind: str
    title: str
    description: str
    needs: list[Literal["job", "replica", "rank", "node", "device"]]
    value: FaultValue | None = None
