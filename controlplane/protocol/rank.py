"""Messages on the unix sockets of a node: rank <-> agent and agent <-> rank host.

Both sockets are SOCK_STREAM and carry JSON lines (UTF-8, one message a line, at most
`MAX_LINE_BYTES`, from a rank `MAX_REPORT_BYTES`). The agent listens on `<state>/agent.sock`
for ranks; each rank host listens on the socket given by `--socket` for its agent, and
outlives it.
"""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import (
    MAX_FLOAT,
    MAX_RANKS_PER_NODE,
    Bytes,
    CommandText,
    Count,
    Detail,
    DeviceIndex,
    Digest,
    Environment,
    Epoch,
    ErrorText,
    ExitCode,
    Holders,
    Id,
    IdOrNone,
    Index,
    IndexOrAll,
    Line,
    LookText,
    Magnitude,
    MicroBatches,
    Number,
    Path,
    Pid,
    Reported,
    Saves,
    Seconds,
    SignalNumber,
    Spread,
    Step,
    Ticks,
    Word,
)
from controlplane.protocol.keeping import CheckpointsPruned, KeepSaves
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.membership import Flush, Install, MemberRole, View
from controlplane.protocol.rank_commands import CarriedOut, CarryOut
from controlplane.protocol.recompute import Recompute, Recomputed
from controlplane.protocol.states import Phase, Section

MAX_LINE_BYTES = 1 << 20
MAX_REPORT_BYTES = 128 * 1024
"""Of a line from a rank: what it reports must fit into a frame of its agent's."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base: the wire form carries `type`."""


# --- rank -> agent ---------------------------------------------------------------


class RankHello(_Message, tag="hello"):
    """First line of every connection. `epoch` is the newest view installed (0: none)."""

    ref: RankRef
    pid: Pid
    epoch: Epoch = 0


class RankProgress(_Message, tag="progress"):
    """Sent once a second and at each section border by the reporter thread.
    `phase_age_s` and `section_age_s` are the rank's own monotonic ages."""

    section: Section
    phase: Phase
    phase_age_s: Reported
    section_age_s: Reported
    step: Step
    epoch: Epoch = 0


class StepReport(_Message, tag="step"):
    """One committed step. `step` is the number of the step just committed (from 0).
    `micro_batches` are the ids this replica computed, empty for a joiner; every rank
    reports them, rank 0's count. `loss` (mean per token over the global batch) comes
    from the last pipeline stage only; JSON has no word for one that is no finite number, so
    such a loss becomes None here and `loss_not_finite` its text ("nan", "inf", "-inf"), on
    whatever door the report travels. `parameter_hash` is of all that this rank's next step depends
    on: its shard of the parameters, its optimizer's state, and its random state.
    `stall_s` is time within the step spent in exchanges that came to nothing (waiting for a peer
    that is gone) and in view changes, `exchange_s` in the exchange that committed it, `copy_wait_s`
    (part of that) what a donor's commit waited for the copy of its state. `trained`, from each rank 0:
    ids of all micro-batches in the committed gradient, each as often as it is in it; it
    came through the same all-reduce, so any survivor can tell the whole step's ledger."""

    step: Step
    epoch: Epoch
    step_time_s: Reported
    tokens: Count
    micro_batches: MicroBatches
    loss: float | None = None
    grad_norm: Number | None = None
    parameter_hash: Digest | None = None
    stall_s: Reported = 0.0
    exchange_s: Reported = 0.0
    trained: MicroBatches = ()
    copy_wait_s: Reported = 0.0
    loss_not_finite: Literal["nan", "inf", "-inf"] | None = None

    def __post_init__(self) -> None:
        """Put a loss that is no finite number, or beyond what any column takes, into words."""
        if self.loss is not None and not abs(self.loss) <= MAX_FLOAT:
            beyond = self.loss if math.isnan(self.loss) else math.copysign(math.inf, self.loss)
            msgspec.structs.force_setattr(self, "loss_not_finite", str(beyond))
            msgspec.structs.force_setattr(self, "loss", None)


