"""Orders from the control plane to an agent. A closed set; nothing else runs.

Delivery is at least once, effect exactly once: the agent journals `command_id` before
acting and answers repeats from the journal. A command is refused, not executed, when no
key of the server that is pinned at the node has signed it for this node; when `epoch` is
older than one the agent has seen for (job, attempt); or when `ttl_s` had passed before it
was first received (counted from `issued_at_s` to the `server_time_s` of the `Order` that
brought it, so the clock of the node says nothing).
"""

from typing import ClassVar

import msgspec

from controlplane.protocol.bounds import (
    CommandText,
    DeviceIndex,
    Epoch,
    Id,
    IdOrNone,
    Index,
    IndexOrAll,
    JobEnd,
    KeyId,
    Label,
    Number,
    Path,
    Scalars,
    Seconds,
    SignatureBytes,
    SignatureText,
    StatementBytes,
    Step,
    UnixSeconds,
    Word,
)
from controlplane.protocol.keeping import KeepSaves, KeptSaves
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import Install, View
from controlplane.protocol.rank import RecomputeSteps, SaveNow, ToRank
from controlplane.protocol.rank_commands import BY_NAME, KIND, CarryOut, read
from controlplane.protocol.recompute import Recompute


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base: the wire form carries `kind`."""


class ForRanks(_Body):
    """Base of what an agent only hands on: `message` goes to every rank of the attempt here that `names` allows.
    A kind of these needs nothing of its own in the agent. `answered`: it names one rank, whose `CarriedOut` ends it."""

    answered: ClassVar[bool] = False

    job_id: Id
    attempt: Index

    def message(self, command_id: str) -> ToRank:
        """What each of them is sent."""
        raise NotImplementedError

    def names(self, ref: RankRef) -> bool:
        """Whether it is meant for this rank of the attempt."""
        return True


class StartRanks(_Body, tag="start_ranks"):
    """Start this node's ranks of one replica incarnation."""

    launch: ReplicaLaunch


class StopRanks(_Body, tag="stop_ranks", omit_defaults=True):
    """End every rank of (job, replica, incarnation) here. `grace_s` 0: SIGKILL to the
    process group at once; else SIGTERM, then SIGKILL after `grace_s`. Succeeds when
    the processes are proved gone. `replica` -1 means every replica of the attempt. `final`: the job
    ends with it, so; "" if only an attempt or a replica does. `end_signature`: the server's of that end."""

    job_id: Id
    attempt: Index
    replica: IndexOrAll
    incarnation: IndexOrAll
    grace_s: Seconds
    reason: CommandText
    final: JobEnd = ""
    end_signature: SignatureText = ""


class DeliverView(_Body, tag="deliver_view"):
    """Hand the view to every rank of its members on this node, and tell ranks of this
    job that are no members that they are evicted."""

    view: View


class DeliverInstall(_Body, tag="deliver_install"):
    """Hand the install to every rank of its epoch's members on this node."""

    install: Install


class RequestSave(ForRanks, tag="request_save"):
    """Ask the ranks of this job here to save at the next step boundary.
    `save_kind`: emergency or manual. What became of it comes as checkpoint reports."""

    save_kind: Word
    reason: CommandText

    def message(self, command_id: str) -> ToRank:
        return SaveNow(command_id, self.save_kind, self.reason)


class OrderRecompute(ForRanks, tag="order_recompute"):
    """Hand the order to the ranks of this replica here, who carry it out once all steps of the job
    are committed and saved, one such order after the other, and report what came of it."""

    replica: Index
    incarnation: Index
    order: Recompute

    def message(self, command_id: str) -> ToRank:
        return RecomputeSteps(self.order)

    def names(self, ref: RankRef) -> bool:
        return (ref.replica, ref.incarnation) == (self.replica, self.incarnation)


class KeepCheckpoints(ForRanks, tag="keep_checkpoints"):
    """Have these checkpoints of the job kept beyond their retention, and no others: rank 0 of the replica,
    where it lives here, writes that beside them for every rank that saves."""

    replica: Index
    incarnation: Index
    saves: KeptSaves

    def message(self, command_id: str) -> ToRank:
        return KeepSaves(command_id, self.saves)

    def names(self, ref: RankRef) -> bool:
        return (ref.replica, ref.incarnation, ref.rank) == (self.replica, self.incarnation, 0)


class CommandRank(ForRanks, tag=KIND):
    """Have one rank do what `name` says (`rank_commands`), with its `fields`, which are refused where that table
    has the name and other fields or ranges. It succeeds or fails as the rank answers; failed too where the rank
    ends before it has."""

    answered = True

    replica: Index
    incarnation: Index
    rank: Index
    name: Word
    fields: Scalars = {}

    def __post_init__(self) -> None:
        """Raises msgspec.ValidationError."""
        if self.name in BY_NAME:
            read(self.name, self.fields)

    def message(self, command_id: str) -> ToRank:
        return CarryOut(command_id, self.name, self.fields)

    def names(self, ref: RankRef) -> bool:
        return (ref.replica, ref.incarnation, ref.rank) == (self.replica, self.incarnation, self.rank)


