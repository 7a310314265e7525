"""Many rows as columns: a list for each field, as long as there are rows.

Rows of a list repeat the name of every field and most of the words; columns say each name once, and a word that many
rows share once too. `worded` is the second: `words`, and for each row which of them.
"""

from collections.abc import Sequence
from typing import Any


def worded(values: Sequence[str | None]) -> dict[str, list[Any]]:
    """A column of few different words: `words` as they first come, and `at` the place of each row's; None: it has
    none."""
    words = [word for word in dict.fromkeys(values) if word is not None]
    places: dict[str | None, int | None] = {word: place for place, word in enumerate(words)} | {None: None}
    return {"words": words, "at": list(map(places.__getitem__, values))}
