"""Names of every state in the system. The legal transitions are tables in
`controlplane.policy.transitions`; docs/states.md is generated from them."""

from enum import StrEnum


class JobState(StrEnum):
    """What the user's intent has become."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    PREEMPTED = "preempted"
    RESUMING = "resuming"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


QUEUED_JOB = frozenset({JobState.PENDING, JobState.PREEMPTED})
"""It has no devices and waits for them; a preempted one may still have processes on their way out."""
STARTING_JOB = frozenset({JobState.STARTING, JobState.RESUMING})
"""It was placed and does not train yet."""


class AttemptState(StrEnum):
    """One launch of a job, with one layout (TP, PP, CP, replicas)."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class ReplicaState(StrEnum):
    """One data-parallel copy (TP x PP x CP ranks); the unit of fault tolerance."""

    FORMING = "forming"
    ACTIVE = "active"
    SUSPECT = "suspect"
    EVICTED = "evicted"
    CATCHING_UP = "catching_up"
    SPARE = "spare"
    ENDED = "ended"


class RankState(StrEnum):
    """One process of one incarnation of a replica."""

    LAUNCHING = "launching"
    INITIALIZING = "initializing"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    EXITED = "exited"
    HUNG = "hung"


class NodeState(StrEnum):
    """Whether a node may receive work, and what is being done about it."""

    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    CORDONED = "cordoned"
    QUARANTINED = "quarantined"


class EndSource(StrEnum):
    """Who knows that a node leaves: its provider, by a notice that its agent reads; or a person, who set a window."""

    SPOT = "spot"
    WINDOW = "window"


class RequestKind(StrEnum):
    """What a person may ask of a job or a node, which the policy answers. The queue asks for `preempt` as well."""

    EVICT = "evict"
    CHECKPOINT = "checkpoint"
    DRAIN = "drain"
    FAULT = "fault"
    PREEMPT = "preempt"
    RESUME = "resume"


class RequestState(StrEnum):
    """Life of a person's request."""

    OPEN = "open"
    TAKEN = "taken"
    DONE = "done"
    REFUSED = "refused"
    LAPSED = "lapsed"
    WITHDRAWN = "withdrawn"


LIVE_REQUEST = frozenset({RequestState.OPEN, RequestState.TAKEN})


class CommandState(StrEnum):
    """Life of one order to an agent (an outbox row)."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class CheckpointState(StrEnum):
    """The trust ladder. Only `complete` to `replicated` may be resumed from; `pruned` is what
    retention has removed."""

    WRITING = "writing"
    COMPLETE = "complete"
    VERIFIED = "verified"
    RESTORE_TESTED = "restore_tested"
    REPLICATED = "replicated"
    CORRUPT = "corrupt"
    PRUNED = "pruned"


class IncidentState(StrEnum):
    """A thing to investigate; groups signals and the decisions they caused."""

    OPEN = "open"
    RECOVERING = "recovering"
    MITIGATED = "mitigated"
    RESOLVED = "resolved"


class IncidentOutcome(StrEnum):
    """How an incident ended. RECOVERED: everything is as it was; MITIGATED: it goes on with less,
    or a person has the hardware now; LOST: the job failed; WITHDRAWN: its user ended the job
    before that could be told."""

    RECOVERED = "recovered"
    MITIGATED = "mitigated"
    LOST = "lost"
    WITHDRAWN = "withdrawn"


class EttrBasis(StrEnum):
    """What a job's effective time rests on. OBSERVED: the undisturbed step at full strength, as it was
    seen; ESTIMATED: full strength was not seen yet, its step is worked out from the greatest so far;
    TOO_FEW_STEPS: no figure yet; NOT_COUNTED: no figure, the job trained before commits were counted."""

    OBSERVED = "observed"
    ESTIMATED = "estimated"
    TOO_FEW_STEPS = "too_few_steps"
    NOT_COUNTED = "not_counted"


LIVE_INCIDENT = (IncidentState.OPEN, IncidentState.RECOVERING)
"""Something is still done about it; a mitigated one waits for hardware alone."""


class Section(StrEnum):
    """Part of a rank's code with its own timeout (after NVRx fault tolerance)."""

    SETUP = "setup"
    STEP = "step"
    CHECKPOINTING = "checkpointing"
    OUT_OF_SECTION = "out_of_section"


class Phase(StrEnum):
    """Where inside a section a rank is. Ranks in a WAITING phase wait for others
    and are never the culprit of a section timeout."""

    IMPORTING = "importing"
    BUILDING = "building"
    PARKED = "parked"
    COMPUTE = "compute"
    EXCHANGE = "exchange"
    VIEW_CHANGE = "view_change"
    OPTIMIZER = "optimizer"
    SAVING = "saving"
    FETCHING = "fetching"
    IDLE = "idle"


WAITING_PHASES = frozenset({Phase.PARKED, Phase.EXCHANGE, Phase.VIEW_CHANGE})


EXIT_PEER_LOST = 71
"""A rank that lost another rank of its replica, and is not the culprit, ends with this."""
UNFIT = "unfit_node"
"""`data` of the answer with which an agent refuses a start because of its node's checks."""


class Mode(StrEnum):
    """How far automation may go."""

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    ENFORCE = "enforce"


class Verdict(StrEnum):
    """What people said of a decision that was only recommended."""

    NONE = ""
    APPROVED = "approved"
    REJECTED = "rejected"
    HELD = "held"
