"""A straggler is told with its cause and moved only where that pays."""

from collections.abc import Iterable
from random import Random
from statistics import median

import pytest

from controlplane.policy.bars import of_slow
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.plan import AnnounceView, StartReplica
from controlplane.policy.rules.straggler import WITHOUT_MARGIN
from controlplane.policy.snapshot import BudgetFact, JobSnapshot, LearnedTimes
from controlplane.policy.stragglers import RankWork, Run, Score, advice, confirmed, ordered, scores, stage_loads
from controlplane.protocol.spec import Stragglers, Training
from controlplane.protocol.states import JobState, Mode, ReplicaState
from tests.unit.policy.builders import (
    CONFIG,
    NOW_S,
    action,
    actions,
    change,
    decisions,
    job,
    only,
    replica,
    running,
    signal,
    spec,
)

WISH = Stragglers()
# From the published per-worker traces of slow jobs (S1.7, U4): one worker of sixteen, (0, 0),
# takes 2.27 times as long; a whole last stage; every worker now and then.
SLOWER = 2.27


def work(replica: int, stage: int = 0, compute_s: float = 1.0, **fields: object) -> RankWork:
    base: dict[str, object] = {"incarnation": 1, "rank": stage, "samples": 10, "data_s": 0.0, "step_s": 2.0}
    return RankWork(replica=replica, stage=stage, compute_s=compute_s, **(base | fields))  # type: ignore[arg-type]


def names(found: tuple, **_: object) -> list[tuple[int, int]]:
    return [(score.work.replica, score.work.rank) for score in found if score.straggler]


def test_one_slow_worker_is_found_beside_its_peers_of_the_stage():
    window = [work(r, s, SLOWER if (r, s) == (0, 0) else 1.0) for r in range(4) for s in range(4)]
    found = scores(window, WISH)
    assert names(found) == [(0, 0)]
    worst = ordered(found)[0]
    assert worst.relative == pytest.approx(1 / SLOWER)
    assert (worst.straggler, worst.cause, worst.late_s) == ("relative", "compute", pytest.approx(SLOWER - 1))


def test_a_slow_stage_blames_no_worker_and_advises_another_cut():
    window = [work(r, s, SLOWER if s == 3 else 1.0) for r in range(4) for s in range(4)]
    found = scores(window, WISH)
    assert names(found) == []
    assert "stage 3" in advice(stage_loads(found), WISH)
    assert advice(stage_loads(scores([work(r, s) for r in range(4) for s in range(4)], WISH)), WISH) == ""


def test_slow_input_is_told_from_slow_compute():
    found = scores([work(0, data_s=2.0), work(1, data_s=0.1)], WISH)
    assert [(score.work.replica, score.cause) for score in found if score.straggler] == [(0, "data")]


def test_a_rank_slower_than_ever_is_found_without_peers():
    assert scores([work(0, compute_s=2.0, best_s=1.0)], WISH)[0].straggler == "individual"
    assert scores([work(0, compute_s=2.0)], WISH)[0].lowest == 1.0


def test_a_slow_rank_that_holds_nobody_up_is_no_straggler():
    found = scores([work(0, compute_s=0.002, step_s=2.0), work(1, compute_s=0.001, step_s=2.0)], WISH)
    assert found[0].relative == 0.5
    assert names(found) == []


def test_a_score_that_is_switched_off_finds_nothing():
    window = [work(0, compute_s=3.0, best_s=1.0), work(1)]
    assert names(scores(window, Stragglers(relative=False, individual=False))) == []
    assert scores(window, Stragglers(relative=False))[0].straggler == "individual"


def test_one_slow_window_is_no_straggler_two_in_a_row_are():
    slow, quick = scores([work(0, compute_s=3.0), work(1), work(2)], WISH)[:2]
    assert said(slow, slow) == [False, True]
    assert said(slow, quick, slow) == [False, False, False]
    assert said(slow, slow, quick, slow, slow) == [False, True, False, False, True]


def test_windows_of_two_views_are_not_two_in_a_row_and_a_new_view_asks_for_two_of_its_own():
    slow = scores([work(0, compute_s=3.0), work(1), work(2)], WISH)[0]
    assert said(slow, slow, epochs=[2, 3]) == [False, False]
    assert said(*[slow] * 7, epochs=[2, 2, 2, 2, 3, 3, 3]) == [False, True, True, True, False, True, True]


