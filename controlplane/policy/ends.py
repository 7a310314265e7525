"""When an attempt cannot go on, or should not: `restart_reason`.

Used by the rules `restart`, which carries it out, and `replica_failure` and `replace`, which leave
the floor to it.
"""

import msgspec

from controlplane.policy import numerics, ways
from controlplane.policy.bars import standing
from controlplane.policy.checkpoints import fall_back, led_astray, newest_trusted
from controlplane.policy.config import PolicyConfig
from controlplane.policy.exits import EXIT_DO_NOT_REQUEUE
from controlplane.policy.facts import (
    all_joined,
    attempt_live,
    current_view,
    holds_state,
    installed,
    live_replicas,
    missing_ranks,
    signals_of,
    verdict_on_flushes,
)
from controlplane.policy.ladder import may_still_start, setup_over
from controlplane.policy.plan import ORDERED, UNPAID
from controlplane.policy.pools import why_none
from controlplane.policy.proved import Failure
from controlplane.policy.slots import empty_slots
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of
from controlplane.policy.void import is_void
from controlplane.protocol.states import UNFIT

TOO_FEW = ("all_lost", "no_contributor", "below_min_replicas")
"""Reasons that say only how many are left, so that why they are gone is the cause."""


SPIKED = "loss_spike"
BAD_NUMBERS = ("nan_loss", "numerics_reproduced", SPIKED)
"""Reasons for which what the attempt began with is not begun with again."""


class RestartReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why the attempt cannot go on. `final`: nor can any other attempt."""

    code: str
    sentence: str
    final: bool = False
    signal_ids: tuple[str, ...] = ()


def restart_reason(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> RestartReason | None:
    """None: enough replicas that hold the newest state are left to go on without a stop. Where too few are because
    people had them leave, it is called by that name, whether they are on their way out or gone: it is no failure."""
    if not attempt_live(snapshot):
        return None
    why = _cannot_go_on(snapshot, config, failures)
    suffered = {failure.kind for failure in failures} - set(UNPAID)
    if why is None or why.code not in TOO_FEW or suffered:
        return why
    if failures:
        return _named(snapshot, why, failures)
    empty = empty_slots(snapshot)
    return msgspec.structs.replace(why, code=ORDERED) if empty and all(slot.ordered_out for slot in empty) else why


def _named(snapshot: JobSnapshot, why: RestartReason, failures: tuple[Failure, ...]) -> RestartReason:
    """Too few are left, through an order or through refused starts alone: called by that name."""
    if any(failure.kind == ORDERED for failure in failures):
        return msgspec.structs.replace(why, code=ORDERED)
    lost = {failure.replica.index for failure in failures}
    if why.code == "all_lost" and all(replica.refused for replica in snapshot.replicas if replica.index not in lost):
        return RestartReason(code=UNFIT, sentence="no node would start a replica")
    return why


def _cannot_go_on(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> RestartReason | None:
    """Why no smaller rung than a new attempt is left."""
    asked = _asked_to_end(snapshot, config, failures)
    if asked is not None:
        return RestartReason(
            code="do_not_requeue", sentence=f"{asked.sentence}: it asks not to be restarted", final=True
        )
    alike = numerics.reproduced(snapshot)
    if alike:
        what = f"step {numerics.step_of(alike[0])} gives the same refused result on {len(alike)} devices"
        return RestartReason(
            code="numerics_reproduced",
            sentence=f"{what}: the software or the data is to blame, no device",
            signal_ids=tuple(signal.id for signal in alike),
        )
    if any(not is_void(snapshot, signal) for signal in signals_of(snapshot, "nan_loss")):
        return RestartReason(code="nan_loss", sentence="the loss is not a number, in every replica alike")
    spiked = tuple(signal for signal in signals_of(snapshot, SPIKED) if not is_void(snapshot, signal))
    if spiked and _may_fall_back(snapshot):
        return RestartReason(
            code=SPIKED,
            sentence=f"after the restart the loss is {spiked[0].value:.3g}, before it was {spiked[0].threshold:.3g}"
            " at most",
        )
    lost = {failure.replica.index for failure in failures}
    left = [replica for replica in live_replicas(snapshot) if replica.index not in lost]
    if current_view(snapshot) is None:
        return _never_starts(snapshot, config, failures, left)
    return _too_few(ways.case_of(snapshot, config, failures))


def _may_fall_back(snapshot: JobSnapshot) -> bool:
    """Without what the attempt began with, and saved of it since, there is still something to resume from."""
    astray = led_astray(snapshot, at_once=True)
    return bool(astray.bad) and newest_trusted(fall_back(snapshot, astray).checkpoints) is not None


def _asked_to_end(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Failure | None:
    """The failure whose exit code speaks for the whole job. While others train with the same
    configuration it speaks for its node alone; before anything has trained a second node must
    say the same, or nobody else be left."""
    asked = [f for f in failures if f.evidence.get("exit_code") == EXIT_DO_NOT_REQUEUE]
    lost = {failure.replica.index for failure in failures}
    left = [replica for replica in live_replicas(snapshot) if replica.index not in lost]
    if current_view(snapshot) is not None:
        left = [replica for replica in left if holds_state(snapshot, replica)]
        return asked[0] if asked and not left else None
    nodes = {node for f in asked for node in f.bad_nodes}
    nodes |= {bar.node_id for bar in standing(snapshot, config) if bar.code == EXIT_DO_NOT_REQUEUE}
    return asked[0] if asked and (not left or len(nodes) > 1) else None


def _never_starts(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], left: list[ReplicaFact]
) -> RestartReason | None:
    """Before the first view: all that came up failed, or its set-up time is over and nothing
    that may still come makes up the number that must be."""
    attempt = snapshot.attempt
    assert attempt is not None, "called for a live attempt"
    if failures:
        return None if left else RestartReason(code="all_lost", sentence="no replica came up")
    needed = max(1, snapshot.job.spec.resources.min_replicas)
    if len(left) >= needed or not setup_over(snapshot) or may_still_start(snapshot, config):
        return None
    if not all(all_joined(replica) for replica in left):
        return None
    return RestartReason(
        code="below_min_replicas",
        sentence=f"{len(left)} of {attempt.replicas} replicas came up, {needed} must be, and"
        f" {why_none(snapshot, 'no free device fits another')}",
    )


def _too_few(case: ways.Case) -> RestartReason | None:
    snapshot, left = case.snapshot, len(case.holders)
    if not left:
        return RestartReason(code="no_contributor", sentence="no replica with the newest state is left")
    left_words = f"{number_of(left, 'replica')} {'is' if left == 1 else 'are'} left"
    if left < case.needed and not ways.may_hold(case):
        return RestartReason(code="below_min_replicas", sentence=f"{left_words}, {case.needed} must be")
    view = current_view(snapshot)
    if view is None or installed(snapshot) or case.failures:
        return None
    flushed = not missing_ranks(snapshot)
    if flushed and verdict_on_flushes(snapshot) is None:
        return RestartReason(code="no_contributor", sentence="every member flushed and none of them contributes")
    return None
