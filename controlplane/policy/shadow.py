"""A candidate policy beside the live one: how they agree, what the candidate's way would have cost, and the bar.

The score is a difference: what the candidate would have wasted more than the live policy did, in GPU-seconds, over
recorded incidents. Both ways of a decision are continued in the same worlds, so what a world gets wrong is wrong on
both sides; what really happened gives the size against which the difference is judged. Pure: `recovery.shadowing`
reads rows for it and writes what it says.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from controlplane.policy.continuable import RULES, is_act, same_act
from controlplane.policy.replay import Difference
from controlplane.protocol.rest.shadow import ShadowScore

ERRORS = 2.0
"""So many standard deviations a difference must be beyond, to count as one."""


class Agreement(StrEnum):
    """Of one decision. ALIKE: the same act; REWORDED: the same act of a rule that answers failures, for other
    thresholds or prices, so that what follows may differ; OTHER: another act; ACTS: where the live policy held; HOLDS:
    where it acted."""

    ALIKE = "alike"
    REWORDED = "reworded"
    OTHER = "other"
    ACTS = "acts"
    HOLDS = "holds"


class PricedBy(StrEnum):
    """How the change was found: nothing changes, both ways continued in the simulator, or the decisions' own
    expectation. NOTHING: it was not."""

    ALIKE = "alike"
    CONTINUED = "continued"
    EXPECTED = "expected"
    NOTHING = ""


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a candidate has to reach. So many decisions over so many days; of those that differ at most this share
    without a price; and its change in GPU-seconds, with its error, at most `tolerance` of what the incidents cost."""

    min_decisions: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50
    min_days: Annotated[float, msgspec.Meta(ge=0, le=90)] = 1.0
    max_unpriced: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.1
    tolerance: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.02


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One decision beside the candidate's. `incident` "": it is of none. `live_gpu_s`: what the incident really cost
    (None: it is not over, or nothing is known); `change_gpu_s` (None: no price) with the deviation `spread_gpu_s`."""

    rule: str
    agreement: Agreement
    by: PricedBy
    incident: str = ""
    live_gpu_s: float | None = None
    change_gpu_s: float | None = None
    spread_gpu_s: float = 0.0


def agreement_of(change: Difference | None, *, rule: str) -> Agreement:
    """None: the candidate decides the same, byte for byte."""
    if change is None:
        return Agreement.ALIKE
    if same_act(change.before, change.after):
        acts = is_act(change.before) and rule in RULES
        return Agreement.REWORDED if acts else Agreement.ALIKE
    if is_act(change.before) and is_act(change.after):
        return Agreement.OTHER
    return Agreement.ACTS if is_act(change.after) else Agreement.HOLDS


def expected_gpu_s(change: Difference | None, agreement: Agreement) -> float | None:
    """The change by the decisions' own prices; None: one of them has none, or somebody would have to be asked, and what
    that takes nobody expects."""
    if agreement is Agreement.ALIKE:
        return 0.0
    both = agreement in (Agreement.OTHER, Agreement.REWORDED)
    if change is None or change.before is None or change.after is None or not both:
        return None
    before, after = change.before.cost_gpu_s, change.after.cost_gpu_s
    return None if before is None or after is None else after - before


def matrix_of(verdicts: Iterable[Verdict]) -> Mapping[str, Mapping[Agreement, int]]:
    """Decisions by rule and agreement; rules in alphabetical sequence."""
    found: dict[str, dict[Agreement, int]] = {}
    for each in verdicts:
        row = found.setdefault(each.rule, dict.fromkeys(Agreement, 0))
        row[each.agreement] += 1
    return dict(sorted(found.items()))


def score_of(verdicts: Iterable[Verdict], *, days: float) -> ShadowScore:
    """Of all that was judged. Of one incident the first decision with a change counts: a continued world plays what
    follows as well, so that later decisions of it need no price."""
    every = list(verdicts)
    differing = [each for each in every if each.agreement is not Agreement.ALIKE]
    first: dict[str, Verdict] = {}
    for number, each in enumerate(differing):
        if each.change_gpu_s is not None:
            first.setdefault(each.incident or f"decision {number}", each)
    known = [each for each in differing if each.change_gpu_s is not None or each.incident in first]
    live = {each.incident: each.live_gpu_s for each in every if each.incident and each.live_gpu_s is not None}
    return ShadowScore(
        decisions=len(every),
        days=days,
        differing=len(differing),
        continued=sum(each.by is PricedBy.CONTINUED for each in differing),
        expected=sum(each.by is PricedBy.EXPECTED for each in differing),
        unpriced=len(differing) - len(known),
        incidents=len(first),
        live_gpu_s=sum(live.values()),
        change_gpu_s=sum(each.change_gpu_s or 0.0 for each in first.values()),
        error_gpu_s=ERRORS * math.sqrt(sum(each.spread_gpu_s**2 for each in first.values())),
    )


def below(score: ShadowScore, bar: Bar) -> tuple[str, ...]:
    """Why the candidate may not be promoted; (): it may."""
    allowed_gpu_s = bar.tolerance * score.live_gpu_s
    worst_gpu_s = score.change_gpu_s + score.error_gpu_s
    checks = (
        (
            score.decisions < bar.min_decisions,
            f"{score.decisions} decisions were compared, the bar asks for {bar.min_decisions}",
        ),
        (score.days < bar.min_days, f"it ran for {score.days:.1f} days, the bar asks for {bar.min_days:g}"),
        (
            score.unpriced > bar.max_unpriced * score.differing,
            f"{score.unpriced} of {score.differing} decisions that differ have no price,"
            f" the bar allows {bar.max_unpriced:.0%}",
        ),
        (
            worst_gpu_s > allowed_gpu_s + 1e-9,
            f"it would have wasted {score.change_gpu_s:+.0f} GPU-seconds (+/- {score.error_gpu_s:.0f}) beside the live"
            f" policy, the bar allows {allowed_gpu_s:.0f} ({bar.tolerance:.0%} of the {score.live_gpu_s:.0f} that the"
            " incidents cost)",
        ),
    )
    return tuple(reason for holds, reason in checks if holds)


def dropped(score: ShadowScore, bar: Bar) -> str:
    """Of a promoted policy, watched by the one before it: why it falls back; "": it stays. Here the change is what the
    one before would have wasted more, so far below 0 says that it was the better one."""
    saved_gpu_s = -score.change_gpu_s - score.error_gpu_s
    allowed_gpu_s = bar.tolerance * score.live_gpu_s
    if score.incidents == 0 or saved_gpu_s <= allowed_gpu_s:
        return ""
    return (
        f"over {score.incidents} incidents the policy before it would have wasted {-score.change_gpu_s:.0f} GPU-seconds"
        f" (+/- {score.error_gpu_s:.0f}) less, the bar allows {allowed_gpu_s:.0f}"
    )


def watched_enough(score: ShadowScore, bar: Bar) -> bool:
    """The watch may end: as much was compared as a promotion asks for."""
    return score.decisions >= bar.min_decisions and score.days >= bar.min_days
