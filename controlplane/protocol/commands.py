"""Orders from the control plane to an agent. A closed set; nothing else runs.

Delivery is at least once, effect exactly once: the agent journals `command_id` before
acting and answers repeats from the journal. A command is refused, not executed, when
`epoch` is older than one the agent has seen for (job, attempt), or when `ttl_s` had
passed before it was first received (`ttl_s` counts from receipt of the envelope's
`age_s`, so no clocks of two machines are compared).
"""

import msgspec

from controlplane.protocol.bounds import (
    CommandText,
    DeviceIndex,
    Epoch,
    Id,
    IdOrNone,
    Index,
    IndexOrAll,
    Label,
    Number,
    Seconds,
    Word,
)
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.membership import Install, View


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base: the wire form carries `kind`."""


class StartRanks(_Body, tag="start_ranks"):
    """Start this node's ranks of one replica incarnation."""

    launch: ReplicaLaunch


class StopRanks(_Body, tag="stop_ranks"):
    """End every rank of (job, replica, incarnation) here. `grace_s` 0: SIGKILL to the
    process group at once; else SIGTERM, then SIGKILL after `grace_s`. Succeeds when
    the processes are proved gone. `replica` -1 means every replica of the attempt."""

    job_id: Id
    attempt: Index
    replica: IndexOrAll
    incarnation: Index
    grace_s: Seconds
    reason: CommandText


class DeliverView(_Body, tag="deliver_view"):
    """Hand the view to every rank of its members on this node, and tell ranks of this
    job that are no members that they are evicted."""

    view: View


class DeliverInstall(_Body, tag="deliver_install"):
    """Hand the install to every rank of its epoch's members on this node."""

    install: Install


class RequestSave(_Body, tag="request_save"):
    """Ask the ranks of this job here to save at the next step boundary.
    `save_kind`: emergency or manual."""

    job_id: Id
    attempt: Index
    save_kind: Word
    reason: CommandText


class CollectStacks(_Body, tag="collect_stacks"):
    """Look at each rank of (job, replica) here without asking its training thread.

    `look`: stacks, ping, flight_recorder, wait_counters or profile; "hang" takes stacks
    and the Flight Recorder. `rank` -1: all ranks here. `duration_s` of a profile. Every
    answer is a `StacksCollected`; refused while the same rank is being looked at."""

    job_id: Id
    replica: Index
    incarnation: Index
    rank: IndexOrAll = -1
    look: Word = "stacks"
    duration_s: Seconds = 0.0


class WarmHost(_Body, tag="warm_host"):
    """Start the rank host of this job ahead of need. `user` as in `ReplicaLaunch`."""

    job_id: Id
    attempt: Index
    user: Label = ""


class InjectDeviceFault(_Body, tag="inject_device_fault"):
    """Simulated probe only. faults: overheat, ecc, xid, throttle, off_bus, nvlink, old_driver
    (of the whole node), heal. `value`: XID number, target degrees C for overheat, number of the
    link for nvlink, major version of the driver for old_driver."""

    device_index: DeviceIndex
    fault: Word
    value: Number = 0.0


class InjectRankFault(_Body, tag="inject_rank_fault"):
    """Refused unless the job allows faults. faults: sigkill, sigstop, sigcont, hang,
    slow, exception, nan, abort, segfault, gil_lock, communication (`rank_faults`);
    `value` as there."""

    job_id: Id
    replica: Index
    incarnation: Index
    rank: Index
    fault: Word
    value: Number = 0.0


class InjectLinkFault(_Body, tag="inject_link_fault"):
    """Demo only: the agent drops its control-plane link for `seconds`."""

    seconds: Seconds


Body = (
    StartRanks
    | StopRanks
    | DeliverView
    | DeliverInstall
    | RequestSave
    | CollectStacks
    | WarmHost
    | InjectDeviceFault
    | InjectRankFault
    | InjectLinkFault
)


class CommandEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One order. `epoch` is the job's fencing token when it was decided (0: not about a
    job); `age_s` how long ago the server committed it; `ttl_s` its whole life. `store_token`:
    the job's secret at the rendezvous store, added to a start as it is delivered."""

    command_id: Id
    node_id: Id
    epoch: Epoch
    age_s: Seconds
    ttl_s: Seconds
    body: Body
    job_id: IdOrNone = ""
    attempt: Index = 0
    decision_id: IdOrNone = ""
    store_token: IdOrNone = ""
