"""`reconcile_job`: load -> decide -> apply until nothing new is decided.

Level-triggered: it reads the world, not the event that rang. Called by Celery (fast), by
the sentinel (the net) and by tests; the job's row lock makes any number of callers one.

0. Look without the lock: most wake-ups tell nothing that asks for a decision. Rows that change
   under this look ring again after their commit, so that what it missed is seen next time.
1. Lock the job; end an attempt whose processes are all gone, also of a job that is over.
2. Load the snapshot, decide, apply each decision that was not made before, commit.
3. Behind the commit: start what those decisions start in the slots that they emptied.
4. Look again, up to MAX_PASSES, as one decision may make the next possible.
5. Store when to look next.
"""

import time

from django.db import IntegrityError

from controlplane.checkpoints.services import distrust_if_outside
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.services import JOB, TERMINAL
from controlplane.policies import selectors as policies
from controlplane.policy.errors import PolicyError
from controlplane.policy.plan import Decision, PlaceAttempt, Plan
from controlplane.protocol.states import QUEUED_JOB, STARTING_JOB, AttemptState, JobState
from controlplane.recovery import disruption, queue_pass
from controlplane.recovery.apply import Behind, already_taken, apply_decision, left_of, settle_stopping, start_behind
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.load_candidates import decided
from controlplane.runtime import collecting, events, metrics
from controlplane.runtime.clock import after, age_s, from_s, now, now_s
from controlplane.runtime.errors import Conflict
from controlplane.runtime.locks import lock_fleet, lock_row, retrying
from controlplane.runtime.logs import get
from controlplane.runtime.prepared import MOMENT, TEXT, Prepared

MAX_PASSES = 8
RETRY_S = 0.5
FAULT_RETRY_S = 5.0
LEFT_RETRY_S, LEFT_LATEST_S, LEFT_RATIO = 5.0, 300.0, 0.1
"""A job that is over is looked at so often while its attempt has not ended, as nothing wakes it when a node goes out of
reach with its last processes: more and more seldom, by this share of the time since it is over."""
# One placement at a time while a gang is sought; elsewhere the constraint on held devices is enough.
PLACES = QUEUED_JOB | STARTING_JOB | {JobState.RECOVERING}

_DUE: Prepared[str] = Prepared(
    lambda job, moment: Job.objects.filter(pk=job, due_at__lte=moment).values_list("pk", flat=True),
    job=TEXT, moment=MOMENT,
)  # fmt: skip
_STOPPING: Prepared[int] = Prepared(
    lambda job: Attempt.objects.filter(job=job, state=AttemptState.STOPPING).values_list("pk", flat=True)[:1], job=TEXT
)
_log = get(__name__)


def reconcile_job(job_id: str, *, sure: bool = False) -> int:
    """Returns how many decisions were made. A broken job is put off and stalls no other.
    `sure`: a decision is certain, so the look without the lock is left out."""
    made = 0
    try:
        for number in range(MAX_PASSES):
            if not (sure and number == 0) and _nothing_to_decide(job_id):
                break
            new, behind = retrying(lambda: _locked_pass(job_id), f"reconcile {job_id}")
            made += new
            for each in behind:
                _follow(each)
            if not new:
                break
    except Exception:
        # One of the two catch-alls (style.md): the fault is recorded, the job is looked at later.
        _log.exception("reconcile failed", job_id=job_id)
        metrics.DECISIONS.labels(action="none", trigger="error", mode="enforce", result="error").inc()
        Job.objects.filter(pk=job_id).update(due_at=after(FAULT_RETRY_S))
    return made


def is_due(job_id: str) -> bool:
    """It was rung, or its moment has come, and nobody has looked since."""
    return _DUE.first(job=job_id, moment=now()) is not None


def _nothing_to_decide(job_id: str) -> bool:
    """A look without locks; it writes nothing but when to look next."""
    job = JOB.first(job=job_id)
    if job is None or job.state in TERMINAL or _STOPPING.first(job=job_id) is not None:
        return False
    try:
        _, plan = decided(load_snapshot(job), job, policies.of_job(job_id))
    except (PolicyError, LookupError, ValueError):
        # Torn between two commits of somebody else: under the lock it is whole.
        return False
    if any(not already_taken(job, decision) for decision in plan.decisions):
        return False
    due = from_s(plan.next_pass_s) if plan.next_pass_s is not None else None
    stored = job.due_at
    if (stored is not None and stored <= now()) or (due is not None and (stored is None or due < stored)):
        Job.objects.filter(pk=job_id, due_at=stored).update(due_at=due)
    return True


