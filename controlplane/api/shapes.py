"""What the API answers as columns, as types: the Python client decodes with them, and openapi.json is made from them.

A column has one value for each row. Where few different words repeat it is `Words`; which of the two a column is
follows from the answer itself. Nothing here needs Django.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.protocol.rest import words
from controlplane.protocol.rest.base import Answer

Scalar = str | int | float | bool | None


class Words(Answer, frozen=True, kw_only=True):
    """A column of words: of row i the word `words[at[i]]`; null: it has none."""

    words: list[str]
    at: list[int | None]

    def values(self) -> list[str | None]:
        """One for each row."""
        return [None if place is None else self.words[place] for place in self.at]


Column = Words | list[Scalar]


class NodeColumns(Answer, frozen=True, kw_only=True):
    """Nodes by name, `rows` of them: of each field that was asked for a column. `next`: the cursor of the next page;
    `total`: nodes on all pages. `devices_lost`: not there any more; `devices_healthy`: there, and nothing keeps them
    from work; `devices_at_risk`: of these; `devices_busy`: a rank is on them; `devices_spare`: kept free for a job;
    `risk`: the highest score of the devices that are there, null: none has one."""

    rows: int
    columns: dict[str, Column]
    next: str | None
    total: int
    as_of_seq: int


def rows_of(columns: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    """The same as rows: a mapping of each."""
    values = [column.values() if isinstance(column, Words) else column for column in columns.values()]
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))


class MeshLayout(Answer, frozen=True, kw_only=True):
    """How many of each there are: replicas (`dp`), pipeline stages, tensor, context and expert parallel ranks, and data
    parallel ones inside a replica."""

    dp: int
    pp: int
    tp: int
    cp: int
    ep: int
    replica_dp: int


class MeshReplica(Answer, frozen=True, kw_only=True):
    """A slot of the newest attempt, by its newest incarnation."""

    index: int
    incarnation: int
    state: words.ReplicaState
    contributing: bool
    committed_step: int


class MeshRank(Answer, frozen=True, kw_only=True):
    """One rank. `step_s`: how long a step took it in its newest window; `heartbeat_age_s`: since its last heartbeat."""

    replica: int
    incarnation: int
    rank: int
    global_rank: int
    pp: int
    tp: int
    cp: int
    ep: int
    replica_dp: int
    state: words.RankState
    phase: str | None
    step: int | None
    step_s: float | None
    heartbeat_age_s: float | None
    node_name: str
    device_index: int


class JobMesh(Answer, frozen=True, kw_only=True):
    """The ranks of a job's newest attempt by replica and rank: of each field that was asked for a column, of `rows` of
    all `ranks`. Of `pp`, `tp`, `cp`, `ep` and `replica_dp` those have a column of which the layout has more than one.
    `slowest` and `most_silent`: ten of the whole job at most. `attempt` and `layout` are null before the first one."""

    attempt: int | None
    layout: MeshLayout | None
    replicas: list[MeshReplica]
    ranks: int
    rows: int
    columns: dict[str, Column]
    slowest: list[MeshRank]
    most_silent: list[MeshRank]
    next: str | None
    as_of_seq: int
