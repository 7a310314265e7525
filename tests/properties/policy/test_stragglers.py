"""Scores of any window: bounded, comparable, blind to whom nobody waits for."""

from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.stragglers import MIN_SAMPLES, RankWork, ordered, scores
from controlplane.protocol.spec import Stragglers

times = st.floats(0.001, 100.0)
WISH = Stragglers()


@st.composite
def windows(draw: st.DrawFn) -> list[RankWork]:
    found = []
    for replica in range(draw(st.integers(1, 5))):
        for rank in range(draw(st.integers(1, 3))):
            found.append(
                RankWork(
                    replica=replica,
                    incarnation=1,
                    rank=rank,
                    stage=rank,
                    samples=draw(st.integers(0, 9)),
                    compute_s=draw(times),
                    data_s=draw(times),
                    step_s=draw(times),
                    best_s=draw(st.one_of(st.none(), times)),
                    micro_batches=draw(st.floats(1.0, 64.0)),
                )
            )
    return found


@given(windows())
def test_a_score_is_between_nothing_and_as_fast_as_the_best(window):
    for score in scores(window, WISH):
        assert all(value is None or 0.0 < value <= 1.0 for value in (score.relative, score.individual))
        assert score.late_s >= 0.0


@given(windows())
def test_a_rank_as_fast_as_the_median_of_the_others_is_no_relative_straggler(window):
    found = scores(window, WISH)
    for score in found:
        others = [o.work.work_s for o in found if o.work.stage == score.work.stage and o is not score]
        if not others:
            assert score.relative is None
            continue
        assert score.relative == pytest.approx(min(1.0, median(others) / score.work.work_s))
        assert score.work.work_s > median(others) or score.straggler != "relative"


@given(windows(), st.randoms())
def test_the_order_of_reports_does_not_matter(window, random):
    shuffled = list(window)
    random.shuffle(shuffled)
    assert scores(shuffled, WISH) == scores(window, WISH)
    assert ordered(scores(shuffled, WISH)) == ordered(scores(window, WISH))


@given(windows(), st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(window, factor):
    scaled = [
        msgspec.structs.replace(
            work,
            compute_s=work.compute_s * factor,
            data_s=work.data_s * factor,
            step_s=work.step_s * factor,
            best_s=None if work.best_s is None else work.best_s * factor,
        )
        for work in window
    ]
    for one, other in zip(scores(window, WISH), scores(scaled, WISH), strict=True):
        for a, b in ((one.relative, other.relative), (one.individual, other.individual)):
            assert (a is None) == (b is None)
            assert a is None or b is None or abs(a - b) < 1e-6


@given(windows())
def test_a_rank_with_too_few_steps_is_neither_judged_nor_a_reference(window):
    judged = {(score.work.replica, score.work.rank) for score in scores(window, WISH)}
    assert judged == {(work.replica, work.rank) for work in window if work.samples >= MIN_SAMPLES}
    heard = [work for work in window if work.samples >= MIN_SAMPLES]
    assert scores(heard, WISH) == scores(window, WISH)
