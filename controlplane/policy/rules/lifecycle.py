"""From pending to the first view, and the orderly ends: cancelled, out of its time and succeeded."""

import zlib

import msgspec

from controlplane.policy import time_limit
from controlplane.policy.asked import require
from controlplane.policy.budget import spent, unpaid
from controlplane.policy.checkpoints import newest_loadable, skipped_corrupt
from controlplane.policy.config import PolicyConfig
from controlplane.policy.elastic import (
    Gang,
    first_within,
    gang,
    later_attempt,
    later_replicas,
    may_start_smaller,
    quota_left,
    spare_nodes,
    what_is_left,
)
from controlplane.policy.errors import PolicyError, Unsatisfiable
from controlplane.policy.facts import (
    TERMINAL_JOB,
    attempt_live,
    current_view,
    following_view,
    left_out,
    nodes_of,
    segment_evidence,
    tag,
)
from controlplane.policy.first_view import first_members
from controlplane.policy.ladder import attempt_due_s, attempt_pool
from controlplane.policy.layout import Layout, plan_layout
from controlplane.policy.leaving import kept_words
from controlplane.policy.placement import Pool, first_pool, place_gang
from controlplane.policy.plan import (
    Action,
    AnnounceView,
    Decision,
    EndAttempt,
    PlaceAttempt,
    ResolveIncident,
    Scalar,
    SetJobState,
)
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.slots import wanted
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.timeouts import grace_needed_s
from controlplane.policy.titles import number_of
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count
from controlplane.protocol.states import QUEUED_JOB, STARTING_JOB, UNFIT, AttemptState, IncidentOutcome, JobState

RULE = "lifecycle"

STARTED_JOB = STARTING_JOB | {JobState.RUNNING, JobState.RECOVERING}

RESUMES = JobState.RESUMING
_OUTCOMES = {
    JobState.SUCCEEDED: IncidentOutcome.RECOVERED,
    JobState.FAILED: IncidentOutcome.LOST,
    JobState.CANCELLED: IncidentOutcome.WITHDRAWN,
}


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """First match: ended already, cancel, time limit, finish (once nobody computes steps again), place, first view."""
    job = snapshot.job
    if job.state in TERMINAL_JOB:
        return ()
    if job.ahead.end and job.state in STARTED_JOB:
        sentence = (
            f"It had ended already ({job.ahead.end}), as node {job.ahead.node} reports: this server's database was"
            " restored to an earlier state, or the report was lost."
        )
        return (_end(snapshot, JobState(job.ahead.end), "set_back", sentence, config.stop_grace_s),)
    if job.cancel_requested:
        return (_cancel(snapshot),)
    if not job.finished and (leaves := time_limit.leaves_s(snapshot)) is not None and snapshot.now_s >= leaves:
        return (_out_of_time(snapshot),)
    if job.finished and job.end_held_until_s is not None and snapshot.now_s < job.end_held_until_s:
        return ()
    if job.finished:
        sentence = f"All {job.spec.training.steps} steps are committed."
        return (_end(snapshot, JobState.SUCCEEDED, "all_steps_committed", sentence, config.stop_grace_s),)
    budget = "" if unpaid(snapshot) else spent(snapshot)
    if not attempt_live(snapshot) and snapshot.attempt is not None and budget and job.state is JobState.PENDING:
        return (_end(snapshot, JobState.FAILED, "budget_spent", f"It is not placed again: {budget}.", 0.0),)
    if not attempt_live(snapshot):
        return (_place(snapshot, config),) if job.state in QUEUED_JOB and not _leaves(snapshot) else ()
    if current_view(snapshot) is None:
        return _first_view(snapshot, config)
    return ()