class OuterError(_Message, tag="outer_error"):
    """The exchange of `epoch` failed here (a peer's socket closed, or a timeout)."""

    epoch: Epoch
    step: Step
    error: ErrorText


class CaughtUp(_Message, tag="caught_up"):
    """A joiner has replayed everything; from `step` on it contributes, or stands by. Its state
    came from `donor_count` replicas, `donor` the lowest-numbered of them (-1: it is empty);
    `harmed_chunks` were refused and fetched again."""

    epoch: Epoch
    step: Step
    replayed_steps: Count
    fetch_s: Reported
    fetch_bytes: Bytes
    donor: IndexOrAll
    donor_count: Index = 1
    harmed_chunks: Count = 0
    role: MemberRole = MemberRole.CONTRIBUTOR


class ViewInstalled(_Message, tag="view_installed"):
    """The rank is in `epoch` at `step`; `waited_s` since it saw the view, of which `install_s`
    until the install was there on every rank of the replica and `build_s` for the outer group."""

    epoch: Epoch
    step: Step
    rolled_forward: bool
    waited_s: Reported
    recomputed_micro_batches: MicroBatches = ()
    install_s: Reported = 0.0
    build_s: Reported = 0.0


class CheckpointReport(_Message, tag="checkpoint"):
    """`state`: writing, complete or failed. Only the rank that commits the marker says
    complete. `blocking_s` held training up; `total_s` from start to durable. Of kind "local"
    (the nodes' own disks or memory): `holders[r]` are the ids of the nodes that hold shard r.
    `oldest_kept`: (epoch, step) of the oldest complete one that retention leaves in this
    tier, those before it are gone, except those of `kept`; (0, 0) says nothing."""

    step: Step
    path: Path
    state: Literal["writing", "complete", "failed"]
    kind: Word
    epoch: Epoch
    bytes: Bytes = 0
    blocking_s: Reported = 0.0
    total_s: Reported = 0.0
    digest: Digest = ""
    error: ErrorText = ""
    command_id: IdOrNone = ""
    holders: Holders = ()
    oldest_kept: tuple[Epoch, Step] = (0, 0)
    kept: Saves = ()


class SectionTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one section in a window: how many, their sum, median and longest, in seconds."""

    count: Count
    total_s: Reported
    median_s: Reported
    max_s: Reported


class TimingReport(_Message, tag="timings"):
    """How long this rank's own work took in the steps `first_step`..`last_step`. `compute`
    (forward and backward, without waiting for others) and `data` are of one micro-batch,
    `exchange`, `optimizer` and `step` of one step; `spread`: of the forward passes of single
    micro-batches, the ninth decile less the first, over the median (0: not measured). Sent at
    most every `timing_interval_s`."""

    first_step: Step
    last_step: Step
    epoch: Epoch
    compute: SectionTime
    data: SectionTime
    exchange: SectionTime
    optimizer: SectionTime
    step: SectionTime
    spread: Spread = 0.0


class NumericsReport(_Message, tag="numerics"):
    """A result was refused and its step computed again in place. `check`: gradient_not_finite,
    loss_not_finite or loss_spike; `diagnosis`: transient (the second result differs and is
    good: training goes on with it), persistent (the same again: ask other hardware),
    failed_validation (different and wrong again), reproduced (a spike that is what the model
    computes). Results are text, because they need not be finite."""

    step: Step
    epoch: Epoch
    check: Word
    diagnosis: Word
    first_result: Line
    second_result: Line
    micro_batches: MicroBatches = ()


class DeterminismReport(_Message, tag="determinism"):
    """Steps computed twice since the rank began, and how many of them agreed bit for bit;
    `largest_difference` is relative, over all results compared."""

    step: Step
    steps: Count
    identical_steps: Count
    largest_difference: Magnitude


class TrainingDone(_Message, tag="done"):
    """All steps are committed; the process exits 0 next."""

    step: Step


class RecomputeReport(_Message, tag="recomputed"):
    """Answer to `RecomputeSteps`: what this rank computed again, and `state_hash` (as
    `StepReport.parameter_hash`) after the last of these steps; "" where it did not come so far,
    and `error` says why. `on`: "cpu" or "cuda"; `took_s` with the load of the checkpoint."""

    order_id: Id
    steps: Recomputed
    state_hash: Digest
    on: Word
    took_s: Reported
    error: Line = ""


class StacksReport(_Message, tag="stacks"):
    """Answer to `CollectStacks` where the rank could still answer itself."""

    text: LookText
    command_id: IdOrNone = ""


FromRank = (
    RankHello
    | RankProgress
    | StepReport
    | Flush
    | OuterError
    | CaughtUp
    | ViewInstalled
    | CheckpointReport
    | CheckpointsPruned
    | TimingReport
    | NumericsReport
    | DeterminismReport
    | TrainingDone
    | RecomputeReport
    | StacksReport
    | CarriedOut
)

# --- agent -> rank ---------------------------------------------------------------


class SetView(_Message, tag="set_view"):
    """A newer view: abandon, flush, wait for its install."""

    view: View


class InstallView(_Message, tag="install_view"):
    """Answer to everybody's flush."""

    install: Install


