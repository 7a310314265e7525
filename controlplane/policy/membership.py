"""Who trains, from which step, with which micro-batches: the view protocol's arithmetic.

Theory of operation. A step commits in two phases: every rank first holds the reduced
gradients (*prepared*), then a barrier tells all of them that all are prepared, and only
then the optimizer steps. So when a view is flushed, two contributors can differ by one
step at most, and the one behind must be prepared: it can roll forward from what it
holds. Whoever is further behind broke the protocol and cannot be made equal without a
transfer of state, so its replica is refused (`behind`) and must be left out.
"""

import msgspec

from controlplane.protocol.membership import Donor, Flush, Install, Member, MemberRole, ReplicaDone, View


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No install is possible until this replica has left the view."""

    replica: int
    incarnation: int
    reason: str


def next_view(
    *, job_id: str, attempt: int, epoch: int, members: tuple[Member, ...], before: View | None, reason: str
) -> View:
    """The view of `epoch` over `members` (any order, one a replica), with a donor for
    every joiner. A joiner keeps the donor it already fetches from while that one still
    contributes; the others are spread over the least busy contributors."""
    ordered = tuple(sorted(members, key=lambda member: member.replica))
    assert len({member.replica for member in ordered}) == len(ordered), "one member a replica"
    return View(
        job_id=job_id,
        attempt=attempt,
        epoch=epoch,
        members=ordered,
        donors=_donors(ordered, before),
        reason=reason,
    )


def _donors(members: tuple[Member, ...], before: View | None) -> tuple[Donor, ...]:
    joiners = [member for member in members if member.role is MemberRole.JOINER]
    load = {member.replica: 0 for member in members if member.role is MemberRole.CONTRIBUTOR}
    if not load:
        return ()
    kept = _kept_donors(members, before)
    for donor in kept.values():
        load[donor] += 1
    chosen = dict(kept)
    for joiner in joiners:
        if joiner.replica in chosen:
            continue
        donor = min(load, key=lambda replica: (load[replica], replica))
        load[donor] += 1
        chosen[joiner.replica] = donor
    return tuple(Donor(joiner=joiner, donor=donor) for joiner, donor in sorted(chosen.items()))


def _kept_donors(members: tuple[Member, ...], before: View | None) -> dict[int, int]:
    """Joiner to donor pairs of the view before that still hold, both incarnations unchanged."""
    if before is None:
        return {}
    alive = {(member.replica, member.incarnation): member.role for member in members}
    old = {member.replica: member.incarnation for member in before.members}
    return {
        pair.joiner: pair.donor
        for pair in before.donors
        if alive.get((pair.joiner, old.get(pair.joiner, -1))) is MemberRole.JOINER
        and alive.get((pair.donor, old.get(pair.donor, -1))) is MemberRole.CONTRIBUTOR
    }


def missing_flushes(view: View, flushes: tuple[Flush, ...], world_sizes: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """(replica, rank) pairs whose flush of this view is still awaited, sorted.
    `world_sizes` ranks by replica."""
    have = {
        (flush.replica, flush.rank)
        for flush in flushes
        if flush.epoch == view.epoch and (flush.replica, flush.incarnation) in _incarnations(view)
    }
    wanted = {(m.replica, rank) for m in view.members for rank in range(world_sizes.get(m.replica, 1))}
    return tuple(sorted(wanted - have))


def install(view: View, flushes: tuple[Flush, ...], world_sizes: dict[int, int]) -> Install | Refusal | None:
    """What lets the members of `view` go on.

    None: somebody has not flushed yet, or nobody contributes (then no install can ever
    come and the attempt must restart). A Refusal names the first replica that cannot be
    brought to the step. A member's role is what its ranks say: a joiner that had raised
    its ready flag in a committed step is a contributor even if the view did not know.
    """
    if missing_flushes(view, flushes, world_sizes):
        return None
    by_replica = _by_replica(view, flushes)
    contributing = {
        replica: own
        for replica, own in by_replica.items()
        if any(flush.role is MemberRole.CONTRIBUTOR for flush in own)
    }
    if not contributing:
        return None
    step, refusal = _step(by_replica, contributing)
    if refusal:
        return refusal
    return Install(
        job_id=view.job_id,
        attempt=view.attempt,
        epoch=view.epoch,
        step=step,
        contributors=tuple(sorted(contributing)),
        done=_done(contributing, step),
    )


def _step(by_replica: dict[int, list[Flush]], contributing: dict[int, list[Flush]]) -> tuple[int, Refusal | None]:
    """The step the group stands at, and who cannot be brought there.

    A joiner votes in both phases, so a step that a joiner alone has committed is
    committed: every contributor is prepared for it and rolls forward. Should one of them
    not be (a joiner that lies about its step), it is the joiner that is refused. Where
    everybody left is prepared, a member that died since may have committed the step, and
    told of it: it is committed.
    """
    step = max(flush.committed_step for own in contributing.values() for flush in own)
    if _all_prepared(by_replica, contributing, step):
        step += 1
    ahead = [own for replica, own in by_replica.items() if _furthest(own) > step and replica not in contributing]
    furthest = max((_furthest(own) for own in ahead), default=step)
    if furthest > step and all(_refuse(own, furthest) is None for own in contributing.values()):
        step, ahead = furthest, []
    suspects = [*ahead, *(contributing[replica] for replica in sorted(contributing))]
    return step, next(filter(None, (_refuse(own, step) for own in suspects)), None)


def _all_prepared(by_replica: dict[int, list[Flush]], contributing: dict[int, list[Flush]], step: int) -> bool:
    """Everybody who took part in `step` holds its reduced gradient, and nobody has committed it."""
    in_step = [own for replica, own in by_replica.items() if replica in contributing or _furthest(own) >= step]
    return all(flush.prepared and flush.committed_step == step for own in in_step for flush in own)


def _furthest(own: list[Flush]) -> int:
    return max(flush.committed_step for flush in own)


def _incarnations(view: View) -> frozenset[tuple[int, int]]:
    return frozenset((member.replica, member.incarnation) for member in view.members)


def _by_replica(view: View, flushes: tuple[Flush, ...]) -> dict[int, list[Flush]]:
    members = _incarnations(view)
    grouped: dict[int, list[Flush]] = {member.replica: [] for member in view.members}
    for flush in flushes:
        if flush.epoch == view.epoch and (flush.replica, flush.incarnation) in members:
            grouped[flush.replica].append(flush)
    return grouped


def _refuse(own: list[Flush], step: int) -> Refusal | None:
    for flush in sorted(own, key=lambda flush: flush.rank):
        behind = step - flush.committed_step
        if behind == 0 or (behind == 1 and flush.prepared):
            continue
        state = "prepared" if flush.prepared else "not prepared"
        return Refusal(
            replica=flush.replica,
            incarnation=flush.incarnation,
            reason=f"rank {flush.rank} stands at step {flush.committed_step}, {state}, the group at {step}",
        )
    return None


def _done(contributing: dict[int, list[Flush]], step: int) -> tuple[ReplicaDone, ...]:
    """Finished micro-batches that may be kept, each by one replica only.

    A gradient buffer is a sum: nothing can be taken out of it. So a replica keeps all
    it has or nothing: nothing if its ranks differ (one died in mid-pipeline), if a rank
    has yet to roll forward (its gradients are of the step behind), or if another
    replica already holds one of them.
    """
    taken: set[int] = set()
    kept: list[ReplicaDone] = []
    for replica in sorted(contributing):
        lists = {
            frozenset(flush.done_micro_batches) if flush.done_step == step == flush.committed_step else frozenset()
            for flush in contributing[replica]
        }
        own = lists.pop() if len(lists) == 1 else frozenset()
        if not own or own & taken:
            continue
        taken |= own
        kept.append(ReplicaDone(replica=replica, micro_batches=tuple(sorted(own))))
    return tuple(kept)