def place_attempt(
    snapshot: JobSnapshot, pool: Pool, layout: Layout, spare_nodes: tuple[str, ...], *, bounded: bool
) -> PlaceAttempt:
    """The order for the next attempt with this layout, resuming from the newest trusted
    checkpoint. `bounded`: by its project's quota, so that it has places for the rest. Raises Unsatisfiable."""
    placements = place_gang(pool, layout.replicas, ranks_per_replica(layout.parallelism), tp=layout.parallelism.tp)
    nodes = frozenset(place.node_id for replica in placements for place in replica)
    trusted = newest_loadable(snapshot.checkpoints, layout.parallelism, nodes)
    gave = snapshot.attempt is not None and snapshot.attempt.yielded > 0
    later = later_replicas(snapshot.job.spec, layout, gave=gave or bounded)
    return PlaceAttempt(
        number=max(snapshot.attempt.number if snapshot.attempt else 0, snapshot.job.ahead.attempt) + 1,
        epoch=max(snapshot.job.epoch, snapshot.job.ahead.epoch) + 1,
        layout=msgspec.structs.replace(layout.parallelism, dp=layout.replicas + later),
        placements=placements,
        yielded=later,
        resume_path=trusted.path if trusted else None,
        resume_step=trusted.step if trusted else 0,
        spare_nodes=spare_nodes,
    )


def resume_words(snapshot: JobSnapshot, order: PlaceAttempt) -> str:
    """From where it resumes, and which checkpoints were passed over."""
    chosen = next((fact for fact in snapshot.checkpoints if fact.path == order.resume_path), None)
    where = " on the nodes' disks" if chosen and chosen.holders is not None else ""
    start = f"from the checkpoint of step {chosen.step}{where} ({chosen.state})" if chosen else "from step 0"
    passed = skipped_corrupt(snapshot.checkpoints, chosen)
    if not passed:
        return start
    return f"{start}; passed over as corrupt: step {', '.join(str(fact.step) for fact in passed)}"


def _place(snapshot: JobSnapshot, config: PolicyConfig) -> Decision:
    """Place the whole gang or say what is missing. The first attempt waits for all it
    asked for; a later one takes what is left, if its job allows that."""
    spec = snapshot.job.spec
    if not snapshot.job.env_opens:
        return _wait_for_key(snapshot)
    if snapshot.job.parked_by:
        return _parked(snapshot)
    if snapshot.now_s < attempt_due_s(snapshot, config):
        return _pause(snapshot)
    if snapshot.queue is not None and not snapshot.queue.may_start:
        return _queued(snapshot, snapshot.queue)
    pool = _open_pool(snapshot, config)
    try:
        layout, placements, spares, used = _arrange(snapshot, config, pool)
    except PolicyError as error:
        return _wait(snapshot, f"{error}.{left_out(snapshot)}{kept_words(snapshot, config)}", pool.size)
    order = place_attempt(snapshot, used, layout, spares, bounded=quota_left(snapshot) is not None)
    assert order.placements == placements, "placing is deterministic"
    nodes = sorted({p.node_id for replica in placements for p in replica})
    return Decision(
        rule=RULE,
        choice="place",
        reason_code="capacity_found",
        sentence=f"Attempt {order.number} starts {number_of(layout.replicas, 'replica')}"
        f" on {number_of(len(nodes), 'node')}"
        f" {resume_words(snapshot, order)} ({layout.reason}; {what_is_left(snapshot, layout)}).",
        key=f"place:{order.number}",
        actions=(order, SetJobState(to=RESUMES if snapshot.job.state is JobState.PREEMPTED else JobState.STARTING)),
        evidence={
            "replicas": layout.replicas,
            "asked_replicas": replica_count(spec),
            "free_devices": pool.size,
            "spare_nodes": ", ".join(spares),
            **segment_evidence(snapshot, nodes),
        },
    )


def _leaves(snapshot: JobSnapshot) -> bool:
    """Ranks of the attempt that was preempted still save and leave: the next one would fence them."""
    attempt = snapshot.attempt
    return snapshot.job.state is JobState.PREEMPTED and attempt is not None and attempt.state is AttemptState.STOPPING


