"""Which step is computed again, who computes what in it, and what the judgement catches."""

import math
from dataclasses import replace

import pytest

from controlplane.policy.recompute import (
    Asked,
    Computed,
    Installed,
    Numbers,
    Told,
    Unclear,
    candidates,
    choose,
    judge,
    plan_of,
)
from controlplane.protocol.recompute import MAX_STEPS

ASKED = Asked(from_step=6, until_step=13, ranks=2, exact=True, tolerance=1e-5)
COMMITTED = {step: Numbers(4.0 - step / 100, 1.5) for step in range(6, 13)}
HASHES = {0: "a", 1: "b"}
TOLD = {rank: Told(steps=dict(COMMITTED), state_hash=HASHES[rank], on="cpu") for rank in HASHES}


def told(**changes: object) -> dict[int, Told]:
    """The second rank tells something else."""
    return {0: TOLD[0], 1: replace(TOLD[1], **changes)}  # type: ignore[arg-type]


def test_the_same_seed_samples_the_same_step_and_seeds_spread() -> None:
    steps = list(range(100, 140))
    found = [choose(steps, seed=f"inc_{number}/90") for number in range(1000)]
    assert found == [choose(list(reversed(steps)), seed=f"inc_{number}/90") for number in range(1000)]
    assert set(found) == set(steps)


def test_no_step_is_sampled_that_costs_more_than_is_allowed() -> None:
    steps = range(110, 2000)
    assert candidates(steps, from_step=100, cost_s=2.0, limit_s=30.0) == [110, 111, 112, 113, 114]
    assert candidates(steps, from_step=100, cost_s=2.0, limit_s=20.0) == []
    assert len(candidates(steps, from_step=100, cost_s=None, limit_s=30.0)) == MAX_STEPS - 10


def test_steps_that_were_shared_alike_are_one_span() -> None:
    steps = [Computed(step=step, by_replica={0: (0, 2), 1: (1, 3), 2: ()}) for step in range(6, 10)]
    steps.append(Computed(step=10, by_replica={0: (0, 1, 2, 3)}))
    plan = plan_of(steps, [], micro_batches=4)
    assert [(span.first_step, [share.replica for share in span.shares]) for span in plan.spans] == [
        (6, [0, 1]),
        (10, [0]),
    ]
    assert plan.exact


def test_a_view_change_within_a_step_cuts_what_a_replica_computed() -> None:
    installs = [Installed(epoch=3, step=7, done={0: (0, 2)}), Installed(epoch=2, step=6, done={0: ()})]
    plan = plan_of([Computed(step=7, by_replica={0: (0, 1, 2, 3)})], installs, micro_batches=4)
    assert plan.spans[0].shares[0].parts == ((0, 2), (1, 3))
    assert plan.exact


def test_an_order_that_cannot_be_known_is_not_called_exact() -> None:
    odd = [Installed(epoch=3, step=7, done={0: (0, 1)}), Installed(epoch=4, step=7, done={0: (2,)})]
    assert not plan_of([Computed(step=7, by_replica={0: (0, 1, 2)})], odd, micro_batches=3).exact
    three = [Computed(step=7, by_replica={0: (0,), 1: (1,), 2: (2,)})]
    assert not plan_of(three, [], micro_batches=3).exact, "a ring adds three sums in an order of its own"


def test_the_share_of_one_whose_last_word_was_lost_is_what_nobody_else_had() -> None:
    steps = [Computed(step=6, by_replica={0: (0,), 1: (1,)}), Computed(step=7, by_replica={0: (0,)})]
    assert plan_of(steps, [], micro_batches=2).spans[-1].shares[1].parts == ((1,),)


@pytest.mark.parametrize("told", [{0: (0,)}, {0: (0, 1), 1: (1,)}])
def test_a_batch_that_is_not_whole_is_refused(told: dict[int, tuple[int, ...]]) -> None:
    with pytest.raises(Unclear):
        plan_of([Computed(step=6, by_replica=told)], [], micro_batches=3)


