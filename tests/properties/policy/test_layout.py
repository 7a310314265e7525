"""Whatever is left of the fleet, a re-planned layout is one that trains."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.errors import NoLayout
from controlplane.policy.layout import plan_layout
from controlplane.protocol.layout_checks import layout_faults
from controlplane.protocol.spec import (
    Model,
    Parallelism,
    Resources,
    Training,
    TrainSpec,
    micro_batch_count,
    ranks_per_replica,
)

powers = st.sampled_from([1, 2, 4])


@st.composite
def sound_specs(draw: st.DrawFn) -> TrainSpec:
    """Any job that submit would take."""
    family = draw(st.sampled_from(["gpt", "bert", "moe"]))
    tp, pp, inner = draw(powers), draw(powers), draw(st.sampled_from([1, 2, 3, 4, 6]))
    ep = draw(st.sampled_from([1, 2, 4])) if family == "moe" else 1
    layout = Parallelism(
        tp=tp,
        pp=pp,
        vp=draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1,
        ep=ep,
        replica_dp=inner,
        sequence_parallel=tp > 1 and (family == "moe" or (family == "gpt" and draw(st.booleans()))),
        distributed_optimizer=inner > 1 and draw(st.booleans()),
        dp=draw(st.integers(1, 4)),
    )
    model = Model(family=family, layers=draw(st.sampled_from([4, 8, 12, 24])), heads=draw(st.sampled_from([4, 8])))
    spec = TrainSpec(
        resources=Resources(nodes=ranks_per_replica(layout), gpus_per_node=4, min_replicas=1),
        parallelism=layout,
        model=model,
        training=Training(global_batch=24),
    )
    if any(layout_faults(layout, model, spec.training, built_in=True)):
        return draw(sound_specs())
    return spec


@settings(max_examples=200, deadline=None)
@given(sound_specs(), st.integers(0, 80))
def test_a_planned_layout_is_legal_and_fits(spec: TrainSpec, devices: int) -> None:
    try:
        layout = plan_layout(spec, devices)
    except NoLayout:
        assert devices < spec.resources.min_replicas
        return
    used = ranks_per_replica(layout.parallelism) * layout.replicas
    assert not list(layout_faults(layout.parallelism, spec.model, spec.training, built_in=True))
    assert used + layout.idle_devices == devices
    assert layout.replicas * layout.parallelism.replica_dp <= micro_batch_count(spec)


@settings(max_examples=100, deadline=None)
@given(sound_specs(), st.integers(1, 80))
def test_tp_and_pp_are_kept_while_one_data_parallel_rank_of_them_fits(spec: TrainSpec, devices: int) -> None:
    asked = spec.parallelism
    if devices < asked.tp * asked.pp:
        return
    found = plan_layout(spec, devices).parallelism
    assert (found.tp, found.pp, found.vp) == (asked.tp, asked.pp, asked.vp)


@settings(max_examples=100, deadline=None)
@given(sound_specs(), st.integers(1, 80))
def test_the_optimizer_stays_distributed_while_there_is_somebody_to_share_with(spec: TrainSpec, devices: int) -> None:
    try:
        found = plan_layout(spec, devices).parallelism
    except NoLayout:
        return
    assert found.distributed_optimizer == (spec.parallelism.distributed_optimizer and found.replica_dp > 1)