def _open_pool(snapshot: JobSnapshot, config: PolicyConfig) -> Pool:
    """Where the next attempt may go. Nodes that would not start the last one are left out if the
    others hold as many replicas."""
    pool = attempt_pool(snapshot, config)
    others = pool.without_nodes(
        {node for replica in snapshot.replicas if replica.refused for node in nodes_of(replica)}
    )
    if others == pool:
        return pool
    try:
        as_many = _arrange(snapshot, config, others)[0].replicas >= _arrange(snapshot, config, pool)[0].replicas
    except PolicyError:
        return pool
    return others if as_many else pool


def _arrange(snapshot: JobSnapshot, config: PolicyConfig, pool: Pool) -> tuple[Layout, Gang, tuple[str, ...], Pool]:
    """With the part of the pool that it takes. A first attempt has the shape that was asked for, or, of an elastic job
    for which there is no room so, any."""
    spec, most = snapshot.job.spec, quota_left(snapshot)
    if snapshot.attempt is None:
        need = gang(snapshot, replica_count(spec), spec.parallelism)
        need = msgspec.structs.replace(need, of_each=spec.resources.gpus_per_node)
        require(snapshot, need, config.fresh_s)
        if most is not None:
            first_within(spec, min(pool.size, most))
        else:
            try:
                return *first_attempt(spec, pool), first_pool(spec, pool)
            except PolicyError:
                if not may_start_smaller(spec, pool.size):
                    raise
    return *later_attempt(snapshot, config, pool, most=most), pool


def first_attempt(spec: TrainSpec, pool: Pool) -> tuple[Layout, Gang, tuple[str, ...]]:
    """All that a job asks for, its spares too, or nothing; a dry run asks the same. Raises
    PolicyError with what is missing."""
    replicas, per_replica = replica_count(spec), ranks_per_replica(spec.parallelism)
    try:
        placements = place_gang(first_pool(spec, pool), replicas, per_replica, tp=spec.parallelism.tp)
        spares = spare_nodes(spec, pool, placements)
    except Unsatisfiable as error:
        wanted = spec.resources.gpu_type
        raise Unsatisfiable(f"{error} (of type {wanted})" if wanted else str(error)) from error
    return plan_layout(spec, max(replicas * per_replica, pool.size)), placements, spares


def _wait(snapshot: JobSnapshot, reason: str, free: int) -> Decision:
    number = snapshot.attempt.number if snapshot.attempt else 0
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code="no_capacity",
        sentence=f"Waits for devices: {reason}",
        key=f"wait:{number}:{free}:{snapshot.job.epoch}:{zlib.crc32(reason.encode())}",
        actions=(),
        evidence={"free_devices": free},
    )


def _queued(snapshot: JobSnapshot, place: QueuePlace) -> Decision:
    """It asks the fleet for nothing. That others leave the queue ahead of it is no news."""
    number = snapshot.attempt.number if snapshot.attempt else 0
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code="queued",
        sentence=place.sentence,
        key=f"queued:{number}:{snapshot.job.epoch}:{place.turn}:{place.behind}",
        actions=(),
        evidence={
            "place": place.place,
            "waiting": place.waiting,
            "turn": str(place.turn),
            "behind": place.behind,
            "expected_s": place.expected_s,
        },
    )


def _wait_for_key(snapshot: JobSnapshot) -> Decision:
    """Without its environment its ranks would train something else, or fail one by one."""
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code="env_sealed",
        sentence="Waits for an administrator: the values of its env were sealed with another"
        " HOLDFAST_SECRET_KEY. Name that key in HOLDFAST_SECRET_KEY_FALLBACKS and restart the"
        " server's processes, or cancel the job and submit it again.",
        key=f"env_sealed:{snapshot.job.epoch}",
        actions=(),
        evidence={"variables": ", ".join(sorted(snapshot.job.spec.env))[:200]},
    )


def _parked(snapshot: JobSnapshot) -> Decision:
    """A person has taken its devices from it, and gives it back its turn."""
    number = snapshot.attempt.number if snapshot.attempt else 0
    job = snapshot.job
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code="parked",
        sentence=f"It is {parked_words(job.name, job.parked_by)}.",
        key=f"parked:{number}:{zlib.crc32(job.parked_by.encode())}",
        actions=(),
        evidence={"parked_by": job.parked_by},
    )


