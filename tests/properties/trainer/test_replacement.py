"""Whoever dies: the mesh that is left is whole, holds nobody twice, and nobody dead."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.workloads.errors import NoRanksLeft
from trainer.workloads.mesh import Mesh
from trainer.workloads.replacement import Replacement, World, replace


@st.composite
def losses(draw: st.DrawFn) -> tuple[World, frozenset[int]]:
    """A world and some dead processes of it."""
    mesh = draw(st.builds(Mesh, dp=st.integers(1, 4), tp=st.integers(1, 2), pp=st.integers(1, 3)))
    spares = draw(st.integers(0, 5))
    numbers = draw(st.permutations(range(mesh.size + spares)))
    world = World(mesh=mesh, holders=tuple(numbers[: mesh.size]), spares=tuple(numbers[mesh.size :]))
    return world, frozenset(draw(st.sets(st.sampled_from(sorted(numbers)))))


def after(world: World, dead: frozenset[int]) -> Replacement | None:
    try:
        return replace(world, dead)
    except NoRanksLeft:
        return None


@given(losses())
def test_the_new_world_is_whole_and_alive(case: tuple[World, frozenset[int]]) -> None:
    world, dead = case
    change = after(world, dead)
    if change is None:
        return
    new = change.world
    assert len(new.holders) == new.mesh.size
    everybody = [*new.holders, *new.spares]
    assert len(set(everybody)) == len(everybody)
    assert set(everybody) == {*world.holders, *world.spares} - dead


@given(losses())
def test_who_keeps_a_place_keeps_its_coordinates_and_only_others_are_fresh(
    case: tuple[World, frozenset[int]],
) -> None:
    world, dead = case
    change = after(world, dead)
    if change is None:
        return
    had = {number: world.mesh.at(rank) for rank, number in enumerate(world.holders)}
    for place in change.world.mesh.ranks():
        if place.rank not in change.fresh:
            before = had[change.world.holders[place.rank]]
            assert (before.tp, before.pp) == (place.tp, place.pp)


@given(losses())
def test_with_enough_spares_every_rank_is_replaced_where_it_was(case: tuple[World, frozenset[int]]) -> None:
    world, dead = case
    gone = [rank for rank, number in enumerate(world.holders) if number in dead]
    if len(gone) > len(set(world.spares) - dead):
        return
    change = replace(world, dead)
    assert change.world.mesh == world.mesh
    assert change.fresh == tuple(gone)
    kept = [rank for rank in range(world.mesh.size) if rank not in gone]
    assert [change.world.holders[rank] for rank in kept] == [world.holders[rank] for rank in kept]


@given(losses())
def test_no_more_replicas_are_dissolved_than_must_be(case: tuple[World, frozenset[int]]) -> None:
    world, dead = case
    living = len({*world.holders, *world.spares} - dead)
    change = after(world, dead)
    possible = min(world.mesh.dp, living // world.mesh.replica_size)
    assert (change.world.mesh.dp if change else 0) == possible