class Evicted(_Message, tag="evicted"):
    """This incarnation is no member any more: exit, write nothing."""

    reason: CommandText
    epoch: Epoch


class SaveNow(_Message, tag="save_now"):
    """Save at the next step boundary. `kind`: emergency or manual. Consumed once."""

    command_id: Id
    kind: Word
    reason: CommandText


class RecomputeSteps(_Message, tag="recompute"):
    """Once every step is committed and saved, compute these again, tell, and leave then."""

    order: Recompute


class StopTraining(_Message, tag="stop"):
    """Leave at the next step boundary; `save` first if asked."""

    save: bool
    reason: CommandText


class InjectFault(_Message, tag="inject_fault"):
    """Only honoured when the job allows faults. kinds: hang, slow, exception, nan, abort,
    segfault, gil_lock, communication (`rank_faults.INSIDE`)."""

    kind: Word
    value: Number = 0.0


ToRank = SetView | InstallView | Evicted | SaveNow | RecomputeSteps | KeepSaves | StopTraining | InjectFault | CarryOut

# --- agent -> rank host ----------------------------------------------------------


class ForkRank(_Message, tag="fork_rank"):
    """Fork one rank: own session (setsid), stdout and stderr to `log_path`,
    `agent_socket` to connect to. Answered by `RankForked`, later `RankGone`."""

    ref: RankRef
    world_size: Index
    device_index: DeviceIndex
    config: TrainerConfig
    agent_socket: Detail
    log_path: Detail
    env: Environment = {}


class ListRanks(_Message, tag="list_ranks"):
    """Asked after an agent restart; answered by `HostState`."""


class ShutdownHost(_Message, tag="shutdown"):
    """Exit when no rank is left; ranks are never killed by the host."""


ToHost = ForkRank | ListRanks | ShutdownHost

# --- rank host -> agent ----------------------------------------------------------


class HostReady(_Message, tag="host_ready"):
    """Imports are done; sent on each connect once true."""

    pid: Pid
    import_s: Seconds


class RankForked(_Message, tag="rank_forked"):
    """`start_time_ticks` is field 22 of /proc/<pid>/stat: (pid, ticks) is an identity."""

    ref: RankRef
    pid: Pid
    start_time_ticks: Ticks


class RankGone(_Message, tag="rank_gone"):
    """waitpid told. Exactly one of `exit_code` and `signal` is set. Repeated on
    reconnect until the host ends, so a restarted agent learns exits it missed."""

    ref: RankRef
    pid: Pid
    exit_code: ExitCode | None
    signal: SignalNumber | None


class HostState(_Message, tag="host_state"):
    """Every rank this host ever forked that is alive, as (ref, pid, ticks)."""

    ranks: Annotated[tuple[RankForked, ...], Meta(max_length=MAX_RANKS_PER_NODE)]


FromHost = HostReady | RankForked | RankGone | HostState
