"""Which replicas have failed, and how that is known.

Detectors in order of strength; the first that speaks about a replica names its failure.
`proved` ones rest on positive evidence (a process is gone, a device is gone). The others
rest on silence or slowness: they never speak while our own side is blind, and the disruption
budget may hold them; none rests on a finding that later facts have made void. Those that
are `reversible` say enough to leave a replica out and not to end it. A replica whose ranks
all wait for others is never a culprit.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from controlplane.policy import flaps, silence
from controlplane.policy.common import Common, common_stall, hung_by_section, waiting_in_a_step, without_common
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import Allowance
from controlplane.policy.disruption_counts import ActKind
from controlplane.policy.facts import (
    catch_up_patience_s,
    current_view,
    holds_state,
    homes_of,
    installed,
    is_correlated_failure,
    is_heard,
    is_member,
    is_of_view,
    lease_of,
    live_replicas,
    missing_ranks,
    setup_patience_s,
    signals_about,
    signals_of,
)
from controlplane.policy.few import stall_of_few
from controlplane.policy.once import per_pass
from controlplane.policy.proved import PROVED, Detector, Failure, signal_ids
from controlplane.policy.silence import silences_of, suspect_of
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.stuck import MUTE_S, stuck, unanswered
from controlplane.policy.timeouts import UNLEARNED_S
from controlplane.policy.void import READ, WORD_S, is_postponed, is_void, was_up
from controlplane.protocol.states import WAITING_PHASES, ReplicaState, Section


@per_pass
def find_failures(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Every replica of the current attempt that has failed by itself, by index: not by a cause
    that most of them share."""
    return without_common(every_failure(snapshot, config), common_stalls(snapshot, config))


@per_pass
def common_stalls(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Common, ...]:
    """The hangs that one cause explains, of each section, while they are not to be acted on as hangs."""
    hung = hung_by_section(snapshot, every_failure(snapshot, config))
    judged = (stall_of_few(snapshot, config, each) or common_stall(snapshot, config, each) for each in hung)
    stalls = tuple(stall for stall in judged if stall is not None and snapshot.now_s < stall.until_s)
    if not any(stall.told and stall.section == Section.CHECKPOINTING for stall in stalls):
        return stalls
    waits = waiting_in_a_step(hung)
    return tuple(
        msgspec.structs.replace(stall, waits=waits) if stall.section == Section.CHECKPOINTING else stall
        for stall in stalls
    )


