"""What people said of decisions that were only recommended, and when one is carried out all the same.

A recommendation is proposed by each pass for as long as it holds. Approved by as many people as it takes, or left
without an objection for the time that the job's spec names (of the fleet's own: its policy), it is carried out by the
next pass that still proposes it; so nothing is ever done on what has changed since somebody looked. Where the control
plane does not see well, nothing is taken for consent. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import Decision
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Mode, Verdict


class Asked(Protocol):
    """A snapshot, of a job or of the fleet, with what was recommended there."""

    @property
    def now_s(self) -> float:
        """Server seconds."""

    @property
    def recommended(self) -> Sequence[Recommendation]:
        """What was recommended, with what people said."""


def approvers_needed(cost_gpu_s: float | None, config: PolicyConfig) -> int:
    """How many people have to approve a decision that is expected to cost so many GPU-seconds (None: not priced)."""
    return 2 if cost_gpu_s is not None and cost_gpu_s > config.second_approver_gpu_s else 1


def consent(snapshot: Asked, decision: Decision, config: PolicyConfig, *, after_s: float, paused: bool) -> str:
    """Why a recommended decision is carried out now, in words; "" while it waits for a person, or was rejected.
    `after_s`: so long nobody may object (0: only a person's word counts), which says nothing while detection is
    `paused`."""
    known = next((each for each in snapshot.recommended if each.key == decision.key), None)
    if known is None or known.verdict is Verdict.REJECTED:
        return ""
    if len(known.approvers) >= approvers_needed(decision.cost_gpu_s, config):
        return f"Approved by {' and '.join(known.approvers)}."
    acts_s = act_at_s(known, after_s)
    if acts_s is None or snapshot.now_s < acts_s or paused:
        return ""
    return f"Nobody objected within {after_s:.0f} s of its recommendation."


def agreed(decision: Decision, why: str) -> Decision:
    """It is carried out, and says on whose word."""
    return msgspec.structs.replace(
        decision,
        mode=Mode.ENFORCE,
        sentence=f"{decision.sentence} {why}",
        evidence=decision.evidence | {"consent": why},
    )


def act_at_s(known: Recommendation, after_s: float) -> float | None:
    """Server seconds at which it is carried out unless somebody objects; None: it waits for a person."""
    return None if after_s <= 0.0 or known.verdict is not Verdict.NONE else known.at_s + after_s


def moments(snapshot: JobSnapshot) -> Iterator[float]:
    """When a countdown ends, though nothing rings."""
    for each in snapshot.recommended:
        moment = act_at_s(each, snapshot.job.spec.resiliency.act_after_s)
        if moment is not None:
            yield moment
