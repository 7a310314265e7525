"""Engines, which give Holdfast its nodes: what they believe, and what is wanted of them."""

from typing import Annotated

from msgspec import Meta

from controlplane.protocol.rest.base import Answer

EngineName = Annotated[str, Meta(extra_json_schema={"enum": ["resident", "slurm"]})]
IntentKind = Annotated[str, Meta(extra_json_schema={"enum": ["mark_bad", "clear", "resize"]})]
IntentState = Annotated[str, Meta(extra_json_schema={"enum": ["wanted", "sent", "done", "void"]})]
PilotKind = Annotated[str, Meta(extra_json_schema={"enum": ["held", "cold", "other", "idle", "in_use"]})]


class Pilot(Answer, frozen=True, kw_only=True):
    """An element of a pool, which lends one node, or will. `kind`: in_use, ranks are on its node; idle, its node takes
    work and has none; cold, it waits in the engine's queue; held, it waits until somebody releases it; other, it
    starts or ends, or its node takes no work. `waits`: the engine's own reason. `starts_at`: when it started, which
    with `job` names the allocation, or is expected to; `ends_at`: its time limit; `grace_s`: from its notice to its
    end. None: nobody knows."""

    index: int
    allocation: str
    job: str
    state: str
    kind: PilotKind
    waits: str
    node_id: str | None
    node_name: str
    starts_at: str | None
    ends_at: str | None
    grace_s: int | None


class Pool(Answer, frozen=True, kw_only=True):
    """An array of pilots, counted by `Pilot.kind`; `owner`: whose it is in the engine. Of `elements` those that wait
    or are spare come first."""

    id: str
    owner: str
    in_use: int
    idle: int
    cold: int
    held: int
    other: int
    elements: list[Pilot]
    elements_left_out: int = 0


class Intent(Answer, frozen=True, kw_only=True):
    """What Holdfast wants of the engine: that a node is marked bad or cleared, or that a pool has `size` pilots at a
    time. `detail`: what came of its last try; `due_at`: when it is tried next, None: not any more."""

    id: str
    kind: IntentKind
    node_id: str | None
    node_name: str
    pool: str
    size: int | None
    reason: str
    who: str
    state: IntentState
    tries: int
    detail: str
    made_at: str
    due_at: str | None
    done_at: str | None


class Engine(Answer, frozen=True, kw_only=True):
    """`asked` False: nobody is asked, nodes have agents of their own. `answered_at`: its last whole answer; `error`:
    why the newest look was none, "" where it was. `nodes`: of Holdfast's that it knows. `intents`: the newest."""

    name: EngineName
    asked: bool
    answered_at: str | None
    error: str
    error_at: str | None
    nodes: int
    pools: list[Pool]
    intents: list[Intent]


class NodeEngine(Answer, frozen=True, kw_only=True):
    """What the engine believes of a node, which it calls `name`. `drained`: it gives it no job; `ours`: because
    Holdfast asked for that. `reason` None: it cannot be read. `piloted`: it has come in pilots; `allocation`: the one
    that runs on it. `differs`: where Holdfast and the engine do, and what follows; "": they agree. `seen_at`: when the
    engine last named it; `error`: why its newest answer was none."""

    engine: EngineName
    name: str
    state: str
    drained: bool
    ours: bool
    reason: str | None
    reason_by: str
    reason_at: str | None
    piloted: bool
    allocation: Pilot | None
    differs: str
    seen_at: str
    error: str
    intents: list[Intent]


class JobEngine(Answer, frozen=True, kw_only=True):
    """Where a job's `nodes` come from: `lent` of them by pilots of `pools`, of which the first ends at `first_end_at`
    (None: none has an end that is known). `allocations`: some, the first to end first."""

    engine: EngineName
    nodes: int
    lent: int
    pools: list[str]
    first_end_at: str | None
    allocations: list[Pilot]
