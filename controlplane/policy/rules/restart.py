"""The attempt cannot go on: end it and place the next one from a trusted checkpoint.

1. A budget that is spent, or an exit code that asks for it, fails the job with a reason.
2. Else re-plan the layout for the devices that are left and place it in the same breath.
3. Else end the attempt and go back to pending; `lifecycle` places it when it can, and after
   a pause if nodes would start nothing of it.
"""

import msgspec

from controlplane.policy import prices, ways
from controlplane.policy.budget import spent as spent_budget
from controlplane.policy.checkpoints import Astray, fall_back, led_astray, newest_trusted
from controlplane.policy.config import PolicyConfig
from controlplane.policy.elastic import again as quota_again
from controlplane.policy.elastic import kept, later_attempt, what_bounds
from controlplane.policy.ends import BAD_NUMBERS, SPIKED, TOO_FEW, RestartReason, restart_reason
from controlplane.policy.errors import PolicyError
from controlplane.policy.failures import actionable
from controlplane.policy.ladder import attempt_pool, out_of_service, stays_open
from controlplane.policy.placement import Pool
from controlplane.policy.plan import (
    UNPAID,
    Action,
    Decision,
    DemoteCheckpoint,
    EndAttempt,
    RequestCheckpoint,
    ResolveIncident,
    SetJobState,
    SettleSignals,
    SuspectCheckpoint,
)
from controlplane.policy.pools import why_none
from controlplane.policy.proved import Failure
from controlplane.policy.rules.lifecycle import place_attempt, resume_words
from controlplane.policy.rules.replica_failure import look_first
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.snapshot import AttemptFact, JobSnapshot
from controlplane.policy.timeouts import grace_needed_s
from controlplane.policy.titles import of_failures, short
from controlplane.protocol.states import STARTING_JOB, UNFIT, IncidentOutcome, JobState

RULE = "restart"
OF_ATTEMPT = with_trait(Trait.ATTEMPT)
STILL_STEPS = 2.0
"""Without a commit for so many steps' time nothing is saved any more."""


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one restart (or the end) of the current attempt."""
    attempt = snapshot.attempt
    if attempt is None or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    why = restart_reason(snapshot, config, failures)
    if why is None:
        return ()
    spent = why.sentence if why.final else "" if why.code in UNPAID else spent_budget(snapshot)
    saving = _save_first(snapshot, config, failures, why)
    if saving is not None:
        return (saving,)
    if spent:
        return (_fail(snapshot, config, attempt, failures, why, spent),)
    return (again(snapshot, config, attempt, failures, why),)


def again(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    attempt: AttemptFact,
    failures: tuple[Failure, ...],
    why: RestartReason,
) -> Decision:
    """End the attempt and place the next one; where it finds no place, the job queues."""
    pool = attempt_pool(snapshot, config, failures)
    astray = led_astray(snapshot, at_once=why.code == SPIKED) if why.code in BAD_NUMBERS else Astray()
    choice, outcome, moves = _next(fall_back(snapshot, astray), config, pool, attempt, why)
    case = ways.case_of(snapshot, config, failures)
    cost_s = prices.restart_s(case.times, case.stakes)
    if choice == ways.QUEUE:
        cost_s = prices.queue_s(case.times, case.stakes)
    taken = ways.Way(action=choice, cost_gpu_s=cost_s)
    found = tuple(way if way.action != ways.RESTART else _not_now(way, outcome) for way in ways.ways_out(case))
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=why.code,
        sentence=f"Attempt {attempt.number} ends, {why.sentence}{_causes(failures)}; {outcome}.{_passed(astray)}",
        key=f"restart:{attempt.number}",
        actions=(
            *look_first(failures),
            EndAttempt(number=attempt.number, grace_s=0.0),
            *(DemoteCheckpoint(checkpoint_id=fact.id, reason=why.sentence) for fact in astray.bad),
            *(SuspectCheckpoint(checkpoint_id=fact.id, step=astray.suspect_step) for fact in astray.suspect),
            *moves,
            *out_of_service(snapshot, config, failures),
            *_settle(snapshot, config, failures, why),
        ),
        evidence={
            "free_devices": pool.size,
            "restarts_total": snapshot.budget.restarts_total,
            "no_progress_cycles": snapshot.budget.no_progress_cycles,
        },
        alternatives=ways.alternatives(found, taken, because=why.sentence),
        signal_ids=ended_with_it(snapshot, config, failures, why.signal_ids),
        cost_gpu_s=cost_s,
        title=of_failures(snapshot, failures) or short(why.sentence),
    )


def _passed(astray: Astray) -> str:
    steps = sorted({fact.step for fact in astray.bad})
    if not steps:
        return ""
    if len(steps) == 1:
        words = f" The checkpoint of step {steps[0]} is not resumed from again: what was trained from it went bad."
    else:
        named = f"{', '.join(map(str, steps[:-1]))} and {steps[-1]}"
        words = f" The checkpoints of steps {named} are not resumed from again: what was trained from them went bad."
    roots = ", ".join(map(str, sorted({fact.step for fact in astray.suspect})))
    if not roots:
        return words
    doubt = f"That of step {roots}, from which that was trained, is suspect now: it goes too if this happens again."
    return f"{words} {doubt}"


def _not_now(way: ways.Way, outcome: str) -> ways.Way:
    """As an alternative to the queue: what keeps the next attempt from starting."""
    return msgspec.structs.replace(way, cost_gpu_s=None, bar=outcome)


def _next(
    snapshot: JobSnapshot, config: PolicyConfig, pool: Pool, attempt: AttemptFact, why: RestartReason
) -> tuple[str, str, tuple[Action, ...]]:
    """(choice, what comes of it in words, actions): the next attempt, or the queue. What is placed again here has asked
    nobody: it takes back nothing that it yielded, and no more than its project's quota has for it."""
    queue = (SetJobState(to=JobState.PENDING),)
    if why.code == UNFIT:
        return "queue", "its starts are tried again after a pause", queue
    try:
        quota = quota_again(snapshot, config)
        if quota.why:
            return "queue", f"waits for its project's quota: {quota.why}", queue
        most, keeps = quota.at_most, kept(attempt)
        layout, _, spares = later_attempt(snapshot, config, pool, most=most, keeps=keeps)
        order = place_attempt(snapshot, pool, layout, spares, bounded=most is not None)
    except PolicyError as error:
        return "queue", why_none(snapshot, f"waits for devices: {error}"), queue
    words = f"{layout.reason}{what_bounds(most, keeps)}"
    outcome = f"attempt {order.number} starts {resume_words(snapshot, order)} ({words})"
    state = () if snapshot.job.state in STARTING_JOB else (SetJobState(to=JobState.STARTING),)
    return "restart", outcome, (order, *state)


