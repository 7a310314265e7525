"""Micro-batches are shared out so that every one is computed exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.membership import Install, ReplicaDone
from trainer.core.shares import held_by, missing, share, share_of_install

replica_sets = st.sets(st.integers(0, 9), min_size=1).map(lambda ids: tuple(sorted(ids)))


def install(contributors: tuple[int, ...], done: dict[int, tuple[int, ...]]) -> Install:
    return Install("job", 1, 2, 5, contributors, tuple(ReplicaDone(r, ids) for r, ids in done.items()))


@given(st.integers(0, 40), replica_sets)
def test_shares_are_disjoint_and_whole(count: int, contributors: tuple[int, ...]) -> None:
    dealt = [number for replica in contributors for number in share(range(count), contributors, replica)]
    assert sorted(dealt) == list(range(count))


@given(st.integers(0, 40), replica_sets)
def test_shares_differ_by_one_at_most(count: int, contributors: tuple[int, ...]) -> None:
    sizes = [len(share(range(count), contributors, replica)) for replica in contributors]
    assert max(sizes) - min(sizes) <= 1


def test_a_joiner_gets_nothing() -> None:
    assert share(range(12), (0, 2), 1) == ()


@given(st.integers(1, 30), replica_sets, st.data())
def test_what_survivors_hold_and_what_is_dealt_again_is_one_global_batch(
    count: int, contributors: tuple[int, ...], data: st.DataObject
) -> None:
    owner = data.draw(st.lists(st.sampled_from([*contributors, -1]), min_size=count, max_size=count))
    done = {r: tuple(n for n in range(count) if owner[n] == r) for r in contributors}
    order = install(contributors, done)
    after = [n for r in contributors for n in (*held_by(order, r), *share_of_install(order, count, r))]
    assert sorted(after) == list(range(count))


def test_what_a_replica_that_left_held_is_dealt_again() -> None:
    order = install((0, 2), {0: (0, 3), 1: (1, 4), 2: (2, 5)})
    assert share_of_install(order, 6, 0) == (1,)
    assert share_of_install(order, 6, 2) == (4,)


def test_missing_names_what_nobody_holds() -> None:
    assert missing(6, [(0, 1), (4,)]) == (2, 3, 5)
