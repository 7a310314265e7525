"""The mesh kind loses, doubles and reorders nothing; an odd batch is refused, never cut short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.workloads.dispatch import MESH, Call, Columns, DispatchRegistry, Reply, join, split
from trainer.workloads.errors import InvalidArguments
from trainer.workloads.mesh import Mesh


class Numbers(Columns, frozen=True):
    sample: list[int]
    twice: list[int]


class Work(Call, frozen=True):
    dispatch = MESH
    batch: Numbers


class Result(Reply, frozen=True):
    batch: Numbers


class Announce(Call, frozen=True):
    text: str


meshes = st.builds(Mesh, dp=st.integers(1, 6), tp=st.integers(1, 3), pp=st.integers(1, 4))


def numbers(count: int) -> Numbers:
    return Numbers(sample=list(range(count)), twice=[2 * number for number in range(count)])


@given(meshes)
def test_coordinates_and_ranks_are_one_to_one(mesh: Mesh) -> None:
    places = mesh.ranks()
    assert len({(place.dp, place.tp, place.pp) for place in places}) == mesh.size
    assert all(mesh.rank_of(dp=place.dp, tp=place.tp, pp=place.pp) == place.rank for place in places)
    assert sorted(rank for dp in range(mesh.dp) for rank in mesh.replica(dp)) == list(range(mesh.size))


@given(meshes, st.integers(1, 5))
def test_every_sample_goes_to_exactly_one_replica_and_to_all_of_its_ranks(mesh: Mesh, each: int) -> None:
    parts = DispatchRegistry().dispatch(mesh, Work(batch=numbers(each * mesh.dp)))
    by_replica = [{tuple(parts[rank].batch.sample) for rank in mesh.replica(dp)} for dp in range(mesh.dp)]
    assert all(len(seen) == 1 for seen in by_replica)
    trained = [sample for seen in by_replica for chunk in seen for sample in chunk]
    assert trained == list(range(each * mesh.dp))


@given(meshes, st.integers(1, 5))
def test_what_is_dispatched_comes_back_whole_and_in_order(mesh: Mesh, each: int) -> None:
    registry, call = DispatchRegistry(), Work(batch=numbers(each * mesh.dp))
    replies = [Result(batch=part.batch) for part in registry.dispatch(mesh, call)]
    assert registry.collect(mesh, call, replies).batch == call.batch


@given(meshes)
def test_only_tp_0_of_the_last_stage_is_heard(mesh: Mesh) -> None:
    registry, call = DispatchRegistry(), Work(batch=numbers(mesh.dp))
    places = mesh.ranks()
    replies = [Result(batch=Numbers(sample=[place.rank], twice=[0])) for place in places]
    heard = [places[rank] for rank in registry.collect(mesh, call, replies).batch.sample]
    assert [place.dp for place in heard] == list(range(mesh.dp))
    assert all(place.tp == 0 and place.pp == mesh.pp - 1 for place in heard)


@given(meshes)
def test_pass_through_reaches_every_rank_and_hears_every_rank(mesh: Mesh) -> None:
    registry, call = DispatchRegistry(), Announce(text="hello")
    parts = registry.dispatch(mesh, call)
    assert parts == (call,) * mesh.size
    replies = [Result(batch=numbers(rank + 1)) for rank in range(mesh.size)]
    assert registry.collect(mesh, call, replies) == tuple(replies)


@given(st.integers(1, 40), st.integers(1, 8))
def test_a_batch_is_cut_evenly_or_refused(count: int, parts: int) -> None:
    batch = numbers(count)
    if count % parts:
        with pytest.raises(InvalidArguments, match=f"{count} samples do not divide by {parts} replicas; send "):
            split(batch, parts)
    else:
        chunks = split(batch, parts)
        assert {len(chunk.sample) for chunk in chunks} == {count // parts}
        assert join(chunks) == batch
