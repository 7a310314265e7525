"""Scores of any window: bounded, comparable, blind to whom nobody waits for. And who is given up for being slow."""

from statistics import median

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.decide import decide
from controlplane.policy.plan import AnnounceView, SetNodeState, StartReplica
from controlplane.policy.rules.straggler import WITHOUT_MARGIN
from controlplane.policy.snapshot import BudgetFact, JobSnapshot
from controlplane.policy.stragglers import MIN_SAMPLES, RankWork, ordered, scores
from controlplane.protocol.spec import Stragglers, Training
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import CONFIG, NOW_S, job, running, signal, spec

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


@st.composite
def slow_worlds(draw: st.DrawFn) -> JobSnapshot:
    """Replicas of which some were found slow, in whatever state the job, its budget and the fleet are."""
    found = tuple(
        signal(
            "straggler", number, replica=index, incarnation=1, rank=draw(st.integers(0, 1)), node_id=f"n{index}",
            device_index=0, value=draw(st.floats(0.01, 0.99)), threshold=0.7,
            seen_s=NOW_S - draw(st.floats(900.0, 1800.0) | st.floats(0.0, 900.0)),
            renewed_s=draw(st.none() | st.floats(NOW_S - 900.0, NOW_S)),
            evidence={
                "score": draw(st.sampled_from(["relative"] * 4 + ["individual"])),
                "cause": draw(st.sampled_from(["compute"] * 4 + ["data", "length"])),
                "late_s": draw(st.floats(0.0, 2.0)),
                "epoch": draw(st.sampled_from([2] * 4 + [1])),
            },
        )
        for number, index in enumerate(draw(st.lists(st.integers(0, 2), unique=True, min_size=1, max_size=3)))
    )  # fmt: skip
    wanted = spec(
        min_replicas=draw(st.sampled_from([1, 2, 2, 3])), training=Training(steps=draw(st.integers(51, 9000)))
    )
    return running(
        spares=draw(st.sampled_from([0, 0, 0, 1])),
        signals=found,
        job=job(spec=wanted, state=draw(st.sampled_from([JobState.RUNNING] * 5 + [JobState.RECOVERING]))),
        budget=BudgetFact(restarts_total=draw(st.sampled_from([0] * 5 + [1000]))),
        suspect_devices=draw(st.sampled_from([0] * 5 + [50])),
        acts_last_window=draw(st.sampled_from([0] * 5 + [CONFIG.max_acts])),
    )


@given(slow_worlds())
@settings(max_examples=150, deadline=None)
def test_one_is_given_up_only_where_it_pays_has_lasted_and_nothing_else_speaks_against_it(world):
    """Whatever is slow: at most one leaves at a time, and enough are left."""
    acting = [d for d in decide(world, CONFIG).decisions if d.rule == "straggler" and d.actions]
    assert len(acting) <= 1
    for decision in acting:
        assert world.job.state is JobState.RUNNING and world.suspect_devices == 0
        assert world.budget.restarts_total == 0 and world.acts_last_window < CONFIG.max_acts
        told = next(s for s in world.signals if s.id in decision.signal_ids)
        assert told.evidence["epoch"] == world.job.epoch
        assert world.now_s - (told.seen_s if told.renewed_s is None else told.renewed_s) <= WISH.interval_s
        if decision.choice != "go_on_without":
            continue
        found = next(s for s in world.signals if s.id in decision.signal_ids)
        assert (found.evidence["score"], found.evidence["cause"]) == ("relative", "compute")
        assert world.now_s - found.seen_s >= WISH.interval_s
        stay_s = next(a.cost_gpu_s for a in decision.alternatives if a.action == "stay")
        assert decision.cost_gpu_s * WITHOUT_MARGIN <= stay_s
        (view,) = [a.view for a in decision.actions if isinstance(a, AnnounceView)]
        left = {member.replica for member in view.members}
        assert left == {0, 1, 2} - {found.replica}
        assert len(left) >= world.job.spec.resources.min_replicas
        assert not any(isinstance(a, StartReplica) for a in decision.actions)
        assert not any(isinstance(a, SetNodeState) for a in decision.actions), "other jobs may use the node"
