"""The head of the queue lacks room, or quota, and jobs of lower priority may yield: ask those that lose the least.

The queue's plan names them (`policy.queue.preempt`). Each is asked by a request of its own and answers in its own
pass: for some of its replicas (`give_replicas`), whose others train on, or for all it has (`preempt_request`), which
saves first. When its devices are free the head is placed as any job is; when the head is
cancelled, or placed elsewhere, the requests are withdrawn.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live
from controlplane.policy.ladder import attempt_due_s
from controlplane.policy.plan import Alternative, AskPreemption, Decision
from controlplane.policy.queue.place import QueuePlace, Turn, Victim
from controlplane.policy.requests import why_over
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import number_of
from controlplane.protocol.states import QUEUED_JOB

RULE = "make_room"
MAX_NAMED = 3


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one, that asks all victims at once."""
    place, job = snapshot.queue, snapshot.job
    if place is None or not place.victims or job.state not in QUEUED_JOB or attempt_live(snapshot):
        return ()
    if why_over(snapshot) or job.parked_by or not job.env_opens or snapshot.now_s < attempt_due_s(snapshot, config):
        return ()
    return (_ask(snapshot, place),)


def _ask(snapshot: JobSnapshot, place: QueuePlace) -> Decision:
    victims, priority = place.victims, snapshot.job.spec.scheduling.priority
    lost_gpu_s = sum(victim.lost_gpu_s for victim in victims)
    chosen = "it was chosen because it loses the least"
    gives = [victim for victim in victims if victim.gives]
    what = (
        "save and yield" if not gives else "give replicas" if len(gives) == len(victims) else "yield, or give replicas,"
    )
    return Decision(
        rule=RULE,
        choice="preempt",
        reason_code="outranked",
        sentence=f"{named(victims)} {'is' if len(victims) == 1 else 'are'} asked to {what} to this job of"
        f" priority {priority}{_quota(place)}: that is expected to lose the least, {lost_gpu_s:.0f} GPU-seconds.",
        key="make_room:" + ",".join(f"{victim.id}.{victim.attempt}.{victim.asked}" for victim in victims),
        actions=tuple(
            AskPreemption(
                victim=victim.id,
                attempt=victim.attempt,
                lost_gpu_s=victim.lost_gpu_s,
                why=f"{_because(victim, priority)}{_quota(place)}; {chosen}: {loses(victim)}",
                gives=victim.gives,
            )
            for victim in victims
        ),
        evidence={
            "victims": len(victims),
            "devices": sum(victim.devices for victim in victims),
            **{f"lost_gpu_s_{victim.name}": round(victim.lost_gpu_s, 1) for victim in victims[:MAX_NAMED]},
        },
        alternatives=(Alternative(action="wait", cost_gpu_s=None, why_not=_waits(snapshot, place)),),
        cost_gpu_s=lost_gpu_s,
    )


def named(victims: tuple[Victim, ...]) -> str:
    """Some by name, the others counted."""
    names = [f"{victim.name} (priority {victim.priority}{_part(victim)})" for victim in victims[:MAX_NAMED]]
    more = len(victims) - len(names)
    return ", ".join(names) + (f" and {number_of(more, 'other job')}" if more else "")


def _because(victim: Victim, priority: int) -> str:
    """Why it yields to a job of this priority."""
    return f"{victim.borrows} uses more than its quota" if victim.borrows else f"priority {priority}"


def _quota(place: QueuePlace) -> str:
    """Where it lacks no devices, but those of its project's quota."""
    return ", for which the quota of its project has too few devices left" if place.turn is Turn.QUOTA else ""


def _part(victim: Victim) -> str:
    part = f", {len(victim.gives)} of {number_of(victim.trains, 'replica')}" if victim.gives else ""
    return part + (f", of {victim.borrows}, which uses more than its quota" if victim.borrows else "")


def loses(victim: Victim) -> str:
    """What its price is made of, in words."""
    if victim.gives:
        stays = victim.trains - len(victim.gives)
        return (
            f"{victim.lost_gpu_s:.0f} GPU-seconds to start {number_of(len(victim.gives), 'replica')} again on"
            f" {number_of(victim.devices, 'device')}; meanwhile {stays} of its {victim.trains} replicas train on"
        )
    save = "no save of it was measured" if victim.save_s is None else f"a save takes {victim.save_s:.1f} s"
    return (
        f"{victim.lost_gpu_s:.0f} GPU-seconds on {number_of(victim.devices, 'device')}"
        f" ({victim.at_risk_s:.0f} s of training are not saved, {save})"
    )


def _waits(snapshot: JobSnapshot, place: QueuePlace) -> str:
    if place.expected_s is None:
        return "nobody knows when running jobs end"
    return f"it would be expected to start in {place.expected_s - snapshot.now_s:.0f} s"