def test_views_that_change_with_each_window_hide_no_slow_rank_and_accuse_none_that_is_not():
    slow, quick = scores([work(0, compute_s=3.0), work(1), work(2)], WISH)[:2]
    assert said(*[slow] * 6, epochs=[2, 3, 4, 5, 6, 7]) == [False, False, False, True, True, True]
    assert said(slow, slow, slow, quick, slow, slow, slow, epochs=range(2, 9)) == [False] * 7


def said(*found: Score, epochs: Iterable[int] = ()) -> list[bool]:
    """Of each window of one rank whether it makes it a straggler; all in one view, or each in its own."""
    run, told = Run(), []
    for score, epoch in zip(found, epochs or [2] * len(found), strict=True):
        run, is_straggler = confirmed(score, run, epoch)
        told.append(is_straggler)
    return told


@pytest.mark.parametrize("replicas", [16, 512])
def test_micro_batches_of_different_length_accuse_nobody(replicas: int):
    """No rank is slow; each step's micro-batches are long or short by chance."""
    random = Random(7)
    accused, before = set(), dict.fromkeys(range(replicas), Run())
    for _window in range(20):
        means = [median(random.lognormvariate(0.0, 0.35) for _step in range(6)) for _ in range(replicas)]
        for score in scores([work(r, compute_s=means[r], samples=6, spread=0.9) for r in range(replicas)], WISH):
            rank = score.work.replica
            before[rank], is_straggler = confirmed(score, before[rank], 2)
            if is_straggler and score.cause == "compute":
                accused.add(rank)
    assert accused == set()


def test_a_rank_that_is_slower_than_its_micro_batches_differ_is_found_all_the_same():
    window = [work(0, compute_s=SLOWER, spread=0.9), *(work(r, spread=0.9) for r in range(1, 8))]
    assert [(s.work.replica, s.cause) for s in scores(window, WISH) if s.straggler] == [(0, "compute")]


# --- the decision ---------------------------------------------------------------------


def slow(*, spares: int = 1, mode: Mode = Mode.ENFORCE, steps: int = 10_000, **evidence: object) -> JobSnapshot:
    """Rank 0 of replica 1 holds each step up by half a second."""
    told = {"score": "relative", "cause": "compute", "late_s": 0.5, "relative": 0.4, "epoch": 2} | evidence
    found = signal(
        "straggler", replica=1, incarnation=1, rank=0, node_id="n1", device_index=0, value=0.4, threshold=0.7,
        evidence=told,
    )  # fmt: skip
    wanted = spec(training=Training(steps=steps, global_batch=6))
    return running(spares=spares, signals=(found,), job=job(spec=wanted))


def test_what_was_measured_before_the_present_view_moves_nothing_and_ends_nothing():
    decision = only(slow(epoch=1), "straggler")
    assert (decision.choice, decision.actions) == ("tell", ())
    assert "it was measured before the present view, and is measured again in this one" in decision.sentence
    assert only(slow(epoch=1, spares=0), "straggler").actions == ()
    assert only(slow(epoch=2), "straggler").choice == "move"


@pytest.mark.parametrize("choice", ["move", "go_on_without"])
def test_a_hold_that_outlasts_the_windows_ends_with_another_look(choice: str):
    """The server was away, or blind, for longer than an interval: the rank may be as fast as the others by now."""
    found = lasting(found_s=NOW_S - 4000.0) if choice == "go_on_without" else slow()
    kept = change(found.signals[0], seen_s=NOW_S - 4000.0)
    decision = only(change(found, signals=(kept,)), "straggler")
    assert (decision.choice, decision.actions) == ("tell", ())
    assert "it was not measured lately, and is measured again first" in str(decision.alternatives)
    again = change(kept, renewed_s=NOW_S - 150.0)
    assert only(change(found, signals=(again,)), "straggler").choice == choice


def test_steps_longer_than_the_interval_leave_a_finding_standing_for_ten_of_them():
    kept = change(slow().signals[0], seen_s=NOW_S - 900.0)
    long = change(slow(), signals=(kept,), learned=LearnedTimes(step_s=100.0, step_max_s=100.0))
    assert "not measured lately" not in only(long, "straggler").sentence