@pytest.mark.parametrize(("replicas", "each"), [(2, 3), (100, 7), (1000, 8)])
def test_each_micro_batch_is_in_a_plan_once_with_a_thousand_replicas(replicas: int, each: int) -> None:
    count = replicas * each
    shares = {replica: tuple(range(replica, count, replicas)) for replica in range(replicas)}
    plan = plan_of([Computed(step=0, by_replica=shares)], [], micro_batches=count)
    held = [number for share in plan.spans[0].shares for part in share.parts for number in part]
    assert sorted(held) == list(range(count))


def test_what_came_out_alike_says_what_was_compared_and_with_what_tolerance() -> None:
    found = judge(ASKED, committed=COMMITTED, hashes=HASHES, told=TOLD)
    assert found.ok is True
    for words in ("7 of 7 compared", "7e-05", "7e-04", "1e-05 a step", "equal bit for bit on 2 of 2 ranks"):
        assert words in found.detail


@pytest.mark.parametrize(
    "now",
    [
        Numbers(COMMITTED[8].loss + 4e-5, 1.5),  # type: ignore[operator]  # 3e-5 are allowed after three steps.
        Numbers(COMMITTED[8].loss, 1.5 * (1 + 4e-4)),
        Numbers(None, None, finite=False),
    ],
)
def test_a_planted_difference_fails_in_the_middle_too(now: Numbers) -> None:
    found = judge(ASKED, committed=COMMITTED, hashes=HASHES, told=told(steps={**COMMITTED, 8: now}))
    assert found.ok is False
    assert "step 8" in found.detail


def test_a_difference_as_large_as_the_tolerance_passes_and_a_larger_one_does_not() -> None:
    asked, committed = replace(ASKED, tolerance=0.5), {6: Numbers(4.0, 1.5), 12: Numbers(4.0, 1.5)}
    for now, ok in ((3.5, True), (3.4, False)):
        answers = {rank: replace(TOLD[rank], steps={**committed, 6: Numbers(now, 1.5)}) for rank in TOLD}
        assert judge(asked, committed=committed, hashes=HASHES, told=answers).ok is ok


def test_a_difference_is_not_hidden_by_what_came_after_it() -> None:
    harmed = {6: Numbers(5.0, 1.5)}
    assert (
        judge(ASKED, committed=COMMITTED, hashes=HASHES, told=told(steps=harmed, state_hash="", error="x")).ok is False
    )
    nan = judge(ASKED, committed=COMMITTED, hashes=HASHES, told=told(steps={6: Numbers(math.inf, None)}))
    assert nan.ok is False


def test_another_state_from_the_same_sums_fails_on_cpus_alone() -> None:
    other = told(state_hash="z")
    assert judge(ASKED, committed=COMMITTED, hashes=HASHES, told=other).ok is False
    on_gpu = {rank: replace(each, on="cuda") for rank, each in other.items()}
    found = judge(ASKED, committed=COMMITTED, hashes=HASHES, told=on_gpu)
    assert found.ok is True
    assert "not compared bit for bit" in found.detail
    found = judge(replace(ASKED, exact=False), committed=COMMITTED, hashes=HASHES, told=other)
    assert found.ok is True
    assert "not compared bit for bit" in found.detail


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (told(steps={6: COMMITTED[6]}, state_hash="", error="the storage is away"), "the storage is away"),
        ({0: TOLD[0]}, "1 of 2 ranks"),
        (
            {rank: replace(each, steps={6: COMMITTED[6]}) for rank, each in TOLD.items()},
            "loss and gradient norm of step 12 were not both reported",
        ),
    ],
)
def test_what_did_not_come_so_far_is_not_judged(answers: dict[int, Told], why: str) -> None:
    found = judge(ASKED, committed=COMMITTED, hashes=HASHES, told=answers)
    assert found.ok is None
    assert found.detail.startswith("not judged: ")
    assert why in found.detail
