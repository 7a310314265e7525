"""Who computes which micro-batch. Pure; every rank of every replica gets the same answer."""

from collections.abc import Iterable, Sequence

from controlplane.protocol.membership import Install


def share(micro_batches: Sequence[int], contributors: Sequence[int], replica: int) -> tuple[int, ...]:
    """`replica`'s part of `micro_batches`, dealt round-robin over the sorted contributors."""
    if replica not in contributors:
        return ()
    place = sorted(contributors).index(replica)
    return tuple(sorted(micro_batches)[place :: len(contributors)])


def missing(micro_batch_count: int, done: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Ids of 0..count-1 that nobody holds."""
    held = {micro_batch for ids in done for micro_batch in ids}
    return tuple(number for number in range(micro_batch_count) if number not in held)


def share_of_install(install: Install, micro_batch_count: int, replica: int) -> tuple[int, ...]:
    """What `replica` still has to compute of the installed step; gradients that a
    contributor holds already are kept, so the global batch stays constant."""
    contributors = install.contributors
    done = [entry.micro_batches for entry in install.done if entry.replica in contributors]
    return share(missing(micro_batch_count, done), contributors, replica)


def admitted(
    joined: Iterable[int], contributors: Iterable[int], standbys: Iterable[int], limit: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Contributors and standbys once `joined` hold the state: the lowest-numbered of those who
    came contribute while there are fewer than `limit` (None: no limit), the others stand by."""
    counted, waiting = set(contributors), set(standbys)
    for replica in sorted(set(joined) - counted - waiting):
        (counted if limit is None or len(counted) < limit else waiting).add(replica)
    return tuple(sorted(counted)), tuple(sorted(waiting))


def held_by(install: Install, replica: int) -> tuple[int, ...]:
    """Micro-batches of the installed step that count as held by `replica`."""
    held = [entry.micro_batches for entry in install.done if entry.replica == replica]
    return held[0] if held else ()