def _locked_pass(job_id: str) -> tuple[int, list[Behind]]:
    """One transaction, from the look to the last write; (decisions made, what is to follow behind its
    commit). While there is more to do the job stays due, should this process die now."""
    with collecting.paused(), events.unit_of_work():
        job = lock_row(Job, job_id)
        if job is None:
            return 0, []
        settle_stopping(job)
        if job.state in TERMINAL:
            left = job.attempts.filter(state=AttemptState.STOPPING).exists()
            Job.objects.filter(pk=job_id).update(due_at=after(_left_s(job)) if left else None)
            return 0, []
        if job.state in PLACES:
            lock_fleet()
        waited = job.state in QUEUED_JOB
        plan, new, behind = _one_pass(job)
        if waited and job.state not in QUEUED_JOB:
            queue_pass.wake_front()
        if new:
            Job.objects.filter(pk=job_id).exclude(state__in=TERMINAL).update(due_at=now())
        else:
            _store_next_pass(job, plan)
    return new, behind


def _left_s(job: Job) -> float:
    """After how many seconds a job that is over is looked at again."""
    over_s = age_s(job.finished_at) or 0.0
    return min(LEFT_LATEST_S, max(LEFT_RETRY_S, LEFT_RATIO * over_s))


def _follow(behind: Behind) -> None:
    """Nobody waits for it who trains, and what comes of it is looked at by the next pass, as the job is due."""
    job_id, key = behind.row.job_id, behind.decision.key
    try:
        started = retrying(lambda: start_behind(behind), f"start behind {job_id}")
    except (Conflict, PolicyError, LookupError, IntegrityError) as error:
        # A device was taken, or a node left service, since the decision.
        _log.info("start undone", job_id=job_id, key=key, error=str(error))
    else:
        _log.info("started", job_id=job_id, key=key, replicas=started)


def _one_pass(job: Job) -> tuple[Plan, int, list[Behind]]:
    """Load, decide, apply; (plan, decisions that were new, those whose starts follow)."""
    snapshot, by = load_snapshot(job), policies.in_force(job.id)
    begin = time.monotonic()
    snapshot, plan = decided(snapshot, job, by.config, locked=True)
    decide_s = time.monotonic() - begin
    made, behind = 0, list[Behind]()
    new = [decision for decision in plan.decisions if not already_taken(job, decision)]
    guarded = disruption.guarded(new)
    for decision in new:
        if _resumes_from_outside(job, decision):
            # The ladder has changed: decide again without that checkpoint.
            return plan, made + 1, behind
        try:
            with events.attempt():
                if guarded:
                    disruption.check(decision, by.config)
                row = apply_decision(job, decision, snapshot, by=by, decide_s=decide_s)
        except (Conflict, PolicyError, IntegrityError) as error:
            # A lost race (a device was taken, a row has moved): the world is looked at anew.
            _log.info("decision undone", job_id=job.id, key=decision.key, error=str(error))
            job.refresh_from_db()
            return _again_soon(plan), 0, behind
        made += 1
        behind += left_of(row, decision, snapshot)
        job.refresh_from_db()
        _log.info("decided", job_id=job.id, rule=decision.rule, choice=decision.choice, key=decision.key)
    return plan, made, behind


def _resumes_from_outside(job: Job, decision: Decision) -> bool:
    """The decision would resume from a path that is none of the job's (now distrusted)."""
    paths = [a.resume_path for a in decision.actions if isinstance(a, PlaceAttempt) and a.resume_path]
    return any(distrust_if_outside(job, path) for path in paths)


def _again_soon(plan: Plan) -> Plan:
    """The same plan, to be looked at again in RETRY_S."""
    return Plan(decisions=plan.decisions, next_pass_s=now_s() + RETRY_S)


def _store_next_pass(job: Job, plan: Plan) -> None:
    due = from_s(plan.next_pass_s) if plan.next_pass_s is not None else None
    Job.objects.filter(pk=job.pk).update(due_at=None if job.state in TERMINAL else due)