def _save_first(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], why: RestartReason
) -> Decision | None:
    """The last holders of the newest state are to be ended for a device that still computes: they
    save it first. None once it is saved, when the steps stop, or when the save's time is over."""
    alive = [f for f in failures if f.kind == "xid_fatal" and f.replica.exited_ranks == 0 and not f.gone]
    trusted = newest_trusted(snapshot.checkpoints)
    newer = snapshot.job.committed_step - (trusted.step if trusted else 0)
    progressed_s = snapshot.job.progressed_s
    if why.code not in TOO_FEW or not failures or len(alive) < len(failures) or newer <= 0 or progressed_s is None:
        return None
    ids = {signal for failure in failures for signal in failure.signal_ids}
    seen_s = min(signal.seen_s for signal in snapshot.signals if signal.id in ids)
    limit_s = grace_needed_s(snapshot.learned.save_p95_s) or config.save_first_s
    pace_s = STILL_STEPS * (snapshot.learned.step_s or config.default_step_s) + config.witness_s
    saved = snapshot.saves.last_committed_s is not None and snapshot.saves.last_committed_s >= seen_s
    if saved or snapshot.now_s >= seen_s + limit_s or snapshot.now_s - progressed_s >= pace_s:
        return None
    return Decision(
        rule=RULE,
        choice="save_first",
        reason_code=why.code,
        sentence=f"{why.sentence.capitalize()}{_causes(failures)}. Its ranks still commit steps: they save the"
        f" {newer} steps since the last checkpoint first, for at most {limit_s:.0f} s, and the attempt ends then.",
        key=f"save_first:{','.join(sorted(ids))}",
        actions=(RequestCheckpoint(kind="emergency"),),
        evidence={
            "steps_at_risk": newer,
            "work_at_risk_s": prices.measured_at_risk_s(snapshot),
            "limit_s": limit_s,
        },
        signal_ids=tuple(sorted(ids)),
        cost_gpu_s=prices.at_risk_s(snapshot, config) * sum(r.world_size for r in snapshot.replicas),
    )


def _fail(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    attempt: AttemptFact,
    failures: tuple[Failure, ...],
    why: RestartReason,
    spent: str,
) -> Decision:
    code = why.code if why.final else "budget_spent"
    sentence = f"The job fails: {spent}. Last cause: {why.sentence}{_causes(failures)}."
    return Decision(
        rule=RULE,
        choice="fail",
        reason_code=code,
        sentence=sentence,
        key=f"fail:{attempt.number}",
        actions=(
            *look_first(failures),
            EndAttempt(number=attempt.number, grace_s=0.0),
            SetJobState(to=JobState.FAILED),
            *out_of_service(snapshot, config, failures),
            *_settle(snapshot, config, failures, why),
            ResolveIncident(note=sentence, outcome=IncidentOutcome.LOST),
        ),
        evidence={
            "restarts_total": snapshot.budget.restarts_total,
            "restarts_in_window": snapshot.budget.restarts_in_window,
            "no_progress_cycles": snapshot.budget.no_progress_cycles,
        },
        signal_ids=ended_with_it(snapshot, config, failures, why.signal_ids),
        title=of_failures(snapshot, failures) or short(why.sentence),
    )


def _causes(failures: tuple[Failure, ...]) -> str:
    if not failures:
        return ""
    return " (" + "; ".join(f"replica {f.replica.index}: {f.sentence}" for f in failures) + ")"


def ended_with_it(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], found: tuple[str, ...]
) -> tuple[str, ...]:
    """Ids of the findings that end with the attempt: everything reported about its ranks, what the failures rest on and
    what was `found`. A silent node stays open until it speaks, a device in a correlated failure until a person or its
    end decides."""
    causes = {signal for failure in failures for signal in failure.signal_ids} | set(found)
    return tuple(
        signal.id
        for signal in snapshot.signals
        if signal.kind in OF_ATTEMPT
        or (signal.id in causes and signal.kind != "node_silent" and not stays_open(snapshot, config, signal))
    )


def _settle(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], why: RestartReason
) -> tuple[Action, ...]:
    ids = ended_with_it(snapshot, config, failures, why.signal_ids)
    return (SettleSignals(signal_ids=ids),) if ids else ()
