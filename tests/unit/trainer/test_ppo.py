"""The parts of the PPO workload that need no ranks: arithmetic, settings, variables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import ConfigInvalid
from trainer.workloads.ppo import arithmetic
from trainer.workloads.ppo.settings import PpoSettings, check
from trainer.workloads.rendezvous import rendezvous, renew_rendezvous


def test_reward_is_the_share_of_target_bytes() -> None:
    paid = arithmetic.rewards(np.array([[65, 10, 66, 200], [0, 1, 2, 3]]), (65, 90))
    assert paid.tolist() == [[0.25, 0, 0.25, 0], [0, 0, 0, 0]]


@given(st.integers(1, 4), st.integers(1, 6), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_advantages_are_the_discounted_sum_of_errors(
    rows: int, length: int, discount: float, gae_lambda: float, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    reward, values = draw.normal(size=(rows, length)), draw.normal(size=(rows, length))
    found, returns = arithmetic.advantages(reward, values, discount=discount, gae_lambda=gae_lambda)
    following = np.pad(values[:, 1:], ((0, 0), (0, 1)))
    errors = reward + discount * following - values
    for at in range(length):
        weights = (discount * gae_lambda) ** np.arange(length - at)
        assert found[:, at] == pytest.approx(errors[:, at:] @ weights)
    assert returns == pytest.approx(found + values)


def test_without_bootstrap_returns_are_the_rewards_to_come() -> None:
    reward, values = np.array([[1.0, 2.0, 4.0]]), np.array([[9.0, 9.0, 9.0]])
    _, returns = arithmetic.advantages(reward, values, discount=1.0, gae_lambda=1.0)
    assert returns.tolist() == [[7.0, 6.0, 4.0]]


def test_whitened_numbers_have_mean_0_and_deviation_1() -> None:
    white = arithmetic.whiten(np.array([[1.0, 2.0], [3.0, 6.0]]))
    assert (white.mean(), white.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert arithmetic.whiten(np.full((2, 2), 3.0)).tolist() == [[0, 0], [0, 0]]


@given(st.integers(0, 50), st.integers(0, 3), st.integers(1, 5), st.integers(1, 5))
def test_mini_batches_hold_each_sample_once_and_are_the_same_again(
    step: int, epoch: int, size: int, count: int
) -> None:
    found = arithmetic.mini_batches(step=step, epoch=epoch, seed=7, global_batch=size * count, size=size)
    assert sorted(at for part in found for at in part) == list(range(size * count))
    assert {len(part) for part in found} == {size}
    assert found == arithmetic.mini_batches(step=step, epoch=epoch, seed=7, global_batch=size * count, size=size)


def test_another_step_trains_other_samples_together() -> None:
    first, second = (arithmetic.mini_batches(step=step, epoch=0, seed=7, global_batch=16, size=8) for step in (0, 1))
    assert first != second


def test_all_faults_of_the_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigInvalid) as told:
        check(PpoSettings(dp=0, spares=-1, clip_ratio=2.0, target_bytes=(9, 3), global_batch=10, inner_timeout_s=200))
    for part in (
        "dp, tp and pp",
        "spares",
        "clip_ratio",
        "target_bytes",
        "global_batch 10 must divide",
        "inner_timeout_s",
    ):
        assert part in str(told.value)


def test_what_megatron_would_stumble_over_is_told_before() -> None:
    with pytest.raises(ConfigInvalid, match=r"mini_batch 8 does not divide by 3 replicas .* model.layers: "):
        check(PpoSettings(dp=3, pp=3))


def test_the_settings_of_the_demo_are_fine() -> None:
    check(PpoSettings())


def test_stale_rendezvous_variables_are_replaced_or_cleared() -> None:
    environment = {
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "1",
        "WORLD_SIZE": "64",
        "RANK": "63",
        "LOCAL_RANK": "7",
        "GROUP_RANK": "7",
        "TORCHELASTIC_RUN_ID": "old",
        "HOME": "/root",
    }
    renew_rendezvous(environment, rank=3, world_size=4, store="[::1]:2900")
    assert rendezvous(environment) == {
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "2900",
        "WORLD_SIZE": "4",
        "RANK": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert environment["HOME"] == "/root"
