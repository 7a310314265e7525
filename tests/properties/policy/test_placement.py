"""Segments are a preference: they never refuse, never divide what fits, never part a TP group."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.placement import Pool, place_gang, place_replica, slots_of
from controlplane.policy.snapshot import Placement

sizes = st.lists(st.integers(1, 8), min_size=1, max_size=10)
names = st.sampled_from(["", "a", "b", "c"])


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Nodes n0, n1, ... with some devices each, in segments or in none."""
    nodes = tuple((f"n{number}", tuple(range(size))) for number, size in enumerate(draw(sizes)))
    return Pool(nodes=nodes, segments={node: name for node, _ in nodes if (name := draw(names))})


def without_segments(pool: Pool) -> Pool:
    return msgspec.structs.replace(pool, segments={})


def segments_of(pool: Pool, placed: tuple[Placement, ...]) -> set[tuple[bool, str]]:
    return {pool.segment_of(place.node_id) for place in placed}


def divided(placed: tuple[Placement, ...], tp: int) -> int:
    """Tensor parallel groups that lie on more than one node."""
    nodes = [place.node_id for place in placed]
    return sum(len(set(nodes[first : first + tp])) > 1 for first in range(0, len(nodes), tp))


def only(pool: Pool, segment: tuple[bool, str]) -> Pool:
    return pool.without_nodes(node for node, _ in pool.nodes if pool.segment_of(node) != segment)


@given(pools(), st.integers(1, 5), st.integers(1, 12), st.sampled_from([1, 2, 4]))
def test_a_gang_is_placed_with_segments_exactly_when_it_is_without(
    pool: Pool, replicas: int, groups: int, tp: int
) -> None:
    world_size = groups * tp
    if pool.size < replicas * world_size:
        for fleet in (pool, without_segments(pool)):
            with pytest.raises(Unsatisfiable):
                place_gang(fleet, replicas, world_size, tp=tp)
        return
    slots = [slot for placed in place_gang(pool, replicas, world_size, tp=tp) for slot in slots_of(placed)]
    free = {(node, device) for node, devices in pool.nodes for device in devices}
    assert len(slots) == len(set(slots)) == replicas * world_size and set(slots) <= free


@given(pools(), st.integers(1, 20))
def test_a_replica_that_one_segment_can_hold_is_not_divided_over_two(pool: Pool, world_size: int) -> None:
    if pool.size < world_size:
        return
    placed = place_replica(pool, world_size)
    holding = [s for s in {pool.segment_of(node) for node, _ in pool.nodes} if only(pool, s).size >= world_size]
    used = segments_of(pool, placed)
    assert len(used) == 1 if holding else len(used) > 1
    most = sorted((only(pool, s).size for s in {pool.segment_of(node) for node, _ in pool.nodes}), reverse=True)
    fewest = next(count for count in range(1, len(most) + 1) if sum(most[:count]) >= world_size)
    assert len(used) == fewest


@given(pools(), st.integers(1, 8), st.sampled_from([2, 4, 8]))
def test_no_tensor_parallel_group_is_divided_for_the_sake_of_a_segment(pool: Pool, groups: int, tp: int) -> None:
    world_size = groups * tp
    if pool.size < world_size:
        return
    placed, blind = place_replica(pool, world_size, tp=tp), place_replica(without_segments(pool), world_size, tp=tp)
    assert divided(placed, tp) <= divided(blind, tp)
    if len(segments_of(pool, placed)) > 1:
        for segment in {pool.segment_of(node) for node, _ in pool.nodes}:
            inside = only(pool, segment)
            assert inside.size < world_size or divided(place_replica(inside, world_size, tp=tp), tp) > divided(
                placed, tp
            ), "it leaves a segment that holds it only for the sake of a group"


@given(pools(), st.integers(1, 20))
def test_a_fleet_without_segments_is_filled_as_ever(pool: Pool, world_size: int) -> None:
    pool = without_segments(pool)
    if pool.size < world_size:
        return
    whole = next(((node, devices) for node, devices in pool.nodes if len(devices) >= world_size), None)
    fullest = sorted(pool.nodes, key=lambda entry: -len(entry[1])) if whole is None else [whole]
    expected = [(node, device) for node, devices in fullest for device in devices][:world_size]
    assert list(slots_of(place_replica(pool, world_size))) == expected