def parked_words(name: str, by: str) -> str:
    """What it waits for. `by`: who preempted it, and why."""
    return f"parked ({by}) until somebody resumes it: `holdfast job resume {name}`"


def _pause(snapshot: JobSnapshot) -> Decision:
    """Nothing ran, so nothing is charged; but it is not tried over and over either."""
    attempt = snapshot.attempt
    assert attempt is not None, "a pause follows an attempt"
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code=UNFIT,
        sentence=f"Waits before it is placed again: no node would start attempt {attempt.number}.",
        key=f"pause:{attempt.number}",
        actions=(),
        evidence={"refused_attempts": attempt.refused_attempts},
    )


def _first_view(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """When every replica that can still come has come, all of them contribute."""
    attempt = snapshot.attempt
    assert attempt is not None, "called for a live attempt"
    joined = first_members(snapshot, config)
    if not joined:
        return ()
    view = following_view(snapshot, joined, f"{len(joined)} of {attempt.replicas} replicas are up")
    return (
        Decision(
            rule=RULE,
            choice="first_view",
            reason_code="all_joined" if len(joined) == wanted(attempt) else "setup_time_over",
            sentence=f"{len(joined)} of {attempt.replicas} replicas are up: view {view.epoch} starts training.",
            key=f"first_view:{attempt.number}:{view.epoch}:{','.join(tag(r) for r in joined)}",
            actions=(AnnounceView(view=view),),
            evidence={"joined": len(joined), "replicas": attempt.replicas},
            routine=True,
        ),
    )


def _cancel(snapshot: JobSnapshot) -> Decision:
    """SIGTERM, save, leave; the grace is what the spec gives, or what a save is known to need."""
    given_s, p95_s = snapshot.job.spec.scheduling.preempt_grace_s, snapshot.learned.save_p95_s
    needed_s = grace_needed_s(p95_s)
    short = given_s > 0 and needed_s > given_s
    sentence = "Its user cancelled it."
    if short:
        sentence += (
            f" Its grace of {given_s:.0f} s is less than its saves take (95 of 100 within {p95_s:.1f} s):"
            f" it gets {needed_s:.0f} s."
        )
    decision = _end(snapshot, JobState.CANCELLED, "cancelled", sentence, needed_s if short else given_s)
    evidence: dict[str, Scalar] = {"grace_given_s": given_s, "save_p95_s": p95_s, "grace_extended": short}
    return msgspec.structs.replace(decision, evidence=evidence)


def _out_of_time(snapshot: JobSnapshot) -> Decision:
    """SIGTERM, save, leave; SIGKILL at the limit and no later."""
    settings, end_s = snapshot.job.spec.scheduling, time_limit.ends_s(snapshot)
    assert end_s is not None, "it has a limit"
    left_s = max(0.0, end_s - snapshot.now_s)
    leave = attempt_live(snapshot) or _leaves(snapshot)
    sentence = (
        f"Its time limit of {settings.time_limit_s:.0f} s ends in {left_s:.0f} s, counted from its first attempt:"
        f" {'its ranks save and leave, and ' if leave else ''}it is not placed again. A job that is submitted in its"
        " place begins at step 0."
    )
    decision = _end(snapshot, JobState.CANCELLED, "time_limit", sentence, left_s)
    evidence: dict[str, Scalar] = {"time_limit_s": settings.time_limit_s, "left_s": round(left_s, 3)}
    return msgspec.structs.replace(decision, evidence=evidence)


def _end(snapshot: JobSnapshot, to: JobState, code: str, sentence: str, grace_s: float) -> Decision:
    attempt = snapshot.attempt
    actions: list[Action] = []
    if attempt is not None and attempt.state is not AttemptState.ENDED:
        actions.append(EndAttempt(number=attempt.number, grace_s=grace_s))
    actions += [SetJobState(to=to), ResolveIncident(note=sentence, outcome=_OUTCOMES[to])]
    return Decision(
        rule=RULE, choice=str(to), reason_code=code, sentence=sentence, key=f"end:{to}", actions=tuple(actions)
    )