class CollectStacks(_Body, tag="collect_stacks"):
    """Look at each rank of (job, replica) here without asking its training thread. `replica` -1: at
    each rank of the job that nobody looks at yet.

    `look`: a name of `protocol.diagnostics`; "hang" takes stacks and the Flight Recorder. `rank` -1: all
    ranks here. `duration_s` of a profile. Every answer is a `StacksCollected`; refused while the same
    rank is being looked at."""

    job_id: Id
    replica: IndexOrAll
    incarnation: IndexOrAll
    rank: IndexOrAll = -1
    look: Word = "stacks"
    duration_s: Seconds = 0.0


class VerifyCheckpoint(_Body, tag="verify_checkpoint"):
    """Read every file of this checkpoint of the job on this node's storage and compare it with its
    commit marker. Nothing is loaded; `user` as in `ReplicaLaunch`; one at a time on a node.

    Acknowledged again now and then, with `data` {"read_bytes"}; at its end it succeeds with `data`
    {"ok", "detail", "absent"}: `ok` true (all is as committed), false (`detail` names the fault; `absent`:
    something is not there) or null (nothing can be said from here). Failed: not begun, ended by us, or
    without a verdict within `limit_s`."""

    job_id: Id
    path: Path
    step: Step
    epoch: Epoch
    limit_s: Seconds
    user: Label = ""


class EndVerification(_Body, tag="end_verification"):
    """Nobody waits for this order to verify any more (`order`: its command id): it fails, if it is at work."""

    order: Id


class WarmHost(_Body, tag="warm_host"):
    """Start the rank host of this job ahead of need. `user` as in `ReplicaLaunch`."""

    job_id: Id
    attempt: Index
    user: Label = ""


class ResetDevice(_Body, tag="reset_device"):
    """Reset a device on which nothing runs. Refused while a rank of this node is on it, or where
    another device (`uuid`) has its index now. Succeeds when the driver says that it was reset."""

    device_index: DeviceIndex
    uuid: Label


class InjectDeviceFault(_Body, tag="inject_device_fault"):
    """Simulated probe only. faults: overheat, ecc, xid, throttle, off_bus, nvlink, old_driver
    (of the whole node), heal. `value`: XID number (one of an NVLink with the
    link as hundredths: 74.05), target degrees C for overheat, number of the
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
    | OrderRecompute
    | KeepCheckpoints
    | CommandRank
    | CollectStacks
    | VerifyCheckpoint
    | EndVerification
    | WarmHost
    | ResetDevice
    | InjectDeviceFault
    | InjectRankFault
    | InjectLinkFault
)


def subject(body: Body) -> tuple[str, int | None]:
    """Which job and attempt it is about, itself or by what it carries: that fences it. ("", None): about the node;
    (job, None): about whichever attempt its envelope names."""
    match body:
        case StartRanks(launch=about) | DeliverView(view=about) | DeliverInstall(install=about):
            return about.job_id, about.attempt
    return getattr(body, "job_id", ""), getattr(body, "attempt", None)


class CommandStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is signed, whole: who is to do what, by whose decision, and until when. `epoch` is
    the job's fencing token when it was decided (0: not about a job); `issued_at_s` Unix time by
    the server; `ttl_s` its whole life."""

    command_id: Id
    node_id: Id
    epoch: Epoch
    issued_at_s: UnixSeconds
    ttl_s: Seconds
    body: Body
    job_id: IdOrNone = ""
    attempt: Index = 0
    decision_id: IdOrNone = ""


class SignedCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One order on its way. `statement`: a `CommandStatement` in MessagePack, the very bytes
    that are signed (`protocol.signing`). `command_id` repeats its own for the answer alone.
    `store_token`: the job's secret at the rendezvous store, added to a start as it is delivered;
    no row holds it and nothing is signed of it: a changed one opens nothing."""

    command_id: Id
    key_id: KeyId
    signature: SignatureBytes
    statement: StatementBytes
    store_token: IdOrNone = ""


class CommandEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A verified order, as the agent keeps it: the statement, with `age_s`, how long ago the
    server committed it, in place of the moment."""

    command_id: Id
    node_id: Id
    epoch: Epoch
    age_s: Seconds
    ttl_s: Seconds
    body: Body
    job_id: IdOrNone = ""
    attempt: Index = 0
    decision_id: IdOrNone = ""