def test_a_replica_on_a_slow_device_is_moved_off_it_when_that_is_cheaper():
    decision = only(slow(), "straggler")
    assert (decision.choice, decision.reason_code) == ("move", "cheaper_to_move")
    assert {(p.node_id, p.device_index) for p in action(decision, StartReplica).placements} == {("n3", 0), ("n3", 1)}
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0, 2]
    stay = decision.evidence["stay_gpu_s"]
    assert decision.cost_gpu_s is not None
    assert decision.cost_gpu_s < stay == decision.alternatives[0].cost_gpu_s
    assert decision.signal_ids == ("sig_1",)


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (slow(steps=51), "moving its replica costs"),
        (slow(cause="data"), "take the input along"),
        (slow(cause="length"), "balance the sequence lengths"),
        (slow(score="individual"), "no device is to blame"),
        (slow(score="individual", relative=None), "there is nothing to compare it with"),
        (slow(spares=0), "no free device fits a replica"),
        (change(slow(), job=change(slow().job, state=JobState.RECOVERING)), "recovering"),
        (change(slow(), suspect_devices=50), "at once"),
        (change(slow(), budget=BudgetFact(restarts_total=1000)), "all its budget allows"),
    ],
)
def test_otherwise_it_is_told_with_the_reason_and_nothing_moves(world: JobSnapshot, why: str):
    decision = only(world, "straggler")
    assert (decision.choice, decision.actions) == ("tell", ())
    assert why in decision.sentence
    assert why in decision.alternatives[0].why_not


def test_going_on_without_a_slow_replica_is_priced_beside_staying():
    decision = only(slow(spares=0, late_s=0.5), "straggler")
    without = {a.action: a for a in decision.alternatives}["go_on_without"]
    assert without.cost_gpu_s == decision.evidence["without_gpu_s"]
    assert without.cost_gpu_s is not None
    # 3 replicas of 2 ranks: half a second of six ranks a step, or what two ranks train in it.
    step_s = CONFIG.default_step_s
    steps = min(10_000, CONFIG.repair_horizon_s / step_s)
    stall_s = (CONFIG.view_way_s + CONFIG.install_way_s + step_s / 2) * 6
    assert without.cost_gpu_s == pytest.approx(stall_s + steps * 2 * max(0.0, step_s - 0.5))
    few = change(slow(spares=0), job=change(slow().job, spec=spec(min_replicas=3)))
    assert {a.action: a.cost_gpu_s for a in only(few, "straggler").alternatives}["go_on_without"] is None


def lasting(*, found_s: float = NOW_S - WISH.interval_s, late_s: float = 50.0, **fields: object) -> JobSnapshot:
    """No other place is free, and rank 0 of replica 1 has been slow since `found_s`."""
    base = slow(spares=0, late_s=late_s, mode=fields.pop("mode", Mode.ENFORCE))  # type: ignore[arg-type]
    return change(base, signals=(change(base.signals[0], seen_s=found_s),), **fields)


def test_a_replica_slower_than_it_is_worth_is_left_out_once_it_has_lasted():
    young = only(lasting(found_s=NOW_S - 3.0), "straggler")
    assert young.choice == "tell"
    assert "left out if it is still slow in 297 s" in young.sentence
    found = only(lasting(), "straggler")
    assert (found.choice, found.reason_code) == ("go_on_without", "cheaper_without")
    assert [m.replica for m in action(found, AnnounceView).view.members] == [0, 2]
    assert not actions(found, StartReplica)
    assert "device 0 of node-1 takes nothing of this job for 60 min" in found.sentence
    assert found.cost_gpu_s == found.evidence["without_gpu_s"]
    costs = {a.action: a.cost_gpu_s for a in found.alternatives}
    assert costs["stay"] is not None and found.cost_gpu_s is not None
    assert costs["stay"] >= WITHOUT_MARGIN * found.cost_gpu_s


