"""Signals, incidents, decisions, commands and certificates."""

from typing import Any

from controlplane.protocol import rank_commands
from controlplane.protocol.rest import words
from controlplane.protocol.rest.base import Answer, Event, Json


class Alternative(Answer, frozen=True, kw_only=True):
    """What else could have been done, and why it was not."""

    action: str
    cost_gpu_s: float | None
    why_not: str


class Command(Answer, frozen=True, kw_only=True):
    """One order to an agent. `result`: what a rank has found that was commanded (`protocol.rank_commands`)."""

    id: str
    node_id: str
    node_name: str
    kind: str
    state: words.CommandState
    epoch: int
    created_at: str
    delivered_at: str | None
    acknowledged_at: str | None
    finished_at: str | None
    deliveries: int
    detail: str
    result: rank_commands.Answer | None


class Decision(Answer, frozen=True, kw_only=True):
    """One decision with its evidence. `routine`: part of an orderly protocol. `job_id` None: it is
    about the fleet. `verdict`: what people said last of one that was only recommended (`mode`), "" for nothing.
    `policy_documents`: the number of the document of the fleet and, about a job, of its project and its own that made
    the policy `policy_version` (0: there was none; null: decided by an earlier release)."""

    id: str
    job_id: str | None
    incident_id: str | None
    at: str
    rule: str
    choice: str
    reason_code: str
    sentence: str
    evidence: words.Scalars
    alternatives: list[Alternative]
    actions: list[Json]
    cost_gpu_s: float | None
    routine: bool
    mode: str
    applied: bool
    epoch_before: int
    epoch_after: int
    policy_version: str
    decide_s: float
    verdict: words.Verdict
    commands: list[Command] = []
    job_name: str | None = None
    policy_documents: dict[str, int] | None = None


class Word(Answer, frozen=True, kw_only=True):
    """What one person said of a recommendation, and why."""

    who: str
    verdict: words.Verdict
    reason: str
    at: str


class DecisionDetail(Decision, frozen=True, kw_only=True):
    """`verdicts` in the order in which they came. `approvals_needed`: so many more people have to approve it;
    `acts_at`: it is carried out then unless somebody objects, if it is still recommended (null: it waits for a person).
    `reach`: what it would touch. `capabilities`: by act why it cannot be done, "" where it can. `etag`: for
    If-Match."""

    verdicts: list[Word]
    approvals_needed: int
    acts_at: str | None
    reach: list[str]
    capabilities: words.Capabilities
    etag: str = ""


class Request(Answer, frozen=True, kw_only=True):
    """What a person asked for: of a job, its `replica` and `rank` where it names them, or of a node. `answer`: what
    came of it so far, as the decision `decision_id` says it; `drain`: the request whose part it is; nothing of it
    begins after `valid_until`. `withdrawn_by`: who has taken it back, which is answered too. `urgent_id` and
    `urgent_name`: the job that a preemption by the queue makes room for; `lost_gpu_s`: GPU-seconds that it is expected
    to cost."""

    id: str
    kind: words.RequestKind
    state: words.RequestState
    job_id: str | None
    job_name: str | None
    node_id: str | None
    node_name: str | None
    replica: int | None
    rank: int | None
    fault: str
    drain: str | None
    urgent_id: str | None
    urgent_name: str | None
    lost_gpu_s: float | None
    who: str
    reason: str
    asked_at: str
    valid_until: str
    withdrawn_by: str
    answer: str
    decision_id: str | None
    ended_at: str | None
    capabilities: words.Capabilities = {}


class RequestDetail(Request, frozen=True, kw_only=True):
    """A request with those that are its parts, oldest first: the evictions of a drain. `etag`: for If-Match."""

    parts: list[Request]
    as_of_seq: int
    etag: str = ""


class Check(Answer, frozen=True, kw_only=True):
    """One check of a recovery certificate; `ok` None: could not be judged."""

    name: str
    ok: bool | None
    detail: str
    value: Any = None
    limit: Any = None


class Repeated(Answer, frozen=True, kw_only=True):
    """Steps `first` to `last` that a restart trained again, `again` of them so far. Of `compared` losses,
    from before and after, the largest difference."""

    steps: int
    first: int
    last: int
    again: int
    compared: int
    largest_difference: float | None


class Certificate(Answer, frozen=True, kw_only=True):
    """Whether a recovery kept what it promises. `state`: pending; green (each check holds); red (one
    does not); incomplete (`judged` of `of` checks could be judged and hold, the others could not)."""

    state: words.CertificateState
    checks: list[Check]
    judged: int | None = None
    of: int | None = None
    repeated: Repeated | None = None
    step: int | None = None
    generated_at: str | None = None


