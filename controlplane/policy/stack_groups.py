"""The stacks of many ranks as a few groups: "7,998 in all_reduce, 2 in the data loader". Pure.

Reads the three forms in which agents send stacks (py-spy, faulthandler, the kernel's view) and
takes the thread that trains. `recovery.incident_evidence` asks.
"""

import re
from collections.abc import Iterable

import msgspec

NO_STACK = "no stack"
MAX_FRAMES = 12
MAX_RANKS = 16
_PY_SPY = re.compile(r"^\s+(?P<name>\S+) \((?P<file>[^():]*):?(?P<line>\d*)\)")
_FAULTHANDLER = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')
_THREAD = re.compile(r"^(?:Thread|Current thread|Process)\b")
_WCHAN = re.compile(r"^thread \d+ \S+ wchan (?P<where>\S+)")
_COLLECTIVES = (
    "all_reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "reduce_scatter", "broadcast",
    "barrier", "all_to_all", "batch_isend_irecv", "isend", "irecv", "send", "recv", "reduce", "gather", "scatter",
)  # fmt: skip
_PLACES = (
    ("the data loader", re.compile(r"dataloader|dataset|/data/|next_batch|get_batch", re.IGNORECASE)),
    ("a checkpoint", re.compile(r"checkpoint|save_|load_state", re.IGNORECASE)),
    ("the optimizer", re.compile(r"optimizer", re.IGNORECASE)),
    ("the backward pass", re.compile(r"\bbackward", re.IGNORECASE)),
    ("the forward pass", re.compile(r"\bforward", re.IGNORECASE)),
)
_IDLE = ("_bootstrap", "_worker", "_run_thread")


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose training thread is in the same place. `ranks`: the first MAX_RANKS of `count`,
    by name; `frames` of the first of them, innermost first."""

    where: str
    count: int
    ranks: tuple[str, ...]
    frames: tuple[str, ...] = ()


def group_stacks(stacks: Iterable[tuple[str, str, str]]) -> tuple[StackGroup, ...]:
    """From (rank's name, its place by `place_of` where that was kept, text of its stacks; empty: none
    was got or kept), the largest group first."""
    found: dict[str, list[str]] = {}
    shown: dict[str, tuple[str, ...]] = {}
    for name, place, text in stacks:
        read, frames = place_of(text)
        where = place or read
        found.setdefault(where, []).append(name)
        shown[where] = shown.get(where) or frames
    groups = [
        StackGroup(where=where, count=len(ranks), ranks=tuple(ranks[:MAX_RANKS]), frames=shown[where])
        for where, ranks in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (group.where == NO_STACK, -group.count, group.where)))


def sentence(groups: Iterable[StackGroup]) -> str:
    """ "7,998 in all_reduce, 2 in the data loader"; empty for none."""
    return ", ".join(
        f"{group.count:,} {'without a stack' if group.where == NO_STACK else f'in {group.where}'}" for group in groups
    )


def place_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Where the thread that trains is, in words, and its frames, innermost first."""
    threads = [frames for frames in _threads(text) if frames]
    working = [frames for frames in threads if not any(name in _IDLE for name, _, _ in frames)]
    if not threads:
        return _kernel(text), ()
    frames = (working or threads)[-1]
    shown = tuple(f"{name} ({file}:{line})" if line else f"{name} ({file})" for name, file, line in frames[:MAX_FRAMES])
    for name, _, _ in frames:
        if name in _COLLECTIVES:
            return name, shown
    for where, pattern in _PLACES:
        if any(pattern.search(f"{file} {name}") for name, file, _ in frames):
            return where, shown
    name, file, line = frames[0]
    return f"{name} ({file.rpartition('/')[2]}{':' + line if line else ''})", shown


def _threads(text: str) -> list[list[tuple[str, str, str]]]:
    threads: list[list[tuple[str, str, str]]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
            continue
        match = _FAULTHANDLER.match(line) or _PY_SPY.match(line)
        if match:
            threads[-1].append((match["name"], match["file"], match["line"]))
    return threads


def _kernel(text: str) -> str:
    if "SIGSTOP" in text:
        return "a stopped process (SIGSTOP)"
    match = next((m for line in text.splitlines() if (m := _WCHAN.match(line))), None)
    return f"the kernel ({match['where']})" if match else NO_STACK