@per_pass
def every_failure(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """With those that a common cause explains."""
    detectors = PROVED if snapshot.blind else (*PROVED, *INFERRED)
    found = []
    for replica in live_replicas(snapshot):
        spoken = (detector(snapshot, config, replica) for detector in detectors)
        failure = next((failure for failure in spoken if failure is not None), None)
        if failure is not None:
            found.append(failure)
    return tuple(found)


@per_pass
def actionable(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Failures whose processes may be ended now: the proved ones, and of the others what the disruption budget
    leaves."""
    failures = tuple(failure for failure in find_failures(snapshot, config) if not failure.reversible)
    left = Allowance(snapshot, config)
    for failure in failures:
        if failure.proved:
            left.takes(ActKind.EVICT, failure.replica.node_ids, proved=True)
    return tuple(f for f in failures if f.proved or left.takes(ActKind.EVICT, f.replica.node_ids))


@per_pass
def doubted(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Failures to leave out of the next view and to end nothing of; in a correlated failure none."""
    if is_correlated_failure(snapshot, config):
        return ()
    return tuple(failure for failure in find_failures(snapshot, config) if failure.reversible)


@per_pass
def held(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Failures the disruption budget keeps for a person. What can be taken back waits only while too much looks bad
    at once: an open breaker does not keep the others from going on without it."""
    free = {failure.replica.index for failure in (*actionable(snapshot, config), *doubted(snapshot, config))}
    found = find_failures(snapshot, config)
    return tuple(failure for failure in found if not failure.proved and failure.replica.index not in free)


def _overdue(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    found = signals_about(snapshot, "rank_overdue", replica)
    if replica.state is not ReplicaState.FORMING:
        # Who is to join and says nothing any more holds all others up.
        found = (*found, *(s for s in signals_about(snapshot, "setup_timeout", replica) if was_up(s)))
    signals = tuple(s for s in found if _holds(snapshot, s) and not _waits_for_a_silent_node(snapshot, replica, s))
    if not signals or (replica.waiting and not _mute(snapshot, replica, signals)):
        return None
    silent = _silent_ranks(snapshot, replica)
    accused = _accused(tuple(s for s in signals if s.rank in silent) or signals)
    worst = max(accused, key=lambda s: (s.value, s.threshold))
    late = sorted({s.rank for s in accused if s.rank is not None})
    named, ranks = _named(late), [str(rank) for rank in late]
    mute = _mute(snapshot, replica, signals)
    words = ", and its process says nothing: it is stopped, or its interpreter is locked" if mute else ""
    sentence = f"{named} made no progress for {worst.value:.1f} s, {worst.threshold:.1f} s are allowed"
    if silent and not set(silent) & set(late):
        # Who is overdue speaks: it waits for one that does not, and whose own limit is not over yet.
        ranks, words = [str(rank) for rank in silent], ""
        mute_one = f"the process of {_named(silent)} says nothing: it is stopped, or its interpreter is locked"
        sentence = f"{mute_one}; {sentence}"
    return Failure(
        replica=replica,
        kind="hang",
        proved=False,
        hung=True,
        sentence=sentence + words,
        signal_ids=signal_ids(signals),
        evidence={
            "age_s": worst.value,
            "timeout_s": worst.threshold,
            "rank": int(ranks[0]) if len(ranks) == 1 else worst.rank,
            "ranks": ", ".join(ranks),
            "cause": "frozen" if mute else "stuck",
        },
    )


def _named(ranks: Sequence[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {', '.join(names)}" if len(names) < 2 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _silent_ranks(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[int, ...]:
    """Whose process says nothing to its agent, which speaks itself, while another rank of the replica speaks: they
    are who hangs, and the others wait for them, whatever phase each has told last."""
    homes = {place.rank: snapshot.node_by_id.get(place.node_id) for place in replica.placements}
    silent_s = {rank: node.silent_s for rank, node in homes.items() if node is not None}
    return tuple(r for r in replica.silent_ranks if (unheard_s := silent_s.get(r)) is not None and unheard_s < MUTE_S)


def _holds(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """Nothing has refuted it, and its agent has spoken since or did just now."""
    return not is_postponed(signal) and not is_void(snapshot, signal)


def _waits_for_a_silent_node(snapshot: JobSnapshot, replica: ReplicaFact, signal: SignalFact) -> bool:
    """Ranks of its replica are on a node that is silent, and it is not: it may stand for want of them, and the silence
    has limits of its own."""
    silent = {found.node_id for found in silences_of(snapshot, replica)}
    return bool(silent) and silent.isdisjoint(p.node_id for p in replica.placements if p.rank == signal.rank)


def _accused(signals: tuple[SignalFact, ...]) -> tuple[SignalFact, ...]:
    """Which of a replica's overdue ranks may be the one that hangs: not one that itself waits for
    others, and of the rest those at the lowest step. What tells no two apart names both."""
    working = tuple(s for s in signals if s.evidence.get("phase") not in WAITING_PHASES) or signals
    steps = [step for s in working if isinstance(step := s.evidence.get("step"), int)]
    if len(steps) < len(working):
        return working
    return tuple(s for s in working if s.evidence["step"] == min(steps))


def _mute(snapshot: JobSnapshot, replica: ReplicaFact, signals: tuple[SignalFact, ...]) -> bool:
    """A stopped process says nothing at all: that it last said "waiting" excuses nothing. One that
    was silent when it was found late, and speaks now, is not stopped any more. While its agent is not heard for longer
    than agents are between two words, nobody knows."""
    limit_s = snapshot.job.spec.resiliency.timeouts.silence_s
    if replica.silent_s is not None:
        return replica.silent_s - max(0.0, _unread_s(snapshot, replica, signals) - WORD_S) > limit_s
    silent = [signal.evidence.get("silent_s") for signal in signals]
    return any(isinstance(value, (int, float)) and value > limit_s for value in silent)


def _unread_s(snapshot: JobSnapshot, replica: ReplicaFact, signals: tuple[SignalFact, ...]) -> float:
    """How long nothing has come from its agents, or no word of where these ranks are: of that nobody knows whether they
    spoke."""
    words = (read_s for signal in signals if isinstance(read_s := signal.evidence.get(READ), (int, float)))
    silent = (node.silent_s or 0.0 for node in homes_of(snapshot, replica))
    return max((*(snapshot.now_s - read_s for read_s in words), *silent), default=0.0)


def _unflushed(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    view = current_view(snapshot)
    if view is None or installed(snapshot) or not is_member(snapshot, replica):
        return None
    age_s = snapshot.now_s - snapshot.view_since_s
    if age_s < config.flush_timeout_s:
        return None
    missing = missing_ranks(snapshot).get(replica.index)
    if not missing:
        return None
    late = tuple(s for s in signals_about(snapshot, "rank_overdue", replica) if _holds(snapshot, s))
    silent = silences_of(snapshot, replica)
    dark = silence.lease_over(snapshot, config, replica)
    over = age_s >= flush_limit_s(snapshot, config, replica) and _could_tell(snapshot, config, replica)
    if not late and not silent and not dark and not over:
        return None
    ranks = ", ".join(map(str, missing))
    return Failure(
        replica=replica,
        kind="unflushed",
        proved=False,
        hung=not dark and not silent,
        reversible=bool(silent) and not late and not dark,
        sentence=f"view {view.epoch} waits for rank {ranks} since {age_s:.1f} s",
        bad_nodes=tuple(sorted({s.node_id for s in silent if s.node_id})),
        signal_ids=signal_ids((*late, *silent)),
        evidence={"view_age_s": round(age_s, 3), "missing_ranks": ranks},
    )


def _could_tell(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> bool:
    """Its nodes are heard: what would have ended a wait has come, however long we were away ourselves. Of a node that
    is not, its lease decides."""
    limit_s = lease_of(snapshot, config)
    homes = homes_of(snapshot, replica)
    return is_heard(snapshot, replica) or any(silence.node_lease_over(node, limit_s) for node in homes)


def flush_limit_s(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> float:
    """How long a member that speaks may take to flush: one that saves has a save's time, and its
    own agent tells when that is over."""
    if not replica.saving:
        return config.flush_limit_s
    given_s = snapshot.job.spec.resiliency.timeouts.checkpoint_s
    return max(config.flush_limit_s, UNLEARNED_S[Section.CHECKPOINTING] if isinstance(given_s, str) else given_s)


def _setup_timeout(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    limit_s = setup_patience_s(snapshot)
    signals = tuple(s for s in signals_about(snapshot, "setup_timeout", replica) if not is_void(snapshot, s))
    age_s = snapshot.now_s - replica.state_since_s
    late = age_s >= limit_s and replica.joined_ranks < replica.world_size and _could_tell(snapshot, config, replica)
    if replica.state is not ReplicaState.FORMING or not (signals or late):
        return None
    if signals:
        last = signals[-1]
        told = f"{last.value:.0f} s in setup, {last.threshold:.0f} s are allowed"
        sentence = str(last.evidence.get("detail") or told)
    else:
        sentence = f"{replica.joined_ranks} of {replica.world_size} ranks joined in {age_s:.0f} s of {limit_s:.0f} s"
    return Failure(
        replica=replica,
        kind="setup_timeout",
        proved=False,
        sentence=sentence,
        signal_ids=signal_ids(signals),
        evidence={"joined_ranks": replica.joined_ranks, "age_s": round(age_s, 3), "limit_s": limit_s},
    )


def _catch_up_timeout(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    age_s = snapshot.now_s - replica.state_since_s
    over = replica.contributing or replica.standby
    if replica.state is not ReplicaState.CATCHING_UP or over:
        return None
    limit_s = catch_up_patience_s(snapshot, config)
    if age_s < limit_s or not _could_tell(snapshot, config, replica):
        return None
    return Failure(
        replica=replica,
        kind="catch_up_timeout",
        proved=False,
        sentence=f"it did not catch up within {limit_s:.0f} s",
        evidence={"age_s": round(age_s, 3)},
    )


def _unreachable(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """After so many views with unchanged members the exchange still fails. Whom most errors name is ended.
    Where none names anybody, or as many name another, who it is was only inferred: it is left out first, and ended
    when the exchange fails with it again, or at once where too few that hold the newest state would be left
    without it."""
    errors = fresh_outer_errors(snapshot, config)
    if not errors or snapshot.reissued_views < config.max_reissues:
        return None
    most = _most_named(snapshot, errors)
    named = most[0] if len(most) == 1 else None
    suspect = named if named is not None else min(most) if most else _inferred(snapshot, errors)
    if suspect != replica.index:
        return None
    again = flaps.times_out(replica.times_out, replica.out_s, snapshot.now_s) > 1
    spared = named is None and not again and _enough_without(snapshot, replica)
    return Failure(
        replica=replica,
        kind="unreachable",
        proved=False,
        reversible=spared,
        sentence=f"the exchange failed again after {snapshot.reissued_views} views with the same members, and"
        f" {_accuser(snapshot, errors, replica, most)}",
        signal_ids=signal_ids(errors),
        evidence={"reissued_views": snapshot.reissued_views, "named": named is not None},
    )


def fresh_outer_errors(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[SignalFact, ...]:
    """Exchange failures of the installed view that no death has explained in time."""
    if not installed(snapshot):
        return ()
    fresh = tuple(s for s in signals_of(snapshot, "outer_error") if is_of_view(snapshot, s))
    if not fresh or snapshot.now_s - min(s.seen_s for s in fresh) < config.outer_error_grace_s:
        return ()
    return fresh


def _most_named(snapshot: JobSnapshot, errors: tuple[SignalFact, ...]) -> list[int]:
    """The members that most replicas name, by index: several where as many name each, none where nobody is named.
    Nobody's word counts about itself, nor to decide between itself and another."""
    members = {replica.index for replica in live_replicas(snapshot) if is_member(snapshot, replica)}
    words = {(error.replica, named) for error in errors if (named := suspect_of(error)) in members}
    most = _leaders({(who, named) for who, named in words if who != named})
    fair = _leaders({(who, named) for who, named in words if who not in most and named in most})
    return fair if len(fair) == 1 else most


def _leaders(words: set[tuple[int | None, int | None]]) -> list[int]:
    votes = Counter(named for _, named in words if named is not None)
    return sorted(index for index, count in votes.items() if count == max(votes.values()))


def _inferred(snapshot: JobSnapshot, errors: tuple[SignalFact, ...]) -> int | None:
    """The one member that did not complain, else the lowest that did: a guess."""
    quiet = _quiet(snapshot, errors)
    if len(quiet) == 1:
        return quiet[0]
    return min((error.replica for error in errors if error.replica is not None), default=None)


def _quiet(snapshot: JobSnapshot, errors: tuple[SignalFact, ...]) -> list[int]:
    reporters = {error.replica for error in errors}
    return [r.index for r in live_replicas(snapshot) if is_member(snapshot, r) and r.index not in reporters]


def _accuser(snapshot: JobSnapshot, errors: tuple[SignalFact, ...], replica: ReplicaFact, most: list[int]) -> str:
    if most == [replica.index]:
        return "the others name it"
    if most:
        return f"replicas {', '.join(map(str, most))} are named as often: that it is this one is a guess"
    if _quiet(snapshot, errors) == [replica.index]:
        return "it alone did not report it"
    return "nobody is named: that it is this one is a guess"


def _enough_without(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """The members that would be left hold the newest state, and are as many as the job needs."""
    left = (other for other in live_replicas(snapshot) if is_member(snapshot, other) and other is not replica)
    holders = sum(holds_state(snapshot, other) for other in left)
    return replica.state is not ReplicaState.FORMING and holders >= max(1, snapshot.job.spec.resources.min_replicas)


INFERRED: tuple[Detector, ...] = (
    _overdue,
    silence.node_silent,
    _unflushed,
    _setup_timeout,
    _catch_up_timeout,
    _unreachable,
    stuck,
    unanswered,
)
