"""What cannot be dispatched is refused with the reason; the registry is open, not loose."""

from typing import ClassVar

import pytest

from trainer.workloads.dispatch import (
    DISPATCH_TYPES,
    Call,
    Columns,
    DispatchRegistry,
    Reply,
    columns_from,
    join,
    register_dispatch_type,
    samples,
)
from trainer.workloads.errors import InvalidArguments, NoRanksLeft, UnknownDispatchType
from trainer.workloads.mesh import Mesh
from trainer.workloads.replacement import World, replace, share

MESH_2x2 = Mesh(2, 1, 2)


class Numbers(Columns, frozen=True):
    sample: list[int]
    weight: list[float]


class Work(Call, frozen=True):
    dispatch: ClassVar[str] = "mesh"
    batch: Numbers


class NoBatch(Call, frozen=True):
    dispatch: ClassVar[str] = "mesh"
    text: str = ""


class FirstOnly(Call, frozen=True):
    dispatch: ClassVar[str] = "first_only"
    text: str = ""


class Echo(Reply, frozen=True):
    rank: int


def test_an_uneven_batch_is_refused_with_the_sizes_that_fit() -> None:
    call = Work(batch=Numbers(sample=[1, 2, 3], weight=[1.0, 1.0, 1.0]))
    with pytest.raises(InvalidArguments, match=r"Work by 'mesh': 3 samples do not divide by 2 replicas; send 2 or 4"):
        DISPATCH_TYPES.dispatch(MESH_2x2, call)


def test_every_fault_of_a_batch_is_told_at_once() -> None:
    with pytest.raises(InvalidArguments, match=r"weight is str, not a list or tuple"):
        samples(Numbers(sample=[1], weight="no"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=r"fields differ in length: sample 2, weight 1"):
        samples(Numbers(sample=[1, 2], weight=[1.0]))
    with pytest.raises(InvalidArguments, match="there are no samples"):
        samples(Numbers(sample=[], weight=[]))


def test_missing_and_unknown_fields_are_named() -> None:
    with pytest.raises(InvalidArguments, match=r"Numbers: field 'weight' is missing; field 'wieght' is not known"):
        columns_from(Numbers, {"sample": [1], "wieght": [1.0]})
    with pytest.raises(InvalidArguments, match="Expected `int`"):
        columns_from(Numbers, {"sample": ["one"], "weight": [1.0]})
    assert columns_from(Numbers, {"sample": [1], "weight": [1.0]}) == Numbers(sample=[1], weight=[1.0])


def test_a_call_without_a_batch_cannot_go_over_the_mesh() -> None:
    with pytest.raises(InvalidArguments, match="NoBatch has no field `batch`"):
        DISPATCH_TYPES.dispatch(MESH_2x2, NoBatch())


def test_unlike_parts_are_not_joined() -> None:
    with pytest.raises(InvalidArguments, match="cannot join nothing"):
        join([])


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownDispatchType, match=r"no dispatch type 'first_only'; there are mesh, pass_through"):
        DispatchRegistry().dispatch(MESH_2x2, FirstOnly())


def test_a_registered_kind_serves_its_calls() -> None:
    registry = DispatchRegistry()
    registry.register(
        "first_only",
        lambda mesh, call: [call] + [FirstOnly(text="stand by")] * (mesh.size - 1),
        lambda _mesh, replies: replies[0],
    )
    parts = registry.dispatch(MESH_2x2, FirstOnly(text="go"))
    assert [part.text for part in parts] == ["go", "stand by", "stand by", "stand by"]
    assert registry.collect(MESH_2x2, FirstOnly(), [Echo(rank=rank) for rank in range(4)]) == Echo(rank=0)


def test_a_kind_that_forgets_a_rank_or_makes_another_call_is_caught() -> None:
    registry = DispatchRegistry()
    registry.register("first_only", lambda _mesh, call: [call], lambda _mesh, replies: replies)
    with pytest.raises(InvalidArguments, match="it made 1 calls for 4 ranks"):
        registry.dispatch(MESH_2x2, FirstOnly())
    with pytest.raises(InvalidArguments, match="1 replies of 4 ranks"):
        registry.collect(MESH_2x2, FirstOnly(), [Echo(rank=0)])
    other = DispatchRegistry()
    other.register("first_only", lambda mesh, _call: [NoBatch()] * mesh.size, lambda _mesh, replies: replies)
    with pytest.raises(InvalidArguments, match="it made NoBatch of it"):
        other.dispatch(MESH_2x2, FirstOnly())


def test_a_bad_registration_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="'mesh' is registered already"):
        register_dispatch_type("mesh", lambda _mesh, call: [call], lambda _mesh, replies: replies)
    with pytest.raises(InvalidArguments, match="not an identifier; dispatch is not callable"):
        register_dispatch_type("two words", None, lambda _mesh, replies: replies)  # type: ignore[arg-type]
    assert DISPATCH_TYPES.names() == ("mesh", "pass_through")


def test_a_mini_batch_is_renormalised_or_refused_with_what_fits() -> None:
    assert share(12, Mesh(4)) == 3
    assert share(12, Mesh(3), micro_batch=2) == 4
    with pytest.raises(InvalidArguments, match=r"mini_batch 8 .* 3 replicas .* that fit: 1, 2, 4, 8"):
        share(8, Mesh(3))


def test_a_recovered_mesh_shards_as_before() -> None:
    call = Work(batch=Numbers(sample=[1, 2, 3, 4], weight=[1.0] * 4))
    world = World(mesh=MESH_2x2, holders=(0, 1, 2, 3), spares=(4, 5))
    before = DISPATCH_TYPES.dispatch(world.mesh, call)
    after = replace(world, {1, 3}).world
    assert after.holders == (0, 4, 2, 5)
    assert DISPATCH_TYPES.dispatch(after.mesh, call) == before
    assert before[0].batch != before[1].batch


def test_a_replica_is_dissolved_when_the_batch_would_not_divide() -> None:
    world = World(mesh=Mesh(4), holders=(0, 1, 2, 3), spares=())
    change = replace(world, {1}, fits=lambda dp: 8 % dp == 0)
    assert change.world == World(mesh=Mesh(2), holders=(0, 2), spares=(3,))
    assert change.fresh == ()


def test_nobody_left_is_said_not_crashed_into() -> None:
    with pytest.raises(NoRanksLeft, match=r"2 of 2 ranks are dead, 0 spares are left"):
        replace(World(mesh=Mesh(2), holders=(0, 1), spares=(2,)), {0, 1, 2})
