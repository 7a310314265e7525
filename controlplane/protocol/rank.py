"""Messages on the unix sockets of a node: rank <-> agent and agent <-> rank host.

Both sockets are SOCK_STREAM and carry JSON lines (UTF-8, one message a line, at most
`MAX_LINE_BYTES`). The agent listens on `<state>/agent.sock` for ranks; each rank host
listens on the socket given by `--socket` for its agent, and outlives it.
"""

import math
from typing import Literal

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.membership import Flush, Install, MemberRole, View
from controlplane.protocol.states import Phase, Section

MAX_LINE_BYTES = 1 << 20


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base: the wire form carries `type`."""


# --- rank -> agent ---------------------------------------------------------------


class RankHello(_Message, tag="hello"):
    """First line of every connection. `epoch` is the newest view installed (0: none)."""

    ref: RankRef
    pid: int
    epoch: int = 0


class RankProgress(_Message, tag="progress"):
    """Sent once a second and at each section border by the reporter thread.
    `phase_age_s` and `section_age_s` are the rank's own monotonic ages."""

    section: Section
    phase: Phase
    phase_age_s: float
    section_age_s: float
    step: int
    epoch: int = 0


class StepReport(_Message, tag="step"):
    """One committed step. `step` is the number of the step just committed (from 0).
    `micro_batches` are the ids this replica computed, empty for a joiner; every rank
    reports them, rank 0's count. `loss` (mean per token over the global batch) comes
    from the last pipeline stage only; JSON has no word for one that is no finite number, so
    such a loss becomes None here and `loss_not_finite` its text ("nan", "inf", "-inf"), on
    whatever door the report travels. `parameter_hash` is of this rank's shard.
    `stall_s` is time spent in view changes within the step, `copy_wait_s` (part of
    `exchange_s`) what a donor's commit waited for the copy of its state. `trained`, from each rank 0:
    ids of all micro-batches in the committed gradient, each as often as it is in it; it
    came through the same all-reduce, so any survivor can tell the whole step's ledger."""

    step: int
    epoch: int
    step_time_s: float
    tokens: int
    micro_batches: tuple[int, ...]
    loss: float | None = None
    grad_norm: float | None = None
    parameter_hash: str | None = None
    stall_s: float = 0.0
    exchange_s: float = 0.0
    trained: tuple[int, ...] = ()
    copy_wait_s: float = 0.0
    loss_not_finite: Literal["nan", "inf", "-inf"] | None = None

    def __post_init__(self) -> None:
        """Put a loss that is no finite number into words."""
        if self.loss is not None and not math.isfinite(self.loss):
            msgspec.structs.force_setattr(self, "loss_not_finite", str(self.loss))
            msgspec.structs.force_setattr(self, "loss", None)


class OuterError(_Message, tag="outer_error"):
    """The exchange of `epoch` failed here (a peer's socket closed, or a timeout)."""

    epoch: int
    step: int
    error: str


class CaughtUp(_Message, tag="caught_up"):
    """A joiner has replayed everything; from `step` on it contributes, or stands by. Its state
    came from `donor_count` replicas, `donor` the lowest-numbered of them (-1: it is empty);
    `harmed_chunks` were refused and fetched again."""

    epoch: int
    step: int
    replayed_steps: int
    fetch_s: float
    fetch_bytes: int
    donor: int
    donor_count: int = 1
    harmed_chunks: int = 0
    role: MemberRole = MemberRole.CONTRIBUTOR


class ViewInstalled(_Message, tag="view_installed"):
    """The rank is in `epoch` at `step`; `waited_s` since it saw the view, of which `install_s`
    until the install was there on every rank of the replica and `build_s` for the outer group."""

    epoch: int
    step: int
    rolled_forward: bool
    waited_s: float
    recomputed_micro_batches: tuple[int, ...] = ()
    install_s: float = 0.0
    build_s: float = 0.0


class CheckpointReport(_Message, tag="checkpoint"):
    """`state`: writing, complete or failed. Only the rank that commits the marker says
    complete. `blocking_s` held training up; `total_s` from start to durable. Of kind "local"
    (the nodes' own disks or memory): `holders[r]` are the ids of the nodes that hold shard r.
    `oldest_kept`: (epoch, step) of the oldest complete one that retention leaves in this
    tier, those before it are gone; (0, 0) says nothing."""

    step: int
    path: str
    state: str
    kind: str
    epoch: int
    bytes: int = 0
    blocking_s: float = 0.0
    total_s: float = 0.0
    digest: str = ""
    error: str = ""
    command_id: str = ""
    holders: tuple[tuple[str, ...], ...] = ()
    oldest_kept: tuple[int, int] = (0, 0)


class SectionTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one section in a window: how many, their sum, median and longest, in seconds."""

    count: int
    total_s: float
    median_s: float
    max_s: float


class TimingReport(_Message, tag="timings"):
    """How long this rank's own work took in the steps `first_step`..`last_step`. `compute`
    (forward and backward, without waiting for others) and `data` are of one micro-batch,
    `exchange`, `optimizer` and `step` of one step. Sent at most every `timing_interval_s`."""

    first_step: int
    last_step: int
    epoch: int
    compute: SectionTime
    data: SectionTime
    exchange: SectionTime
    optimizer: SectionTime
    step: SectionTime


class NumericsReport(_Message, tag="numerics"):
    """A result was refused and its step computed again in place. `check`: gradient_not_finite,
    loss_not_finite or loss_spike; `diagnosis`: transient (the second result differs and is
    good: training goes on with it), persistent (the same again: ask other hardware),
    failed_validation (different and wrong again), reproduced (a spike that is what the model
    computes). Results are text, because they need not be finite."""

    step: int
    epoch: int
    check: str
    diagnosis: str
    first_result: str
    second_result: str
    micro_batches: tuple[int, ...] = ()


class DeterminismReport(_Message, tag="determinism"):
    """Steps computed twice since the rank began, and how many of them agreed bit for bit;
    `largest_difference` is relative, over all results compared."""

    step: int
    steps: int
    identical_steps: int
    largest_difference: float


class TrainingDone(_Message, tag="done"):
    """All steps are committed; the process exits 0 next."""

    step: int


class StacksReport(_Message, tag="stacks"):
    """Answer to `CollectStacks` where the rank could still answer itself."""

    text: str
    command_id: str = ""


FromRank = (
    RankHello
    | RankProgress
    | StepReport
    | Flush
    | OuterError
    | CaughtUp
    | ViewInstalled
    | CheckpointReport
    | TimingReport
    | NumericsReport
    | DeterminismReport
    | TrainingDone
    | StacksReport
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

    reason: str
    epoch: int


class SaveNow(_Message, tag="save_now"):
    """Save at the next step boundary. `kind`: emergency or manual. Consumed once."""

    command_id: str
    kind: str
    reason: str


class StopTraining(_Message, tag="stop"):
    """Leave at the next step boundary; `save` first if asked."""

    save: bool
    reason: str


class InjectFault(_Message, tag="inject_fault"):
    """Only honoured when the job allows faults. kinds: hang, slow, exception, nan, abort,
    segfault, gil_lock, communication (`rank_faults.INSIDE`)."""

    kind: str
    value: float = 0.0


ToRank = SetView | InstallView | Evicted | SaveNow | StopTraining | InjectFault

# --- agent -> rank host ----------------------------------------------------------


class ForkRank(_Message, tag="fork_rank"):
    """Fork one rank: own session (setsid), stdout and stderr to `log_path`,
    `agent_socket` to connect to. Answered by `RankForked`, later `RankGone`."""

    ref: RankRef
    world_size: int
    device_index: int
    config: TrainerConfig
    agent_socket: str
    log_path: str
    env: dict[str, str] = {}


class ListRanks(_Message, tag="list_ranks"):
    """Asked after an agent restart; answered by `HostState`."""


class ShutdownHost(_Message, tag="shutdown"):
    """Exit when no rank is left; ranks are never killed by the host."""


ToHost = ForkRank | ListRanks | ShutdownHost

# --- rank host -> agent ----------------------------------------------------------


class HostReady(_Message, tag="host_ready"):
    """Imports are done; sent on each connect once true."""

    pid: int
    import_s: float


class RankForked(_Message, tag="rank_forked"):
    """`start_time_ticks` is field 22 of /proc/<pid>/stat: (pid, ticks) is an identity."""

    ref: RankRef
    pid: int
    start_time_ticks: int


class RankGone(_Message, tag="rank_gone"):
    """waitpid told. Exactly one of `exit_code` and `signal` is set. Repeated on
    reconnect until the host ends, so a restarted agent learns exits it missed."""

    ref: RankRef
    pid: int
    exit_code: int | None
    signal: int | None


class HostState(_Message, tag="host_state"):
    """Every rank this host ever forked that is alive, as (ref, pid, ticks)."""

    ranks: tuple[RankForked, ...]


FromHost = HostReady | RankForked | RankGone | HostState
