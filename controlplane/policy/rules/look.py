"""The job asked to be looked into now and then: one replica at a time, a few ranks of it.

What is found before anything goes wrong is what a later hang is compared with. Those taken are
counted on the job, which says whose turn it is, so a restart of the control plane neither
repeats nor skips one. While something is wrong the triggered looks have their turn.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, holds_state, installed, live_replicas
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import Decision, LookAtRanks
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState

RULE = "look"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one look, into a job that runs undisturbed."""
    job = snapshot.job
    when_s = due_s(snapshot)
    if when_s is None or snapshot.now_s < when_s or not attempt_live(snapshot) or not installed(snapshot):
        return ()
    if job.state is not JobState.RUNNING or job.finished or job.cancel_requested or job.incident_opened_s is not None:
        return ()
    training = sorted((r for r in live_replicas(snapshot) if holds_state(snapshot, r)), key=lambda r: r.index)
    if not training or find_failures(snapshot, config):
        return ()
    replica = training[job.looks_taken % len(training)]
    turn = job.looks_taken // len(training)
    ranks = ranks_of_turn(replica.world_size, job.spec.resiliency.look_ranks, turn)
    named = ", ".join(map(str, ranks))
    return (
        Decision(
            rule=RULE,
            choice="look",
            reason_code="scheduled_look",
            sentence=f"Look {job.looks_taken + 1}: stacks and Flight Recorder of rank {named} of replica"
            f" {replica.index}, every {job.spec.resiliency.look_every_s:.0f} s as the job's spec asks.",
            key=f"look:{job.looks_taken}",
            actions=(LookAtRanks(replica=replica.index, incarnation=replica.incarnation, ranks=ranks),),
            evidence={"number": job.looks_taken + 1, "ranks": named},
            routine=True,
        ),
    )


def due_s(snapshot: JobSnapshot) -> float | None:
    """Server time of the next look; None: the job asked for none."""
    every_s, attempt = snapshot.job.spec.resiliency.look_every_s, snapshot.attempt
    if every_s <= 0 or attempt is None:
        return None
    return max(snapshot.job.looked_s or 0.0, attempt.started_s) + every_s


def ranks_of_turn(world_size: int, at_most: int, turn: int) -> tuple[int, ...]:
    """All ranks of a replica where that many are allowed; else the next so many, round and round."""
    if world_size <= at_most:
        return tuple(range(world_size))
    return tuple(sorted((turn * at_most + place) % world_size for place in range(at_most)))
