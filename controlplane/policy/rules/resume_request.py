"""A person gives a parked job its turn back: it is in the queue again, by its priority and its age."""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import Decision, ParkJob
from controlplane.policy.requests import answer, ended_early, of_kind
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import RequestKind, RequestState

RULE = "resume_request"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer to each."""
    found: list[Decision] = []
    for request in of_kind(snapshot, RequestKind.RESUME):
        early = ended_early(snapshot, request, RULE)
        if early is not None:
            found.append(early)
        elif snapshot.job.parked_by:
            resumes = "It continues from its newest checkpoint as soon as there is room for it."
            found.append(answer(RULE, request, RequestState.DONE, resumes, ParkJob(by="")))
        else:
            found.append(answer(RULE, request, RequestState.DONE, "It is not parked: nothing keeps it from its turn."))
    return tuple(found)
