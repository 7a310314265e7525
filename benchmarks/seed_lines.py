"""Long measurements in parts: a line of JSON a seed, written as soon as it is done, so that a run that was
stopped goes on where it was when it is started again with the same file. Used by g5 and g14.

Each line names the `state` of the sources that it was made with, so that what is summed is of one state alone:
documents, pages and what else no world runs may change meanwhile. What was made elsewhere, or on another day, counts
too where it is kept in `results/lines`, by the name of the file.
"""

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

AT_A_TIME = 20
STATE_CHARS = 12
ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).resolve().parent / "results" / "lines"
RUN = ("agents", "controlplane", "trainer")
"""The packages of which a world runs something."""
Line = dict[str, Any]


def state_of_sources() -> str:
    """A digest of the modules of the product that this process has imported, which are those that its worlds run."""
    digest = hashlib.sha256()
    for name in sorted(each for each in sys.modules if each.split(".")[0] in RUN):
        path = Path(str(sys.modules[name].__file__))
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:STATE_CHARS]


def lines_of(path: Path, wanted: range, one: Callable[[int], Line], *, processes: int, sum_alone: bool) -> list[Line]:
    """The lines of all wanted seeds, each with its `seed`: those that the file has of this state of the sources,
    and those that `one` makes now unless `sum_alone`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = state_of_sources()
    found = (*_kept(path.stem, wanted), *_read(path, wanted))
    lines = list({line["seed"]: line for line in found if line.get("state") == state}.values())
    known = {line["seed"] for line in lines}
    left = [] if sum_alone else [seed for seed in wanted if seed not in known]
    with path.open("a") as file:
        for line in _run(left, one, processes=processes):
            lines.append(line | {"state": state})
            file.write(json.dumps(lines[-1]) + "\n")
            file.flush()
    return lines


def _run(seeds: list[int], one: Callable[[int], Line], *, processes: int) -> Iterator[Line]:
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        yield from pool.map(one, seeds, chunksize=AT_A_TIME)


def _kept(name: str, wanted: range) -> list[Line]:
    path = KEPT / f"{name}.jsonl.gz"
    text = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line["seed"] in wanted and "unfit" not in line]


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
