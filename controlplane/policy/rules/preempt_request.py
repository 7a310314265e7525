"""A job is to yield its devices, to one of higher priority or because a person parks it: save, then end the attempt.

1. It saves, unless nothing is newer than what it could resume from. Nothing ends yet, so that the request can
   still be withdrawn: when the job that needed the devices is cancelled, or finds others.
2. The save is committed: the attempt ends. Steps committed since are saved by the ranks as they leave.
3. The grace is over, nobody is left who could save, or the save was refused: the attempt ends all the same, and the
   decision says what is lost.

The job is `preempted` then, and in the queue again; one that a person parked waits for `resume_request`.
"""

from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import RestartReason, restart_reason
from controlplane.policy.facts import attempt_live, installed, live_replicas
from controlplane.policy.failures import actionable
from controlplane.policy.ladder import out_of_service
from controlplane.policy.plan import (
    PREEMPTED,
    Decision,
    EndAttempt,
    RequestCheckpoint,
    SettleSignals,
)
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import SUCCEEDED, answer, asked, begun, ended_early, grace_s, of_kind, yielded
from controlplane.policy.rules.restart import ended_with_it
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import number_of, of_failures, short
from controlplane.protocol.states import JobState, RequestKind, RequestState

RULE = "preempt_request"
YIELDS = (JobState.RUNNING, JobState.RECOVERING)


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer to each that has come further; the attempt ends for all that were begun at once."""
    requests = tuple(request for request in of_kind(snapshot, RequestKind.PREEMPT) if not request.gives)
    found = tuple(d for d in (_answer(snapshot, config, request) for request in requests) if d is not None)
    taken = begun(snapshot)
    if not taken:
        return found
    why = restart_reason(snapshot, config, actionable(snapshot, config))
    if why is not None:
        # An attempt that ends anyway ends for all who ask: else `restart` would place it again, or have the job wait
        # for devices, and the attempt that follows would have to end as soon as it starts.
        taken += tuple(each for each in requests if _may_begin(snapshot, each))
    end = _end(snapshot, config, taken, why) if not found or why is not None else None
    return (end,) if end is not None else found


def _may_begin(snapshot: JobSnapshot, request: RequestFact) -> bool:
    """Nothing speaks against it."""
    waits = request.state is RequestState.OPEN and ended_early(snapshot, request, RULE) is None
    return waits and not _cannot(snapshot, request)


def newest_kept(snapshot: JobSnapshot) -> int:
    """The step of the newest trusted checkpoint that outlives the job's devices; 0: there is none."""
    return max((c.step for c in snapshot.checkpoints if c.holders is None and c.state in TRUSTED), default=0)


def _answer(snapshot: JobSnapshot, config: PolicyConfig, request: RequestFact) -> Decision | None:
    early = ended_early(snapshot, request, RULE)
    if early is not None:
        return early
    if request.state is RequestState.TAKEN:
        stays = f"{request.withdrawn_by} has withdrawn it: it trains on."
        return answer(RULE, request, RequestState.WITHDRAWN, stays) if request.withdrawn_by else None
    why = _cannot(snapshot, request)
    if why:
        return answer(RULE, request, RequestState.REFUSED, why)
    # While a view is on its way nobody has a step's boundary ahead at which to save.
    return _begin(snapshot, config, request) if installed(snapshot) else None


def _cannot(snapshot: JobSnapshot, request: RequestFact) -> str:
    attempt = snapshot.attempt
    if snapshot.job.state not in YIELDS or attempt is None or not attempt_live(snapshot):
        return f"The job is {snapshot.job.state}: it has no devices to yield."
    if request.attempt is not None and request.attempt != attempt.number:
        return f"It was started again since: attempt {attempt.number} runs."
    return ""


def _begin(snapshot: JobSnapshot, config: PolicyConfig, request: RequestFact) -> Decision:
    """Save first, if there is anything to save."""
    newer = snapshot.job.committed_step - newest_kept(snapshot)
    evidence = {"steps_at_risk": max(0, newer), "grace_s": grace_s(snapshot, config), "expected_gpu_s": request.value}
    if newer <= 0:
        sentence = "Every committed step is saved: its attempt ends."
        return answer(RULE, request, RequestState.TAKEN, sentence, evidence=evidence)
    sentence = (
        f"It saves the {number_of(newer, 'step')} since its last checkpoint first, for at most"
        f" {grace_s(snapshot, config):.0f} s, and yields its devices then."
    )
    act = RequestCheckpoint(kind="emergency")
    return answer(RULE, request, RequestState.TAKEN, sentence, act, evidence=evidence)


