"""Long measurements in parts: a line of JSON a seed, written as soon as it is done, so that a run that was
stopped goes on where it was when it is started again with the same file. Used by g5 and g14."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

AT_A_TIME = 20
Line = dict[str, Any]


def lines_of(path: Path, wanted: range, one: Callable[[int], Line], *, processes: int, sum_alone: bool) -> list[Line]:
    """The lines of all wanted seeds, each with its `seed`: those that the file has, and those that `one` makes
    now unless `sum_alone`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = _read(path, wanted)
    known = {line["seed"] for line in lines}
    left = [] if sum_alone else [seed for seed in wanted if seed not in known]
    with path.open("a") as file:
        for line in _run(left, one, processes=processes):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
    return lines


def _run(seeds: list[int], one: Callable[[int], Line], *, processes: int) -> Iterator[Line]:
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        yield from pool.map(one, seeds, chunksize=AT_A_TIME)


def _read(path: Path, wanted: range) -> list[Line]:
    """What an earlier run has judged. A last line that was cut off is taken out, and so is what could
    not be judged: both are tried again."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = [each for each in text.splitlines(keepends=True) if each.endswith("\n")]
    kept = [each for each in whole if "unfit" not in json.loads(each)]
    if "".join(kept) != text:
        path.write_text("".join(kept))
    return [line for line in map(json.loads, kept) if line["seed"] in wanted]