def test_nothing_is_started_on_the_device_of_one_that_was_slow_when_it_left():
    """Its slot waits for another place; without the bar it would be filled again at once, on the slow device."""
    gone = replica(1, state=ReplicaState.EVICTED, stopped=True, in_view=False, contributing=False)
    world = running(spares=0, replicas=(replica(0), gone, replica(2)))
    freed = change(world.nodes[1], devices=tuple(change(d, free=True, held=False) for d in world.nodes[1].devices))
    for age_s, starts in ((None, 1), (CONFIG.bar_s - 1.0, 0), (CONFIG.bar_s + 1.0, 1)):
        bars = () if age_s is None else (of_slow("n1", 0, since_s=NOW_S - age_s),)
        there = change(world, nodes=(world.nodes[0], freed, world.nodes[2]), bars=bars)
        assert sum(len(actions(d, StartReplica)) for d in decisions(there, rule="replace")) == starts, age_s


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (lasting(late_s=0.02), "costs more"),
        (lasting(late_s=0.27), "staying costs less than 1.25 times as much"),
        (lasting(budget=BudgetFact(restarts_total=1000)), "all its budget allows"),
        (lasting(suspect_devices=50), "at once"),
        (lasting(acts_last_window=CONFIG.max_acts), "at once"),
        (change(lasting(), job=change(lasting().job, state=JobState.RECOVERING)), "recovering"),
        (change(lasting(), job=change(lasting().job, spec=spec(min_replicas=3))), "too few replicas would be left"),
    ],
)
def test_otherwise_it_stays_with_the_reason(world: JobSnapshot, why: str):
    decision = only(world, "straggler")
    assert (decision.choice, decision.actions) == ("tell", ())
    assert why in {a.action: a.why_not for a in decision.alternatives}["go_on_without"]


@pytest.mark.parametrize("evidence", [{"cause": "data"}, {"cause": "length"}, {"score": "individual"}])
def test_a_device_that_is_not_to_blame_is_never_given_up(evidence: dict[str, object]):
    base = lasting()
    told = change(base.signals[0], evidence=base.signals[0].evidence | evidence)
    assert only(change(base, signals=(told,)), "straggler").choice == "tell"


def test_two_slow_ones_are_left_out_one_after_the_other():
    base = lasting()
    second = change(base.signals[0], id="sig_2", replica=2, node_id="n2", value=0.5)
    found = decisions(change(base, signals=(*base.signals, second)), rule="straggler")
    assert [(d.choice, d.signal_ids[0]) for d in found] == [("go_on_without", "sig_1"), ("tell", "sig_2")]
    assert "another one is moved or left out first" in found[1].sentence


def test_a_recommending_job_leaves_nobody_out_by_itself():
    base = lasting()
    careful = change(base.job.spec, resiliency=change(base.job.spec.resiliency, mode=Mode.RECOMMEND))
    decision = only(change(base, job=change(base.job, spec=careful)), "straggler")
    assert (decision.choice, decision.mode) == ("go_on_without", Mode.RECOMMEND)


def test_a_throttling_device_is_named_as_the_cause():
    decision = only(slow(throttle="thermal"), "straggler")
    assert "the device throttles (thermal)" in decision.sentence


def test_two_stragglers_are_moved_one_after_the_other():
    second = change(slow().signals[0], id="sig_2", replica=2, node_id="n2", value=0.5)
    world = change(slow(spares=2), signals=(*slow().signals, second))
    found = decisions(world, rule="straggler")
    assert [(d.choice, d.signal_ids) for d in found] == [("move", ("sig_1",))]


def test_a_finding_about_an_older_life_says_nothing_about_this_one():
    stale = change(slow().signals[0], incarnation=0)
    assert decisions(change(slow(), signals=(stale,)), rule="straggler") == ()


def test_a_recommending_job_moves_nothing_by_itself():
    base = slow()
    careful = change(base.job.spec, resiliency=change(base.job.spec.resiliency, mode=Mode.RECOMMEND))
    decision = only(change(base, job=change(base.job, spec=careful)), "straggler")
    assert (decision.choice, decision.mode) == ("move", Mode.RECOMMEND)
    assert actions(decision, StartReplica)


def test_a_straggler_alone_wakes_nobody_up():
    world = slow()
    quiet = change(world, signals=())
    once_s = world.signals[0].seen_s + WISH.interval_s
    due_s = next_pass_s(quiet, CONFIG, changed=False)
    assert next_pass_s(world, CONFIG, changed=False) == (once_s if due_s is None else min(once_s, due_s))
    old = change(world, signals=(change(world.signals[0], seen_s=NOW_S - 2 * WISH.interval_s),))
    assert next_pass_s(old, CONFIG, changed=False) == due_s
