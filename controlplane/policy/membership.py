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

MAX_DONORS = 2
"""A joiner fetches from so many at once: one more than it needs, so that losing one costs nothing."""


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """No install is possible until this replica has left the view."""

    replica: int
    incarnation: int
    reason: str


def next_view(
    *,
    job_id: str,
    attempt: int,
    epoch: int,
    members: tuple[Member, ...],
    before: View | None,
    reason: str,
    at_step: int | None = None,
    left_out: tuple[Member, ...] = (),
    returning: tuple[int, ...] = (),
) -> View:
    """The view of `epoch` over `members` (any order, one a replica), with donors for every
    joiner, due at `at_step`. A joiner keeps those it already fetches from while one of them still holds the
    state; the others get `MAX_DONORS`: standbys first, which compute nothing, then the
    least busy contributors. Kept and new ones are never mixed: a new donor would offer the
    state of a later step, of which nothing has been fetched. Besides those that are `left_out`
    now, whoever was is out still, unless its replica is a member again; besides those that are
    `returning` now, whoever was and has not caught up."""
    ordered = tuple(sorted(members, key=lambda member: member.replica))
    assert len({member.replica for member in ordered}) == len(ordered), "one member a replica"
    return View(
        job_id=job_id,
        attempt=attempt,
        epoch=epoch,
        members=ordered,
        donors=_donors(ordered, before),
        reason=reason,
        at_step=at_step,
        left_out=_still_out(ordered, left_out, before),
        returning=_still_returning(ordered, returning, before),
    )


def _still_out(members: tuple[Member, ...], left_out: tuple[Member, ...], before: View | None) -> tuple[Member, ...]:
    again = {member.replica for member in (*members, *left_out)}
    kept = [member for member in (before.left_out if before else ()) if member.replica not in again]
    return tuple(sorted((*left_out, *kept), key=lambda member: member.replica))


def _still_returning(members: tuple[Member, ...], returning: tuple[int, ...], before: View | None) -> tuple[int, ...]:
    joiners = {(member.replica, member.incarnation) for member in members if member.role is MemberRole.JOINER}
    old = before.members if before else ()
    was = {m.replica for m in old if before and m.replica in before.returning and (m.replica, m.incarnation) in joiners}
    return tuple(sorted(was | set(returning)))


def _donors(members: tuple[Member, ...], before: View | None) -> tuple[Donor, ...]:
    joiners = [member for member in members if member.role is MemberRole.JOINER]
    busy = {member.replica: member.role is MemberRole.CONTRIBUTOR for member in members if member not in joiners}
    chosen = _kept_donors(members, before)
    load = {replica: sum(replica in donors for donors in chosen.values()) for replica in busy}
    for joiner in joiners:
        if joiner.replica in chosen:
            continue
        order = sorted(busy, key=lambda replica: (busy[replica], load[replica], replica))
        chosen[joiner.replica] = order[:MAX_DONORS]
        for donor in chosen[joiner.replica]:
            load[donor] += 1
    return tuple(Donor(joiner=joiner, donor=donor) for joiner, donors in sorted(chosen.items()) for donor in donors)


def _kept_donors(members: tuple[Member, ...], before: View | None) -> dict[int, list[int]]:
    """Joiner to its donors of the view before that still hold the state, all incarnations unchanged."""
    kept: dict[int, list[int]] = {}
    if before is None:
        return kept
    alive = {(member.replica, member.incarnation): member.role for member in members}
    old = {member.replica: member.incarnation for member in before.members}
    holding = (MemberRole.CONTRIBUTOR, MemberRole.STANDBY)
    for pair in before.donors:
        joins = alive.get((pair.joiner, old.get(pair.joiner, -1))) is MemberRole.JOINER
        if joins and alive.get((pair.donor, old.get(pair.donor, -1))) in holding:
            kept.setdefault(pair.joiner, []).append(pair.donor)
    return kept


def missing_flushes(view: View, flushes: tuple[Flush, ...], world_sizes: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """(replica, rank) pairs whose flush of this view is still awaited, sorted.
    `world_sizes` ranks by replica."""
    have: dict[int, set[int]] = {member.replica: set() for member in view.members}
    for replica, own in _by_replica(view, flushes).items():
        have[replica].update(flush.rank for flush in own)
    return tuple(
        (replica, rank)
        for replica in sorted(have)
        for rank in sorted(set(range(world_sizes.get(replica, 1))) - have[replica])
    )


def install(
    view: View, flushes: tuple[Flush, ...], world_sizes: dict[int, int], max_contributors: int | None = None
) -> Install | Refusal | None:
    """What lets the members of `view` go on.

    None: somebody has not flushed yet, or nobody contributes (then no install can ever
    come and the attempt must restart). A Refusal names the first replica that cannot be
    brought to the step. A member's role is what its ranks say: a joiner that had raised
    its ready flag in a committed step holds the state even if the view did not know; one that
    returns does not, whatever it says. Of those who hold it `max_contributors` contribute (None:
    all), those who did so far first; the others stand by. So a contributor that is gone is
    replaced by the very next view.
    """
    if missing_flushes(view, flushes, world_sizes):
        return None
    by_replica = {replica: own for replica, own in _by_replica(view, flushes).items() if replica not in view.returning}
    holding = {
        replica: own for replica, own in by_replica.items() if any(flush.role is not MemberRole.JOINER for flush in own)
    }
    if not holding:
        return None
    step, refusal = _step(by_replica, holding)
    if refusal:
        return refusal
    contributors = _contributors(holding, max_contributors)
    return Install(
        job_id=view.job_id,
        attempt=view.attempt,
        epoch=view.epoch,
        step=step,
        contributors=contributors,
        done=_done({replica: holding[replica] for replica in contributors}, step),
        standbys=tuple(sorted(set(holding) - set(contributors))),
    )


def _contributors(holding: dict[int, list[Flush]], limit: int | None) -> tuple[int, ...]:
    """Who computed before goes on; the lowest-numbered standbys fill up to `limit`."""
    waited = {r: all(flush.role is MemberRole.STANDBY for flush in own) for r, own in holding.items()}
    order = sorted(holding, key=lambda replica: (waited[replica], replica))
    return tuple(sorted(order[:limit]))


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
