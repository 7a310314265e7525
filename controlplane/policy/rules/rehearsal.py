"""A fault the job asked for is due: give it to its rank.

The decision is the record of it: counted, it says how many have been given, so a schedule
neither repeats nor skips one when the control plane or the job restarts. What follows is
handled like any other failure; nothing is told beforehand to the rules that judge it.
"""

from controlplane.policy import rehearsal
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, contributes, installed, live_replicas, node_name
from controlplane.policy.plan import Decision, InjectFault
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState

RULE = "rehearsal"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one fault, and only into a job that runs undisturbed."""
    job = snapshot.job
    if job.training_s is None or not attempt_live(snapshot) or not installed(snapshot):
        return ()
    if job.state is not JobState.RUNNING or job.finished or job.cancel_requested:
        return ()
    training = {r.index: r for r in live_replicas(snapshot) if contributes(snapshot, r)}
    world_size = max((replica.world_size for replica in training.values()), default=1)
    due = rehearsal.due(
        job.spec,
        training_s=job.training_s,
        fired=job.faults_fired,
        replicas=tuple(sorted(training)),
        ranks_per_replica=world_size,
    )
    if due is None:
        return ()
    replica = training[due.target[0]]
    home = next((p.node_id for p in replica.placements if p.rank == due.target[1]), None)
    times = job.spec.resiliency.faults.times
    return (
        Decision(
            rule=RULE,
            choice=due.kind,
            reason_code="scheduled_fault",
            sentence=f"Rehearsal {due.number + 1} of {times}: {due.kind} for rank {due.target[1]} of replica "
            f"{replica.index} on {node_name(snapshot, home)}, as the job's spec asks.",
            key=f"rehearsal:{due.number}",
            actions=(
                InjectFault(
                    replica=replica.index,
                    incarnation=replica.incarnation,
                    rank=due.target[1],
                    fault=due.fault,
                    value=due.value,
                ),
            ),
            evidence={"number": due.number + 1, "times": times, "training_s": round(job.training_s, 3)},
        ),
    )
