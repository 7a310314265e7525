"""Who takes the place of the dead. Pure: a mesh and who holds its ranks in, the same out.

1. Enough hands: each dead rank is replaced at its own place, wherever the others are.
2. Too few: replicas are dissolved, the one with most dead first, until the rest can be made
   whole and the batch divides by their number. What still lives of a dissolved replica
   stands by, and is the first to step in where its own coordinates are free, because the
   state there is its own.
3. None left: NoRanksLeft.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from trainer.workloads.errors import InvalidArguments, NoRanksLeft
from trainer.workloads.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """`holders[rank]` is the number of the process that holds the rank; `spares` stand by."""

    mesh: Mesh
    holders: tuple[int, ...]
    spares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The world after it. `fresh`: ranks whose process has no state of that place;
    `dissolved`: data coordinates (of the old mesh) that are gone."""

    world: World
    fresh: tuple[int, ...]
    dissolved: tuple[int, ...]
    reason: str


def replace(world: World, dead: Set[int], *, fits: Callable[[int], bool] = lambda _dp: True) -> Replacement:
    """`dead`: process numbers. `fits(dp)`: whether so many replicas can share the batch.
    Raises NoRanksLeft."""
    mesh, places = world.mesh, world.mesh.ranks()
    missing = [place for place in places if world.holders[place.rank] in dead]
    spares = tuple(number for number in world.spares if number not in dead)
    if not missing:
        unchanged = World(mesh=mesh, holders=world.holders, spares=spares)
        return Replacement(world=unchanged, fresh=(), dissolved=(), reason="every rank is alive")
    kept = list(range(mesh.dp))
    dead_in = {dp: sum(place.dp == dp for place in missing) for dp in kept}
    freed: list[int] = []
    while kept and (sum(dead_in[dp] for dp in kept) > len(spares) + len(freed) or not fits(len(kept))):
        worst = max(kept, key=lambda dp: (dead_in[dp], dp))
        kept.remove(worst)
        freed += [rank for rank in mesh.replica(worst) if world.holders[rank] not in dead]
    if not kept:
        raise NoRanksLeft(
            f"{len(missing)} of {mesh.size} ranks are dead, {len(spares)} spares are left and no number of whole "
            "replicas fits the batch; start anew from the newest checkpoint with more devices"
        )
    smaller = Mesh(len(kept), mesh.tp, mesh.pp)
    holders, fresh, left = _fill(world, smaller, kept, dead, freed, spares)
    dissolved = tuple(dp for dp in range(mesh.dp) if dp not in kept)
    return Replacement(
        world=World(mesh=smaller, holders=holders, spares=left),
        fresh=fresh,
        dissolved=dissolved,
        reason=_reason(len(missing), len(spares), dissolved),
    )


def _fill(
    world: World, mesh: Mesh, kept: Sequence[int], dead: Set[int], freed: Sequence[int], spares: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(holders, fresh ranks, spares that are left) of the mesh of `kept` replicas."""
    old = world.mesh
    with_state = {rank: (old.at(rank).tp, old.at(rank).pp) for rank in freed}
    unused = list(spares)
    holders, empty = [], []
    for place in mesh.ranks():
        number = world.holders[old.rank_of(dp=kept[place.dp], tp=place.tp, pp=place.pp)]
        twin = next((rank for rank, where in with_state.items() if where == (place.tp, place.pp)), None)
        if number in dead and twin is not None:
            del with_state[twin]
            number = world.holders[twin]
        elif number in dead:
            empty.append(place.rank)
        holders.append(number)
    unused += [world.holders[rank] for rank in with_state]
    for rank in empty:
        holders[rank] = unused.pop(0)
    return tuple(holders), tuple(empty), tuple(unused)


def _reason(missing: int, spares: int, dissolved: Sequence[int]) -> str:
    if not dissolved:
        return f"{missing} dead ranks replaced at their own places"
    gone = ", ".join(str(dp) for dp in dissolved)
    return f"{missing} dead ranks and {spares} spares: replicas {gone} dissolved"


def share(mini_batch: int, mesh: Mesh, *, micro_batch: int = 1) -> int:
    """Samples of a mini-batch that one replica of the mesh trains. Raises InvalidArguments."""
    if mini_batch < 1 or mini_batch % (mesh.dp * micro_batch):
        fitting = [dp for dp in range(1, mini_batch + 1) if mini_batch % (dp * micro_batch) == 0]
        raise InvalidArguments(
            f"mini_batch {mini_batch} does not divide by {mesh.dp} replicas x micro_batch {micro_batch}; "
            f"numbers of replicas that fit: {', '.join(map(str, fitting)) or 'none'}"
        )
    return mini_batch // mesh.dp