class Phase(Answer, frozen=True, kw_only=True):
    """One border in a recovery, `since_fault_s` after the fault."""

    name: str
    at: str
    since_fault_s: float | None


class Incident(Answer, frozen=True, kw_only=True):
    """One cause; `job_id` None: a fault of the fleet. `title` of at most 80 characters. `outcome`
    once it is known: recovered, mitigated (less strength, or hardware handed to a person), lost
    (the job failed), withdrawn (its user ended the job); `resolution` says it in words.
    `recovery_s` from the fault until training was back, null while it is not and where it never
    was. `needs_hardware`: a device of it is of no use until it is reset or replaced. `stall_s`: how long training stood
    still because of it, as survivors measured it; where nobody survived, from the last step to the first of
    the next attempt. Each second is in one incident at most, however many are open: in the one whose decision first
    changed who trains in that step, or else in the one that was opened first. `stall_others_s`: how long training
    stood still while it was open because of other incidents, which have these seconds. `shared`: one cause
    of incidents of several jobs: segment, node or storage ("": it is not); theirs name it as `part_of`."""

    id: str
    job_id: str | None
    job_name: str | None
    node_id: str | None
    node_name: str | None
    title: str
    state: words.IncidentState
    opened_at: str
    recovered_at: str | None
    resolved_at: str | None
    recovery_s: float | None
    outcome: words.IncidentOutcome
    resolution: str
    needs_hardware: bool
    acknowledged_at: str | None
    acknowledged_by: str
    acknowledgement: str
    phases: list[Phase]
    stall_s: float | None
    stall_others_s: float | None
    certificate: Certificate | None
    shared: str = ""
    part_of: str | None = None
    capabilities: words.Capabilities = {}


class Signal(Answer, frozen=True, kw_only=True):
    """A detector's finding. `value` in the unit of its kind, null where that has none or nobody saw it;
    `threshold`: the limit that it has passed, null where the kind needs none."""

    id: str
    kind: str
    job_id: str | None
    node_id: str | None
    node_name: str | None
    replica: int | None
    incarnation: int | None
    rank: int | None
    device_index: int | None
    value: float | None
    threshold: float | None
    evidence: words.Scalars
    seen_at: str
    settled_at: str | None


class RankDiagnostic(Answer, frozen=True, kw_only=True):
    """What one diagnostic of one rank found (untrusted text). `rank`: replica.incarnation/rank;
    `method`: how it was got."""

    id: str
    rank: str
    diagnostic: str
    method: str
    text: str
    at: str
    command_id: str


class FirstFailure(Answer, frozen=True, kw_only=True):
    """The first rank that failed, of `failed` that ended by themselves. `error`: its last words'
    error, empty where it left none; `root` False: only errors that follow from another's end are
    known; `followed`: ranks whose error followed from this one; `log`: the end of its output,
    untrusted text."""

    replica: int
    incarnation: int
    rank: int
    attempt: int
    node_name: str
    exit_code: int | None
    exit_signal: int | None
    at: str
    error: str
    root: bool
    followed: int
    failed: int
    log: str
    truncated: bool


class StackGroup(Answer, frozen=True, kw_only=True):
    """Ranks whose training thread stood in the same place, the first few by name."""

    where: str
    count: int
    ranks: list[str]
    frames: list[str]


class StackGroups(Answer, frozen=True, kw_only=True):
    """The stacks of those that were heard of the `ranks` ranks that were asked, in groups; of `late` none could be
    taken. `note` says so, and of how many nothing came."""

    sentence: str
    groups: list[StackGroup]
    ranks: int
    late: int
    note: str


class IncidentDetail(Incident, frozen=True, kw_only=True):
    """An incident with all that belongs to it. `findings`: what the Flight Recorders of
    each hung replica say, with state, culprits, group, operation and sizes; `first_failure`: the
    rank that failed first across all that ended by themselves, and the end of its log;
    `stack_groups`: where the training threads of all ranks stood; `parts`: of one that several jobs share, theirs.
    `etag`: for If-Match."""

    signals: list[Signal]
    decisions: list[Decision]
    stacks: list[RankDiagnostic]
    findings: list[Json] = []
    first_failure: FirstFailure | None = None
    stack_groups: StackGroups | None = None
    events: list[Event]
    parts: list[Incident] = []
    as_of_seq: int
    etag: str = ""
