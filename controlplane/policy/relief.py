"""One that still trains is relieved: another replica is started beside it, catches up, and one view
swaps the two (docs/adr/0029-relieved-before-it-leaves.md).

No two lives of one slot run at once: the successor is a slot of its own, an empty one that the attempt
does not need or one more. So an attempt has as many replicas as it was placed with, and one besides
for each that is being relieved; what is empty beyond that stays empty. Ranks are told that no more
compute than were placed, so the successor stands by until the view that swaps them promotes it.

Used by the rules that weigh (`straggler`), carry out (`swap`) and fill slots. Pure look-ups and
arithmetic; it orders nothing.
"""

from controlplane.policy.asked import Need, near, require
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.facts import (
    contributes,
    current_view,
    holds_state,
    installed,
    is_member,
    live_replicas,
    nodes_of,
)
from controlplane.policy.ladder import may_start, start_slots
from controlplane.policy.placement import Slot, place_replica, slots_of
from controlplane.policy.plan import StartReplica
from controlplane.policy.pools import pool_for
from controlplane.policy.slots import empty_slots, relieved, room, wanted
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.protocol.states import ReplicaState


def goes_at_once(state: ReplicaState, *, ordered_before: bool) -> bool:
    """A person orders it out: it waits for no successor when it was ordered before, or does not train."""
    return ordered_before or state is not ReplicaState.ACTIVE


def cannot(snapshot: JobSnapshot, replica: ReplicaFact) -> str:
    """Why nothing may be started beside this replica, devices apart; "" where it may."""
    if snapshot.attempt is None or snapshot.attempt.max_contributors is None:
        return "its ranks were started by an older release"
    if current_view(snapshot) is None or not is_member(snapshot, replica) or not holds_state(snapshot, replica):
        return "it does not train"
    return ""


def successor(
    snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, *, bad_slots: tuple[Slot, ...] = ()
) -> StartReplica | None:
    """The start of another replica on devices that are free while `replica` keeps its own; None: there
    are none, the last one came to nothing, or the budget is spent, which pays for no person's order."""
    surplus = _surplus(snapshot)
    if (surplus is not None and surplus.failed_starts > 0) or (spent(snapshot) and not replica.ordered_out):
        return None
    if snapshot.job.env_opens:
        # One question for all that may be asked about: each of its own would be asked one after the other.
        homes = map(nodes_of, (*live_replicas(snapshot), replica))
        require(snapshot, Need(replicas=1, ranks=replica.world_size, near=near(snapshot, homes)), config.fresh_s)
    pool = pool_for(snapshot, config, leaving=(replica,), bad_slots=bad_slots).without(slots_of(replica.placements))
    tp = snapshot.attempt.layout.tp if snapshot.attempt is not None else 1
    try:
        placements = place_replica(pool, replica.world_size, tp=tp)
    except Unsatisfiable:
        return None
    index = surplus.index if surplus is not None else max(slot.index for slot in snapshot.replicas) + 1
    lived = surplus.incarnation if surplus is not None else snapshot.job.past_lives.get(index, 0)
    newest = max(lived, snapshot.job.ahead.incarnations.get(index, 0))
    return StartReplica(replica=index, incarnation=newest + 1, placements=placements)


def may_leave(snapshot: JobSnapshot) -> tuple[ReplicaFact, ...]:
    """Those of the relieved whose places are taken: without them as many hold the newest state, in a
    view that is installed, as were placed. Those that do not hold it come first, and of all those that are out of the
    view already."""
    leaving, attempt = relieved(snapshot), snapshot.attempt
    if not leaving or attempt is None or not installed(snapshot):
        return ()
    holding = sum(holds_state(snapshot, r) for r in live_replicas(snapshot))
    behind = sum(not holds_state(snapshot, r) for r in leaving)
    over = holding - wanted(attempt)
    free = behind + over if over >= 0 else 0
    return tuple(sorted(leaving, key=lambda r: (holds_state(snapshot, r), is_member(snapshot, r), r.index))[:free])


def surplus(snapshot: JobSnapshot) -> ReplicaFact | None:
    """One more than was placed lives and leaves for nobody, as whom it was to relieve stays: of those that compute
    nothing the one that is least far, the newest. None: there is none."""
    staying = [r for r in live_replicas(snapshot) if not r.relieved and not r.ordered_out]
    idle = [replica for replica in staying if not contributes(snapshot, replica)]
    if snapshot.attempt is None or len(staying) <= wanted(snapshot.attempt) or not idle:
        return None
    far = [(holds_state(snapshot, r), is_member(snapshot, r), -r.state_since_s, -r.index) for r in idle]
    return min(zip(far, idle, strict=True), key=lambda each: each[0])[1]


def is_coming(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """Somebody is on the way who may take a place, or an empty slot may still be started."""
    staying = (r for r in live_replicas(snapshot) if not r.relieved and not r.ordered_out)
    if any(not holds_state(snapshot, replica) for replica in staying):
        return True
    return bool(start_slots(snapshot, config, _open(snapshot, config)))


def lacking(snapshot: JobSnapshot) -> int:
    """Successors that nobody has started and no empty slot stands for."""
    return room(snapshot) - len(empty_slots(snapshot))


def _open(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[ReplicaFact, ...]:
    return tuple(slot for slot in empty_slots(snapshot) if may_start(snapshot, config, slot))


def _surplus(snapshot: JobSnapshot) -> ReplicaFact | None:
    """The slot that was emptied last of those that the attempt does not need."""
    needed = {slot.index for slot in empty_slots(snapshot)}
    rest = (r for r in snapshot.replicas if r.state is ReplicaState.EVICTED and r.index not in needed)
    return max(rest, key=lambda slot: (slot.state_since_s, -slot.index), default=None)
