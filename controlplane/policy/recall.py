"""Who was left out by a view that nobody has entered is taken back, where too few others hold the newest state.

No step has been committed without it: until that view is installed its members stand in the one before, as it does,
and a commit there needs every one of them. So a further view may take it back as what it was, and nothing is fetched.
A person who wants it out has it wait for another then, as the last holder does.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    all_joined,
    current_view,
    holds_state,
    installed,
    is_at_hand,
    is_left_out,
    is_member,
    live_replicas,
)
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import ORDERED
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.protocol.membership import Member, MemberRole


def recalled(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], *, needed: int
) -> tuple[ReplicaFact, ...]:
    """Those that the view without the failed members takes back; nobody where `needed` hold the state without them, or
    where nothing has failed: one that a person wants out leaves no view for another."""
    if installed(snapshot) or not any(f.kind != ORDERED and is_member(snapshot, f.replica) for f in failures):
        return ()
    lost = {failure.replica.index for failure in failures}
    lost |= {failure.replica.index for failure in find_failures(snapshot, config)}
    left = tuple(replica for replica in live_replicas(snapshot) if replica.index not in lost)
    if sum(holds_state(snapshot, replica) for replica in left) >= needed:
        return ()
    return tuple(replica for replica in left if role_kept(snapshot, replica) is not None)


def role_kept(snapshot: JobSnapshot, replica: ReplicaFact) -> MemberRole | None:
    """What it was in the view that is trained in, as long as no view has been installed since it was left out; None:
    one has, or it was a joiner, or it is not at hand."""
    view = current_view(snapshot)
    if view is None or installed(snapshot) or not is_left_out(snapshot, replica):
        return None
    if not all_joined(replica) or not is_at_hand(snapshot, replica):
        return None
    role = next(each.role for each in view.left_out if each.replica == replica.index)
    return None if role is MemberRole.JOINER else role


def as_before(snapshot: JobSnapshot, replica: ReplicaFact) -> Member:
    """As a member of the view that takes it back."""
    role = role_kept(snapshot, replica)
    assert role is not None, "it is recalled"
    return Member(replica=replica.index, incarnation=replica.incarnation, role=role)
