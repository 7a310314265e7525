"""A layout for fewer devices: whatever divides must divide, and what is left over is said."""

import itertools

import pytest

from controlplane.policy.errors import NoLayout
from controlplane.policy.layout import plan_layout
from controlplane.policy.plan import PlaceAttempt
from controlplane.protocol.layout_checks import layout_faults
from controlplane.protocol.spec import Model, Parallelism, ranks_per_replica
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import action, job, node, only, running, spec

MODELS = {
    "gpt": Model(heads=24, layers=18, hidden=96, vocab_size=1536),
    "few kv heads": Model(heads=24, kv_heads=6, layers=12, hidden=96, vocab_size=1536),
    "odd vocabulary": Model(heads=12, layers=12, hidden=96, vocab_size=30_522),
    "moe": Model(family="moe", heads=12, layers=12, hidden=96, vocab_size=1536, experts=6, experts_per_token=2),
}
WIDE = {
    "gpt": Parallelism(tp=6, pp=6, dp=2),
    "few kv heads": Parallelism(tp=6, pp=4, dp=2),
    "odd vocabulary": Parallelism(tp=6, pp=6, dp=2),
    "moe": Parallelism(tp=2, pp=2, ep=6, replica_dp=6, sequence_parallel=True, dp=2),
}


@pytest.mark.parametrize(("name", "devices"), itertools.product(MODELS, (*range(1, 24), 48, 71)))
def test_heads_kv_heads_layers_experts_and_devices_all_divide_and_idle_ones_are_counted(
    name: str, devices: int
) -> None:
    model = MODELS[name]
    wish = spec(parallelism=WIDE[name], model=model, nodes=72)
    found = plan_layout(wish, devices)
    layout, used = found.parallelism, ranks_per_replica(found.parallelism) * found.replicas
    assert list(layout_faults(layout, model, wish.training, built_in=True)) == []
    assert model.heads % layout.tp == 0
    assert (model.kv_heads or model.heads) % layout.tp == 0
    assert model.layers % layout.pp == 0
    assert model.family != "moe" or model.experts % layout.ep == 0
    assert layout.dp == found.replicas >= 1
    assert used + found.idle_devices == devices
    assert found.idle_devices >= 0


@pytest.mark.parametrize("devices", range(36, 72))
def test_while_one_replica_fits_tp_and_pp_stay_and_dp_shrinks(devices: int) -> None:
    found = plan_layout(spec(parallelism=WIDE["gpt"], model=MODELS["gpt"], nodes=72), devices)
    assert (found.parallelism.tp, found.parallelism.pp, found.replicas) == (6, 6, 1)
    assert found.idle_devices == devices - 36


def test_each_contributing_replica_has_a_share_of_the_global_batch() -> None:
    wish = spec(parallelism=Parallelism(pp=2, dp=3), nodes=3)
    for devices in range(2, 7):
        assert plan_layout(wish, devices).replicas <= wish.training.global_batch // wish.training.micro_batch


def test_the_decision_says_how_many_devices_stay_idle() -> None:
    waiting = running(
        job=job(state=JobState.PENDING, epoch=0), attempt=None, replicas=(), view=None, install=None,
        nodes=(node(0), node(1), node(2, devices=3)), fleet_devices=7,
    )  # fmt: skip
    decision = only(waiting, "lifecycle")
    assert action(decision, PlaceAttempt)
    assert "1 device free" in decision.sentence


def test_no_layout_is_said_with_what_is_missing() -> None:
    with pytest.raises(NoLayout, match="12 devices hold 0 replicas of 36"):
        plan_layout(spec(parallelism=WIDE["gpt"], model=MODELS["gpt"], nodes=72), 12, allow_relayout=False)
