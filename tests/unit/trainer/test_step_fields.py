"""Fields of `training` that act inside of a step, one by one."""

from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.protocol.spec import Model, Numerics, Parallelism, Training

pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
import torch

from trainer import engine, reporting
from trainer.control.rerun import Rerun


class Slept(Exception):
    """Instead of sleeping."""


def hashed(every: int, step: int) -> bool:
    """The report of this step has a hash of the state."""
    commit: Any = SimpleNamespace(step=step, epoch=1, micro_batches=1, trained=(), applied=None, copy_wait_s=0.0)
    clock: Any = SimpleNamespace(began_s=0.0, stall_s=0.0, exchange_s=0.0)
    standing: Any = SimpleNamespace(committed=step, is_joiner=False, ref=SimpleNamespace(rank=1))
    its_engine: Any = SimpleNamespace(
        config=SimpleNamespace(training=Training(hash_every_steps=every)),
        micro_batch_count=1, tokens_per_micro_batch=1, state_hash=lambda: "hash",
        timings=SimpleNamespace(step_over=lambda *_, **__: None),
    )  # fmt: skip
    return reporting.step_report(commit, clock, its_engine, standing).parameter_hash == "hash"


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (0, [])])
def test_the_state_is_hashed_as_often_as_asked_for(every: int, steps: list[int]) -> None:
    """`hash_every_steps`."""
    assert [step for step in range(1, 7) if hashed(every, step)] == steps


def test_a_micro_batch_is_slowed_down_by_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """`step_delay_s`."""

    def sleep(seconds: float) -> None:
        raise Slept(seconds)

    monkeypatch.setattr(engine, "time", SimpleNamespace(sleep=sleep))
    rank: Any = SimpleNamespace(
        config=SimpleNamespace(training=Training(step_delay_s=0.25)), faults=SimpleNamespace(slow_s=0.0)
    )
    with pytest.raises(Slept, match=r"^0\.25$"):
        next(engine.Engine._batches(rank, 1, [0], [], first=True))


@pytest.mark.parametrize(("factor", "spike"), [(2.0, True), (10.0, False)])
def test_a_loss_so_many_times_the_largest_is_a_spike(factor: float, spike: bool) -> None:
    """`spike_factor`."""
    rerun = object.__new__(Rerun)  # Megatron's machine is one of the whole process.
    rerun._settings = Numerics(rerun="validate_results", check_spike=True, spike_factor=factor)
    machine: Any = SimpleNamespace(state="its second run", max_values={"loss": 1.0})
    assert rerun._is_spike(machine, torch.tensor(5.0)) is spike


def test_a_mixture_of_which_a_token_takes_one_expert_is_one_that_megatron_builds() -> None:
    """`experts_per_token` = 1 was accepted at submit and refused by Megatron in each rank."""
    from trainer.layers import transformer_config

    config: Any = SimpleNamespace(
        model=Model(family="moe", experts_per_token=1), parallelism=Parallelism(), training=Training()
    )
    assert transformer_config(config).moe_router_pre_softmax