def _end(
    snapshot: JobSnapshot, config: PolicyConfig, taken: tuple[RequestFact, ...], why: RestartReason | None
) -> Decision | None:
    """The attempt ends for these requests; None: it saves still, or `restart` fails the job for good. `why` it cannot
    continue (None: it can)."""
    attempt, failures = snapshot.attempt, actionable(snapshot, config)
    if attempt is None or not attempt_live(snapshot) or (why is not None and why.final):
        return None
    cause = _why_now(snapshot, config, taken, why)
    if cause is None:
        return None
    saved = cause == ""
    newer = max(0, snapshot.job.committed_step - newest_kept(snapshot))
    leave_s = grace_s(snapshot, config) if saved and newer else 0.0
    lost = 0 if saved else newer
    step_s = snapshot.learned.step_s or config.default_step_s
    devices = sum(replica.world_size for replica in live_replicas(snapshot))
    settled = ended_with_it(snapshot, config, failures, why.signal_ids if why is not None else ())
    return Decision(
        rule=RULE,
        choice="preempt",
        reason_code=PREEMPTED,
        sentence=_sentence(snapshot, taken, cause, newer, leave_s),
        key=f"preempt:{attempt.number}",
        actions=(
            EndAttempt(number=attempt.number, grace_s=leave_s),
            *yielded(taken),
            *out_of_service(snapshot, config, failures),
            *((SettleSignals(signal_ids=settled),) if settled else ()),
        ),
        evidence={
            "resumes_at_step": snapshot.job.committed_step - lost,
            "lost_steps": lost,
            "devices": devices,
            "urgent": ", ".join(request.urgent for request in taken if request.urgent),
            "expected_gpu_s": max(request.value for request in taken),
        },
        signal_ids=tuple(sorted({signal for failure in failures for signal in failure.signal_ids})),
        cost_gpu_s=lost * step_s * devices + _again_s(snapshot, config) * devices,
        title=of_failures(snapshot, failures) or short(asked(taken[0])),
    )


def _why_now(
    snapshot: JobSnapshot, config: PolicyConfig, taken: tuple[RequestFact, ...], why: RestartReason | None
) -> str | None:
    """Why the attempt ends though it is not saved, in words; "": it is; None: it does not end yet."""
    since_s = min(request.taken_s if request.taken_s is not None else request.asked_s for request in taken)
    if snapshot.job.committed_step <= newest_kept(snapshot):
        return ""
    if any(c.committed_s >= since_s and c.holders is None and c.state in TRUSTED for c in snapshot.checkpoints):
        return ""
    if why is not None:
        return f"nobody is left who could save ({why.sentence})"
    refused = next((r.carried for r in taken if r.carried not in ("", SUCCEEDED)), "")
    if refused:
        return f"the ranks did not save ({refused})"
    if snapshot.now_s >= since_s + grace_s(snapshot, config):
        return f"no checkpoint was committed within the {grace_s(snapshot, config):.0f} s that it had to save"
    return None


def _sentence(snapshot: JobSnapshot, taken: tuple[RequestFact, ...], cause: str, newer: int, leave_s: float) -> str:
    """Why, and what is kept and lost."""
    base = newest_kept(snapshot)
    wanted = "; ".join(asked(request) for request in taken)
    kept = f"the checkpoint of step {base}" if base else "step 0"
    if cause:
        return (
            f"{wanted}. {cause[:1].upper()}{cause[1:]}: the attempt ends all the same, and"
            f" {number_of(newer, 'step')} since {kept} {'is' if newer == 1 else 'are'} lost."
        )
    if leave_s:
        return (
            f"{wanted}. {kept[:1].upper()}{kept[1:]} is committed: the attempt ends. Its ranks save"
            f" {number_of(newer, 'newer step')} as they leave, within {leave_s:.0f} s."
        )
    return f"{wanted}. It ends at {kept}: the step in hand is trained again, no other is lost."


def _again_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Seconds until it trains again once it is placed."""
    learned = snapshot.learned
    return (learned.start_replica_s or config.default_start_s) + (learned.catch_up_s or config.default_catch_up_s)
