"""What ranks told of a step, in few words: equal values once, and who told them as ranges.

A step of a large job is told by thousands of ranks, nearly all of whom say the same: each rank of a replica has the
hash that its peers in the other replicas have, and replicas share the micro-batches out by a rule. Packed, a step says
each hash once, with the replicas that told it, and each way of sharing once, with the replicas that it holds for: its
length grows with the ranks of one replica and with how much differs, not with the number of replicas. What differs is
kept whole. `unpacked(packed(step))` is what was reported.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any

from controlplane.changes.due.course import Parts, hashes_equal, ledger

Packed = dict[str, Any]
"""As JSON. `ledger`: [[offsets of the ids from the lowest one, replicas, lowest id of each], ...]; `trained`: ids;
`hashes`: {rank: [[hash, replicas], ...]}; of a step that is told whole also `held`, its ledger in sequence, and
`equal`, whether replicas agree. Ids and replicas as `ids_in_words`. What was not told is left out."""
SHORTEST_RANGE = 3


@dataclass(slots=True)
class Detail:
    """What ranks told of one step, as `changes.due.course.Step` has it."""

    micro_batches: dict[str, list[int]] = field(default_factory=dict)
    trained: list[int] | None = None
    parameter_hashes: dict[str, dict[str, str]] = field(default_factory=dict)


def ids_in_words(ids: Sequence[int]) -> str:
    """Numbers from 0 up, in their sequence: "0-2047", "3-99:8" (each eighth), "4,7,5"."""
    if len(ids) >= SHORTEST_RANGE and (stride := ids[1] - ids[0]) > 0:
        run = range(ids[0], ids[0] + len(ids) * stride, stride)
        if ids[-1] == run[-1] and all(map(eq, ids, run)):
            # Most are one range, of thousands.
            return _word(run)
    words, at = [], 0
    while at < len(ids):
        stride = ids[at + 1] - ids[at] if at + 1 < len(ids) else 0
        end = at + 1
        while stride > 0 and end < len(ids) and ids[end] - ids[end - 1] == stride:
            end += 1
        if end - at < SHORTEST_RANGE:
            words.append(str(ids[at]))
            at += 1
            continue
        words.append(_word(range(ids[at], ids[end - 1] + 1, stride)))
        at = end
    return ",".join(words)


def _word(run: range) -> str:
    return f"{run[0]}-{run[-1]}" + (f":{run.step}" if run.step > 1 else "")


def ids_of(words: str) -> list[int]:
    """The same numbers again."""
    return [number for word in words.split(",") if word for number in _range(word)]


def _range(word: str) -> Iterable[int]:
    ends, _, stride = word.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(stride or 1))


def packed(step: Parts) -> Packed:
    """In few words."""
    found: Packed = {}
    if step.micro_batches:
        found["ledger"] = _ledger_packed(step.micro_batches)
    if step.trained is not None:
        found["trained"] = ids_in_words(step.trained)
    if step.parameter_hashes:
        ranks = sorted(step.parameter_hashes.items(), key=lambda pair: int(pair[0]))
        found["hashes"] = {rank: _hashes_packed(by_replica) for rank, by_replica in ranks}
    return found


def packed_whole(step: Parts) -> Packed:
    """With what is asked of a step that is over, so that a chart unpacks nothing."""
    return packed(step) | {"held": ids_in_words(ledger(step)), "equal": hashes_equal(step)}


def unpacked(*parts: Packed) -> Detail:
    """What all of these tell; of two that tell the same thing the later one holds."""
    found = Detail()
    for part in parts:
        for offsets, replicas, lowest in part.get("ledger", ()):
            shape, names = ids_of(offsets), ids_of(replicas)
            lows = ids_of(lowest) if shape else [0] * len(names)
            each = zip(names, lows, strict=True)
            found.micro_batches |= {str(replica): [low + offset for offset in shape] for replica, low in each}
        if "trained" in part:
            found.trained = ids_of(part["trained"])
        for rank, groups in part.get("hashes", {}).items():
            mine = found.parameter_hashes.setdefault(rank, {})
            mine |= {str(replica): digest for digest, replicas in groups for replica in ids_of(replicas)}
    return found


def _ledger_packed(micro_batches: Mapping[str, Sequence[int]]) -> list[list[str]]:
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for replica, ids in micro_batches.items():
        lowest = min(ids, default=0)
        groups[tuple(number - lowest for number in ids)].append((int(replica), lowest))
    return [
        [
            ids_in_words(shape),
            ids_in_words([replica for replica, _ in sorted(group)]),
            ids_in_words([lowest for _, lowest in sorted(group)]) if shape else "",
        ]
        for shape, group in groups.items()
    ]


def _hashes_packed(by_replica: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for replica, digest in by_replica.items():
        groups[digest].append(int(replica))
    return [[digest, ids_in_words(sorted(replicas))] for digest, replicas in groups.items()]
