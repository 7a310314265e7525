"""A re-planned layout fits the devices' memory, by an estimate that knows the models."""

import msgspec
import pytest

from controlplane.policy.elastic import layout_for
from controlplane.policy.errors import NoLayout
from controlplane.policy.layout import plan_layout
from controlplane.policy.memory import activation_bytes, device_bytes, parameters_per_device, state_bytes
from controlplane.policy.placement import build_pool
from controlplane.protocol.presets import PRESETS
from controlplane.protocol.spec import Model, Parallelism, Training

from .builders import node, running, spec

PUBLISHED = {
    "gpt-345m": 345e6,
    "gpt-857m": 857e6,
    "gpt-1.7b": 1.7e9,
    "gpt-3.6b": 3.6e9,
    "gpt-7.1b": 7.1e9,
    "bert-110m": 110e6,
    "mixtral-8x7b": 46.7e9,
}
BIG = Model(**PRESETS["gpt-1.7b"])
GB = 10**9


@pytest.mark.parametrize(("preset", "parameters"), PUBLISHED.items())
def test_a_published_model_has_about_its_published_parameters(preset: str, parameters: float) -> None:
    assert parameters_per_device(Model(**PRESETS[preset]), Parallelism()) == pytest.approx(parameters, rel=0.04)


def test_splitting_a_model_takes_memory_off_each_device() -> None:
    whole, halved = Parallelism(), Parallelism(tp=2)
    assert state_bytes(BIG, halved, Training()) == state_bytes(BIG, whole, Training()) // 2
    assert activation_bytes(BIG, halved, Training()) < activation_bytes(BIG, whole, Training())
    sequence = Parallelism(tp=2, sequence_parallel=True)
    assert activation_bytes(BIG, sequence, Training()) < activation_bytes(BIG, halved, Training())


def test_the_distributed_optimizer_takes_its_state_and_what_travels_off_each_device() -> None:
    """Sixteen bytes a parameter in fp32; experts are shared with those who hold the same ones."""
    moe = Model(family="moe", hidden=64, experts=4)
    plain, spread = Parallelism(replica_dp=4), Parallelism(replica_dp=4, ep=2)
    for model, layout, least, most in ((BIG, plain, 0.75, 0.75), (moe, plain, 0.75, 0.75), (moe, spread, 0.5, 0.7)):
        shared = msgspec.structs.replace(layout, distributed_optimizer=True)
        alike = 16 * parameters_per_device(model, layout)
        less = state_bytes(model, layout, Training()) - state_bytes(model, shared, Training())
        assert least * alike <= less <= most * alike + 16, layout


def test_a_layout_that_does_not_fit_is_left_out() -> None:
    wide = spec(parallelism=Parallelism(tp=8, pp=1, dp=1), model=BIG, nodes=8)
    alone = device_bytes(BIG, Parallelism(), wide.training)
    with pytest.raises(NoLayout, match=r"fits their memory: the smallest has \d+\.\d GB, an estimated \d+\.\d GB"):
        plan_layout(wide, 1, memory_bytes=alone - 1)
    assert plan_layout(wide, 1, memory_bytes=alone).parallelism.tp == 1


def test_what_was_asked_for_is_not_refused_by_an_estimate() -> None:
    asked = spec(parallelism=Parallelism(tp=1, pp=2, dp=1), model=BIG, nodes=8)
    assert plan_layout(asked, 2, memory_bytes=GB).parallelism == asked.parallelism


def test_the_smallest_device_of_the_pool_decides() -> None:
    snapshot = running()
    wide = spec(parallelism=Parallelism(tp=8, pp=1, dp=1), model=BIG, nodes=8, min_replicas=1)
    small, large = GB, 10**13
    nodes = tuple(
        msgspec.structs.replace(
            one, devices=tuple(msgspec.structs.replace(device, memory_bytes=size) for device in one.devices)
        )
        for one, size in ((node(0), small), (node(1), large))
    )
    seen = msgspec.structs.replace(snapshot, job=msgspec.structs.replace(snapshot.job, spec=wide), nodes=nodes)
    assert layout_for(seen, build_pool(nodes[1:], job_id="job_1")).idle_devices == 0
    with pytest.raises(NoLayout, match="memory"):
        layout_for(seen, build_pool(nodes, job_id="job_1"))
