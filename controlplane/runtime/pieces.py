"""Long lists in pieces: the length of a query does not grow with a job."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """So many of them at a time, in order."""
    left = iter(items)
    while some := tuple(islice(left, size)):
        yield some
