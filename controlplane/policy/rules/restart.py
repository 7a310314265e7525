"""The attempt cannot go on: end it and place the next one from a trusted checkpoint.

1. A budget that is spent, or an exit code that asks for it, fails the job with a reason.
2. Else re-plan the layout for the devices that are left and place it in the same breath.
3. Else end the attempt and go back to pending; `lifecycle` places it when it can, and after
   a pause if nodes would start nothing of it.
"""

from controlplane.policy.budget import spent as spent_budget
from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import PolicyError
from controlplane.policy.facts import pool_for
from controlplane.policy.failures import actionable
from controlplane.policy.goodput import failure_costs
from controlplane.policy.ladder import RestartReason, out_of_service, restart_reason
from controlplane.policy.placement import Pool, place_gang
from controlplane.policy.plan import (
    UNPAID,
    Action,
    Decision,
    EndAttempt,
    ResolveIncident,
    SetJobState,
    SettleSignals,
)
from controlplane.policy.proved import Failure
from controlplane.policy.rules.lifecycle import best_effort_spares, layout_for, place_attempt, resume_words
from controlplane.policy.rules.replica_failure import alternatives, look_first
from controlplane.policy.snapshot import AttemptFact, JobSnapshot
from controlplane.protocol.spec import ranks_per_replica
from controlplane.protocol.states import UNFIT, JobState

RULE = "restart"


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
    if spent:
        code = why.code if why.final else "budget_spent"
        return (_fail(snapshot, attempt, failures, code, why, spent),)
    return (_again(snapshot, config, attempt, failures, why),)


def _again(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    attempt: AttemptFact,
    failures: tuple[Failure, ...],
    why: RestartReason,
) -> Decision:
    pool = pool_for(
        snapshot,
        config,
        leaving=snapshot.replicas,
        bad_nodes=tuple(node for failure in failures for node in failure.bad_nodes),
        bad_slots=tuple(slot for failure in failures for slot in failure.bad_slots),
    )
    costs = failure_costs(snapshot, config, lost=max(1, len(failures)), survivors=0, spare_ready=False, gone=True)
    choice, outcome, moves = _next(snapshot, pool, why)
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=why.code,
        sentence=f"Attempt {attempt.number} ends, {why.sentence}{_causes(failures)}; {outcome}.",
        key=f"restart:{attempt.number}",
        actions=(
            *look_first(failures),
            EndAttempt(number=attempt.number, grace_s=0.0),
            *moves,
            *out_of_service(snapshot, failures),
            *_settle(snapshot, failures, why),
        ),
        evidence={
            "free_devices": pool.size,
            "restarts_total": snapshot.budget.restarts_total,
            "no_progress_cycles": snapshot.budget.no_progress_cycles,
        },
        alternatives=alternatives(costs, "restart"),
        signal_ids=_signal_ids(snapshot, failures, why),
        cost_gpu_s=costs.restart_s,
    )


def _next(snapshot: JobSnapshot, pool: Pool, why: RestartReason) -> tuple[str, str, tuple[Action, ...]]:
    """(choice, what comes of it in words, actions): the next attempt, or the queue."""
    queue = (SetJobState(to=JobState.PENDING),)
    if why.code == UNFIT:
        return "queue", "its starts are tried again after a pause", queue
    try:
        layout = layout_for(snapshot, pool)
        placements = place_gang(pool, layout.replicas, ranks_per_replica(layout.parallelism), tp=layout.parallelism.tp)
        spares = best_effort_spares(snapshot.job.spec, pool, placements)
        order = place_attempt(snapshot, pool, layout, spares)
    except PolicyError as error:
        return "queue", f"waits for devices: {error}", queue
    outcome = f"attempt {order.number} starts {resume_words(snapshot, order)} ({layout.reason})"
    state = () if snapshot.job.state is JobState.STARTING else (SetJobState(to=JobState.STARTING),)
    return "restart", outcome, (order, *state)


def _fail(
    snapshot: JobSnapshot,
    attempt: AttemptFact,
    failures: tuple[Failure, ...],
    code: str,
    why: RestartReason,
    spent: str,
) -> Decision:
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
            *out_of_service(snapshot, failures),
            *_settle(snapshot, failures, why),
            ResolveIncident(note=sentence),
        ),
        evidence={
            "restarts_total": snapshot.budget.restarts_total,
            "restarts_in_window": snapshot.budget.restarts_in_window,
            "no_progress_cycles": snapshot.budget.no_progress_cycles,
        },
        signal_ids=_signal_ids(snapshot, failures, why),
    )


def _causes(failures: tuple[Failure, ...]) -> str:
    if not failures:
        return ""
    return " (" + "; ".join(f"replica {f.replica.index}: {f.sentence}" for f in failures) + ")"


def _signal_ids(snapshot: JobSnapshot, failures: tuple[Failure, ...], why: RestartReason) -> tuple[str, ...]:
    """Everything said about this attempt's ranks, and what the failures rest on. A
    silent node stays open until it speaks."""
    about_ranks = ("rank_exit", "rank_overdue", "outer_error", "setup_timeout", "nan_loss")
    causes = {signal for failure in failures for signal in failure.signal_ids} | set(why.signal_ids)
    return tuple(
        signal.id
        for signal in snapshot.signals
        if signal.kind in about_ranks or (signal.id in causes and signal.kind != "node_silent")
    )


def _settle(snapshot: JobSnapshot, failures: tuple[Failure, ...], why: RestartReason) -> tuple[Action, ...]:
    ids = _signal_ids(snapshot, failures, why)
    return (SettleSignals(signal_ids=ids),) if ids else ()
