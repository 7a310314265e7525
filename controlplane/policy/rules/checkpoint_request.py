"""A person asks for a checkpoint: the ranks are told to save, and it has ended when one newer is committed."""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, installed
from controlplane.policy.plan import Decision, RequestCheckpoint
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import SUCCEEDED, answer, ended_early, of_kind
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import CheckpointState, RequestKind, RequestState

RULE = "checkpoint_request"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer to each that has come further."""
    answers = (_answer(snapshot, request) for request in of_kind(snapshot, RequestKind.CHECKPOINT))
    return tuple(found for found in answers if found is not None)


def _answer(snapshot: JobSnapshot, request: RequestFact) -> Decision | None:
    early = ended_early(snapshot, request, RULE)
    if early is not None:
        return early
    if request.state is RequestState.OPEN:
        # While a view is on its way nobody has a step's boundary ahead at which to save.
        if not attempt_live(snapshot) or not installed(snapshot):
            return None
        saves = "The ranks save at the boundary of their next step."
        return answer(RULE, request, RequestState.TAKEN, saves, RequestCheckpoint(kind="manual"))
    # One on the nodes' own disks is gone with them, and one that is corrupt was never whole.
    kept = (c for c in snapshot.checkpoints if c.holders is None and c.state is not CheckpointState.CORRUPT)
    newer = max((c.step for c in kept if c.committed_s >= request.asked_s), default=None)
    if newer is not None:
        return answer(RULE, request, RequestState.DONE, f"The checkpoint of step {newer} is committed.")
    if request.carried not in ("", SUCCEEDED):
        return answer(RULE, request, RequestState.REFUSED, f"The ranks did not save: {request.carried}.")
    if snapshot.now_s >= request.valid_until_s:
        return answer(RULE, request, RequestState.LAPSED, "No checkpoint was committed in its time.")
    return None
