"""A candidate beside the live policy: how they agree, the score, the bar, and when a promoted one falls back."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.plan import Decision, SetJobState
from controlplane.policy.replay import Difference, Kind
from controlplane.policy.shadow import (
    Agreement,
    Bar,
    PricedBy,
    Verdict,
    agreement_of,
    below,
    dropped,
    expected_gpu_s,
    matrix_of,
    score_of,
    watched_enough,
)
from controlplane.protocol.rest.shadow import ShadowScore
from controlplane.protocol.states import JobState, Mode

from .builders import change

RULE = "replica_failure"
ACT = Decision(
    rule=RULE, choice="evict", reason_code="x", sentence="Evict.", key="a", actions=(SetJobState(to=JobState.RUNNING),),
    cost_gpu_s=100.0,
)  # fmt: skip
HOLD = change(ACT, choice="hold", actions=(), cost_gpu_s=None)
BAR = Bar(min_decisions=2, min_days=1.0, max_unpriced=0.1, tolerance=0.02)
GOOD = ShadowScore(
    decisions=10, days=2.0, differing=4, continued=4, expected=0, unpriced=0, incidents=4, live_gpu_s=1000.0,
    change_gpu_s=-50.0, error_gpu_s=10.0,
)  # fmt: skip


def differs(before: Decision | None, after: Decision | None) -> Difference:
    return Difference(kind=Kind.CHANGED, before=before, after=after)


def verdict(change_gpu_s: float | None = 0.0, **fields: object) -> Verdict:
    known = {"rule": RULE, "agreement": Agreement.OTHER, "by": PricedBy.CONTINUED, "incident": "inc_1"}
    return Verdict(**(known | {"change_gpu_s": change_gpu_s} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "agreement"),
    [
        (ACT, change(ACT, sentence="Otherwise."), Agreement.REWORDED),
        (change(ACT, rule="spares"), change(ACT, rule="spares", sentence="Otherwise."), Agreement.ALIKE),
        (ACT, change(ACT, choice="restart"), Agreement.OTHER),
        (ACT, HOLD, Agreement.HOLDS),
        (ACT, None, Agreement.HOLDS),
        (ACT, change(ACT, mode=Mode.RECOMMEND), Agreement.HOLDS),
        (HOLD, ACT, Agreement.ACTS),
        (None, ACT, Agreement.ACTS),
        (HOLD, change(HOLD, sentence="Otherwise."), Agreement.ALIKE),
    ],
)
def test_two_policies_agree_by_what_is_carried_out(
    before: Decision | None, after: Decision | None, agreement: Agreement
) -> None:
    assert agreement_of(differs(before, after), rule=(before or after or ACT).rule) is agreement


def test_equal_decisions_are_alike_and_cost_the_same() -> None:
    assert agreement_of(None, rule=RULE) is Agreement.ALIKE
    assert expected_gpu_s(None, Agreement.ALIKE) == 0.0


def test_an_expectation_needs_a_price_on_both_sides_and_nobody_to_be_asked() -> None:
    dearer = change(ACT, choice="restart", cost_gpu_s=130.0)
    assert expected_gpu_s(differs(ACT, dearer), Agreement.OTHER) == 30.0
    assert expected_gpu_s(differs(ACT, change(dearer, cost_gpu_s=None)), Agreement.OTHER) is None
    assert expected_gpu_s(differs(ACT, HOLD), Agreement.HOLDS) is None


def test_of_an_incident_the_first_decision_with_a_price_counts_once() -> None:
    score = score_of(
        [
            verdict(None, by=PricedBy.NOTHING, live_gpu_s=70.0),
            verdict(5.0, spread_gpu_s=3.0, live_gpu_s=70.0),
            verdict(90.0, live_gpu_s=70.0),
            verdict(-2.0, incident="", spread_gpu_s=4.0),
            verdict(None, incident="inc_2", by=PricedBy.NOTHING),
        ],
        days=1.0,
    )
    assert (score.incidents, score.change_gpu_s, score.live_gpu_s) == (2, 3.0, 70.0)
    assert score.error_gpu_s == 2.0 * 5.0
    assert (score.differing, score.unpriced, score.continued) == (5, 1, 3)


@given(st.lists(st.tuples(st.sampled_from(Agreement), st.sampled_from(("a", "b", "c"))), max_size=30))
def test_every_decision_is_in_the_matrix_once(every: list[tuple[Agreement, str]]) -> None:
    matrix = matrix_of(verdict(rule=rule, agreement=agreement) for agreement, rule in every)
    assert sum(sum(row.values()) for row in matrix.values()) == len(every)
    for agreement, rule in every:
        assert matrix[rule][agreement] == sum((agreement, rule) == each for each in every)


def test_a_candidate_over_the_bar_may_be_promoted() -> None:
    assert below(GOOD, BAR) == ()


@dataclass(frozen=True)
class Worse:
    fields: dict[str, float]
    word: str


@pytest.mark.parametrize(
    "worse",
    [
        Worse({"decisions": 1}, "1 decisions were compared"),
        Worse({"days": 0.9}, "ran for 0.9 days"),
        Worse({"unpriced": 1}, "have no price"),
        Worse({"change_gpu_s": 11.0}, "would have wasted +11 GPU-seconds (+/- 10)"),
        Worse({"change_gpu_s": -5.0, "error_gpu_s": 26.0}, "would have wasted -5 GPU-seconds (+/- 26)"),
    ],
)
def test_each_part_of_the_bar_refuses_with_its_reason(worse: Worse) -> None:
    (reason,) = below(change(GOOD, **worse.fields), BAR)
    assert worse.word in reason


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_nobody_who_may_be_worse_than_the_tolerance_passes(change_s: float, error_s: float, live_s: float) -> None:
    score = change(GOOD, change_gpu_s=change_s, error_gpu_s=error_s, live_gpu_s=live_s)
    assert (below(score, BAR) == ()) == (change_s + error_s <= BAR.tolerance * live_s + 1e-9)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_policy_falls_back_only_where_the_one_before_is_surely_better(
    change_s: float, error_s: float, live_s: float
) -> None:
    score = change(GOOD, change_gpu_s=change_s, error_gpu_s=error_s, live_gpu_s=live_s)
    why = dropped(score, BAR)
    assert bool(why) == (-change_s - error_s > BAR.tolerance * live_s)
    assert not dropped(change(score, incidents=0), BAR), "nothing was seen yet"


def test_a_watch_has_seen_enough_after_as_much_as_a_promotion_asks_for() -> None:
    assert watched_enough(GOOD, BAR)
    assert not watched_enough(change(GOOD, decisions=1), BAR)
    assert not watched_enough(change(GOOD, days=0.5), BAR)
