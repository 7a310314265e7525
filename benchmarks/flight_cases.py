"""Flight Recorder dumps of jobs that went wrong in a known way, with the answer.

Each case is what torch's recorder writes (NCCL's form unless it says gloo's), so that Holdfast's
analysis and torch's own read the same bytes. `benchmarks.flight_verdicts` counts the right
answers of both; the tests hold ours to every one. Pure data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controlplane.policy.flight_match import MatchState

Json = dict[str, Any]
Calls = list[Json]
FULLY, TYPE, SIZE = (
    MatchState.FULLY_MATCHED,
    MatchState.COLLECTIVE_TYPE_MISMATCH,
    MatchState.SIZE_OR_SYNTAX_MISMATCH,
)
STATE, DTYPE, UNDECIDED = (
    MatchState.COLLECTIVE_STATE_MISMATCH,
    MatchState.COLLECTIVE_DTYPE_MISMATCH,
    MatchState.UNDECIDED,
)


@dataclass(frozen=True)
class Case:
    """`calls`: what each rank recorded, by rank; a rank of `ranks` that is not there gave no
    dump. `groups`: name to members; `forgot`: ranks whose recorder is full. The truth: `state` and
    `culprits`."""

    name: str
    state: MatchState
    culprits: tuple[int, ...]
    calls: dict[int, Calls]
    groups: dict[str, list[int]] = field(default_factory=dict)
    ranks: int = 3
    gloo: bool = False
    forgot: tuple[int, ...] = ()

    def members(self) -> dict[str, list[int]]:
        return self.groups or {"0": list(range(self.ranks))}


def call(
    number: int,
    name: str = "all_reduce",
    state: str = "completed",
    *,
    given: Any = (8,),
    made: Any = None,
    types: tuple[str, str] = ("Float", "Float"),
    **more: Any,
) -> Json:
    """One entry. `given`, `made`: the shape of the one input and output, a list of shapes, or ();
    `more` overrides any field."""
    inputs = [list(shape) for shape in given] if isinstance(given, list) else ([list(given)] if given else [])
    made = given if made is None else made
    outputs = [list(shape) for shape in made] if isinstance(made, list) else ([list(made)] if made else [])
    return {
        "process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": f"nccl:{name}", "time_created_ns": number, "input_sizes": inputs, "output_sizes": outputs,
        "input_dtypes": [types[0]] * len(inputs), "output_dtypes": [types[1]] * len(outputs), "state": state,
        "retired": state == "completed", "is_p2p": False, "frames": [], "timeout_ms": 600_000,
    } | more  # fmt: skip


def p2p(number: int, name: str, state: str = "completed", *, size: tuple[int, ...] = (8,), **more: Any) -> Json:
    """A send or a receive: "send 0->1", "recv 1<-0"."""
    return call(0, name, state, given=size, made=size, is_p2p=True, p2p_seq_id=number, op_id=number, **more)


def in_group(name: str, *calls: Json, desc: str = "") -> Calls:
    return [each | {"process_group": [name, desc or f"group_{name}"]} for each in calls]


def given_up(entry: Json) -> Json:
    """After a timeout: no longer watched, never completed."""
    return entry | {"retired": True}


DONE = [call(1), call(2)]
OPEN = call(3, state="started")


def everywhere(*calls: Json, ranks: int = 3) -> dict[int, Calls]:
    return {rank: [*DONE, *calls] for rank in range(ranks)}


def but(rank: int, *calls: Json, others: Json = OPEN, ranks: int = 3) -> dict[int, Calls]:
    """All ranks are in `others`, and one has `calls` in its place."""
    return everywhere(others, ranks=ranks) | {rank: [*DONE, *calls]}


def _mismatches() -> list[Case]:
    opened: Callable[..., Json] = lambda name="all_reduce", **more: call(3, name, "started", **more)  # noqa: E731
    gather = opened("_all_gather_base", given=(4,), made=(12,))
    scatter = opened("_reduce_scatter_base", given=(12,), made=(4,))
    return [
        Case("another operation", TYPE, (1,), but(1, opened("broadcast"))),
        Case("another operation at the lowest rank", TYPE, (0,), but(0, opened("broadcast"))),
        Case("another size", SIZE, (1,), but(1, opened(given=(16,)))),
        Case("another size at the lowest rank", SIZE, (0,), but(0, opened(given=(16,)))),
        Case("another type", DTYPE, (1,), but(1, opened(types=("Double", "Double")))),
        Case("another type at the lowest rank", DTYPE, (0,), but(0, opened(types=("Half", "Half")))),
        Case("two of five with another size", SIZE, (1, 3),
             everywhere(OPEN, ranks=5) | {r: [*DONE, opened(given=(9,))] for r in (1, 3)}, ranks=5),
        Case("another output size of an all_gather", SIZE, (2,),
             but(2, opened("_all_gather_base", given=(4,), made=(16,)), others=gather)),
        Case("an all_gather whose output is too small everywhere", SIZE, (0, 1, 2),
             everywhere(opened("all_gather", given=(4,), made=(8,)))),
        Case("a reduce_scatter whose input does not divide", SIZE, (0, 1, 2),
             everywhere(opened("_reduce_scatter_base", given=(10,), made=(4,)))),
        Case("another input of a reduce_scatter", SIZE, (1,),
             but(1, opened("_reduce_scatter_base", given=(9,), made=(3,)), others=scatter)),
        Case("an all_reduce into another size", SIZE, (1,), but(1, opened(given=(8,), made=(4,)))),
        Case("an all_reduce into another type", DTYPE, (1,), but(1, opened(types=("Float", "Half")))),
        Case("another input of a gather", SIZE, (1,), {
            0: [*DONE, opened("gather", given=(8,), made=[(8,)] * 3)],
            1: [*DONE, opened("gather", given=(5,), made=())], 2: [*DONE, opened("gather", given=(8,), made=())]}),
        Case("another output of a scatter", SIZE, (2,), {
            0: [*DONE, opened("scatter", given=[(8,)] * 3, made=(8,))],
            1: [*DONE, opened("scatter", given=(), made=(8,))], 2: [*DONE, opened("scatter", given=(), made=(5,))]}),
        Case("all_to_all whose totals differ", SIZE, (), everywhere(opened("all_to_all", given=(6,)), ranks=2)
             | {2: [*DONE, opened("all_to_all", given=(6,), made=(9,))]}),
        Case("a size that differs in an earlier collective", SIZE, (2,), {
            rank: [call(1), call(2, given=(7,) if rank == 2 else (8,), state="started")] for rank in range(3)}),
    ]  # fmt: skip


def _fits() -> list[Case]:
    opened = call(3, state="started")
    uneven = {0: (3,), 1: (6,), 2: (9,)}
    return [
        Case("all is over", FULLY, (), everywhere(call(3))),
        Case("a gather that only its root has outputs of", FULLY, (), {
            0: [*DONE, call(3, "gather", given=(8,), made=[(8,)] * 3)], 1: [*DONE, call(3, "gather", made=())],
            2: [*DONE, call(3, "gather", made=())]}),
        Case("all_to_all of uneven splits", FULLY, (), {
            rank: [*DONE, call(3, "all_to_all", given=size, made=(6,))] for rank, size in uneven.items()}),
        Case("shapes that hold as many elements", UNDECIDED, (), but(1, call(3, state="started", given=(2, 4)))),
        Case("all are in it and nothing moves", UNDECIDED, (), everywhere(opened)),
        Case("all gave it up after a timeout", UNDECIDED, (), everywhere(given_up(opened))),
        Case("sends that were received", FULLY, (), {
            0: [p2p(1, "send 0->1"), p2p(2, "recv 0<-1")], 1: [p2p(1, "recv 1<-0"), p2p(2, "send 1->0")]}, ranks=2),
        Case("a recorder that has forgotten the start", FULLY, (),
             {0: [call(n) for n in range(1, 9)], 1: [call(n) for n in range(5, 9)], 2: [call(n) for n in range(3, 9)]}),
        Case("groups that share a name", FULLY, (), {
            rank: [call(n, given=(4 + rank // 2,)) for n in (1, 2)] for rank in range(4)}, ranks=4,
            groups={"0": [0, 1], "0 ": [2, 3]}),
    ]  # fmt: skip


def _states() -> list[Case]:
    queued, broadcast = call(3, state="scheduled"), call(3, "broadcast", "started")
    return [
        Case("a rank that never came", STATE, (2,), but(2)),
        Case("a rank that never came, after a timeout", STATE, (2,), but(2, others=given_up(OPEN))),
        Case("the lowest rank never came", STATE, (0,), but(0)),
        Case("two of five never came", STATE, (1, 4), everywhere(OPEN, ranks=5) | {1: DONE, 4: DONE}, ranks=5),
        Case("a rank that only queued it", STATE, (2,), but(2, queued)),
        Case("a rank still in what the others left", STATE, (2,), {
            0: [*DONE, call(3), call(4, state="started")], 1: [*DONE, call(3), call(4, state="started")],
            2: [*DONE, OPEN]}),
        Case("a broadcast whose root is through and one receiver never came", STATE, (2,), {
            0: [*DONE, call(3, "broadcast"), call(4, state="started")], 1: [*DONE, broadcast], 2: DONE}),
        Case("a broadcast whose root is through and one receiver is not", STATE, (2,), {
            0: [*DONE, call(3, "broadcast"), call(4, state="started")],
            1: [*DONE, call(3, "broadcast"), call(4, state="started")], 2: [*DONE, broadcast]}),
        Case("whoever waits elsewhere is not to blame", STATE, (2,), {
            0: [*DONE, OPEN], 1: [*DONE, *in_group("1", call(1, state="started"))], 2: DONE},
            groups={"0": [0, 1, 2], "1": [1, 2]}),
        Case("ranks that wait for each other in two groups", STATE, (0, 1), {
            0: [*DONE, OPEN], 1: [*DONE, *in_group("1", call(1, state="started"))], 2: [*DONE, OPEN]},
            groups={"0": [0, 1, 2], "1": [0, 1]}),
        Case("no dump of the one that matters", UNDECIDED, (), {0: [*DONE, OPEN], 1: [*DONE, OPEN]}),
        Case("no dump of one, and another never came", STATE, (1,), {0: [*DONE, OPEN], 1: DONE}),
        Case("a wrong size though a dump is missing", SIZE, (1,), {
            0: [*DONE, OPEN], 1: [*DONE, call(3, state="started", given=(9,))], 3: [*DONE, OPEN]}, ranks=4),
        Case("no dump at all", UNDECIDED, (), {}),
    ]  # fmt: skip


def _transfers() -> list[Case]:
    return [
        Case("a send that nobody receives", STATE, (1,), {0: [p2p(1, "send 0->1", "started")], 1: []}, ranks=2),
        Case("a receive that nobody sends", STATE, (0,), {0: [], 1: [p2p(1, "recv 1<-0", "started")]}, ranks=2),
        Case("a send of another size", SIZE, (0, 1), {
            0: [p2p(1, "send 0->1", "started", size=(8,))], 1: [p2p(1, "recv 1<-0", "started", size=(9,))]}, ranks=2),
        Case("a pipeline whose first stage never sent", STATE, (0,), {
            0: [p2p(1, "send 0->1")], 1: [p2p(1, "recv 1<-0"), p2p(2, "send 1->2"), p2p(3, "recv 1<-0", "started")],
            2: [p2p(1, "recv 2<-1"), p2p(2, "recv 2<-1", "started")]}),
        Case("two that both send first", STATE, (0, 1), {
            0: [p2p(1, "send 0->1", "started"), p2p(2, "recv 0<-1", "scheduled")],
            1: [p2p(1, "send 1->0", "started"), p2p(2, "recv 1<-0", "scheduled")]}, ranks=2),
        Case("two that both send at once, coalesced", UNDECIDED, (), {
            0: [p2p(1, "send 0->1", "scheduled"), p2p(1, "recv 0<-1", "scheduled"), p2p(1, "coalesced", "started",
                size=())],
            1: [p2p(1, "send 1->0", "scheduled"), p2p(1, "recv 1<-0", "scheduled"), p2p(1, "coalesced", "started",
                size=())]}, ranks=2),
        Case("coalesced transfers that were received", FULLY, (), {
            0: [p2p(1, "send 0->1", "scheduled"), p2p(1, "recv 0<-1", "scheduled"), p2p(1, "coalesced", size=())],
            1: [p2p(1, "recv 1<-0", "scheduled"), p2p(1, "send 1->0", "scheduled"), p2p(1, "coalesced", size=())]},
            ranks=2),
        Case("a coalesced transfer of another size", SIZE, (0, 1), {
            0: [p2p(1, "send 0->1", "scheduled"), p2p(1, "recv 0<-1", "scheduled"), p2p(1, "coalesced", "started",
                size=())],
            1: [p2p(1, "recv 1<-0", "scheduled", size=(4,)), p2p(1, "send 1->0", "scheduled"),
                p2p(1, "coalesced", "started", size=())]}, ranks=2),
        Case("a send to a rank without a dump", UNDECIDED, (), {0: [p2p(1, "send 0->1", "started")]}, ranks=2),
        Case("a receive that waits for a rank in another group", STATE, (2,), {
            0: [call(1, state="started")], 1: [p2p(1, "recv 1<-0", "started")], 2: []}),
    ]  # fmt: skip


def _coalesced() -> list[Case]:
    first, second = call(3, "all_gather_into_tensor_coalesced", "scheduled", given=(4,), made=(12,)), call(
        3, "all_gather_into_tensor_coalesced", "scheduled", given=(5,), made=(15,), op_id=4
    )  # fmt: skip
    end, over = (call(3, "ALLGATHER_coalesced", state, given=(), op_id=5) for state in ("started", "completed"))
    wrong = call(3, "all_gather_into_tensor_coalesced", "scheduled", given=(6,), made=(18,))
    return [
        Case("coalesced collectives that are over", FULLY, (), everywhere(first, second, over)),
        Case("one of the coalesced collectives of another size", SIZE, (1,),
             everywhere(first, second, end) | {1: [*DONE, wrong, second, end]}),
        Case("one coalesced collective fewer", SIZE, (1,),
             everywhere(first, second, end) | {1: [*DONE, first, end]}),
        Case("a rank that never came to a coalesced call", STATE, (2,), everywhere(first, second, end) | {2: DONE}),
    ]  # fmt: skip


def _gloo() -> list[Case]:
    """Gloo moves no state on; "retired" says that it is over, well or badly."""

    def gloo(number: int, name: str = "all_reduce", *, retired: bool = True, **more: Any) -> Json:
        return call(number, name, "scheduled", retired=retired, profiling_name=f"gloo:{name}", **more)

    done, waiting = [gloo(1), gloo(2)], gloo(3, retired=False)
    others = {0: [*done, waiting], 1: [*done, waiting]}
    return [
        Case("gloo: all is over", FULLY, (), dict.fromkeys(range(3), done), gloo=True),
        Case("gloo: a rank that never came", STATE, (2,), others | {2: done}, gloo=True),
        Case("gloo: a rank that never came, after a timeout", STATE, (2,),
             {0: [*done, gloo(3)], 1: [*done, gloo(3)], 2: done}, gloo=True),
        Case("gloo: another size", SIZE, (2,), others | {2: [*done, gloo(3, retired=False, given=(9,))]}, gloo=True),
        Case("gloo: a rank still in what the others left", STATE, (2,),
             {0: [*done, gloo(3), gloo(4, retired=False)], 1: [*done, gloo(3), gloo(4, retired=False)],
              2: [*done, waiting]}, gloo=True),
        Case("gloo: all are in it and nothing moves", UNDECIDED, (), others | {2: [*done, waiting]}, gloo=True),
    ]  # fmt: skip


def _rooted(name: str, rank: int, state: str, *, size: int = 8) -> Json:
    """As NCCL records them, of root 0: a tensor that is not there has no type, and a scatter's outputs stand as
    inputs."""
    if rank == 0:
        return call(3, name, state, given=(size,), made=[(8,)] * 3)
    return call(3, name, state, given=(size,), made=(0,)) | {"output_dtypes": ["UNKNOWN_SCALAR"]}


def _recorded() -> list[Case]:
    """What torch records in other ways than one would think, and recorders that hold a part."""
    gather = "all_gather_into_tensor_coalesced"
    first, second = (call(3, gather, "scheduled", given=(n,), made=(3 * n,), op_id=n) for n in (4, 5))
    over = call(3, "ALLGATHER_coalesced", given=(), op_id=6)
    gloo = [call(n, state="scheduled", retired=True, profiling_name="gloo:all_reduce") for n in (1, 2, 3)]
    data, tensor = in_group("1", *gloo[:2]), in_group("2", *gloo)
    moved = [*DONE, call(3), call(4), call(5, state="started")]
    return [
        Case("NCCL: a gather", FULLY, (), everywhere() | {r: [*DONE, _rooted("gather", r, "completed")]
             for r in range(3)}),
        Case("NCCL: a scatter", FULLY, (), {r: [*DONE, _rooted("scatter", r, "completed")] for r in range(3)}),
        Case("NCCL: a rank that never came to a scatter", STATE, (2,), {2: DONE} | {
             r: [*DONE, _rooted("scatter", r, "started")] for r in (0, 1)}),
        Case("NCCL: another output of a scatter", SIZE, (2,), {2: [*DONE, _rooted("scatter", 2, "started", size=5)]} | {
             r: [*DONE, _rooted("scatter", r, "started")] for r in (0, 1)}),
        Case("two backends of one group; a rank that never came on one", STATE, (2,),
             {0: [*DONE, *gloo, OPEN], 1: [*DONE, *gloo, OPEN], 2: [*DONE, *gloo]}),
        Case("two backends of one group, interleaved", FULLY, (), {
             0: [*DONE, *gloo], 1: [*gloo[:2], *DONE, gloo[2]], 2: [*gloo, *DONE]}),
        Case("a full recorder that begins in a coalesced call", FULLY, (), {
             0: [*DONE, first, second, over], 1: [second, over], 2: [over]}, forgot=(1, 2)),
        Case("gloo: a full recorder without any call of a group", FULLY, (), {0: data, 1: tensor}, ranks=2,
             groups={"1": [0, 1], "2": [1]}, gloo=True, forgot=(0, 1)),
        Case("a dump older than the others", UNDECIDED, (), {0: moved, 1: moved, 2: DONE}),
        Case("two of another size each", SIZE, (0, 1), {
             0: [*DONE, OPEN], 1: [*DONE, call(3, state="started", given=(16,))]}, ranks=2),
        Case("the impossible of two", SIZE, (0,), {
             0: [*DONE, call(3, "all_gather", "started", given=(4,), made=(9,))],
             1: [*DONE, call(3, "all_gather", "started", given=(4,), made=(8,))]}, ranks=2),
        Case("a difference of long ago in a group where nobody waits", SIZE, (1,), {
             r: [*in_group("0", call(1, given=(2 if r == 2 else 1,))), *in_group("1", call(1, state="started",
                 given=(9 if r == 1 else 8,)))] for r in range(3)}, groups={"0": [0, 1, 2], "1": [0, 1, 2]}),
    ]  # fmt: skip


CASES = tuple(_mismatches() + _fits() + _states() + _transfers() + _coalesced() + _gloo() + _recorded())


def raw_dump(case: Case, rank: int) -> Json:
    """As torch writes it, with the groups of that rank."""
    oldest = 1_000 if rank in case.forgot else 0
    entries = [entry | {"record_id": place} for place, entry in enumerate(case.calls[rank], oldest)]
    groups = {
        name.strip(): {"name": name.strip(), "desc": _desc(name), "ranks": members}
        for name, members in case.members().items()
        if rank in members
    }
    return {"version": "2.10", "rank": rank, "pg_config": groups, "entries": entries}


def _desc(name: str) -> str:
    return "default_pg" if name.strip() == "0" else f"group_{name}"
