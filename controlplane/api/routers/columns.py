"""Large fleets and large jobs in one answer each, as columns."""

import threading
from collections import OrderedDict
from typing import Annotated, Any, NamedTuple

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import etags, pages
from controlplane.api.auth import needs
from controlplane.api.compressed import Head, head_of, send_in_parts
from controlplane.api.edge import describe
from controlplane.api.fields import Fields, chosen
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import job_of
from controlplane.api.routers.fleet import NodeName, NodeState
from controlplane.api.shapes import JobMesh, NodeColumns
from controlplane.fleet import columns, followed
from controlplane.jobs import mesh
from controlplane.runtime.events import newest_seq

router = Router(auth=needs(Scope.READ))
MAX_ROWS = 20_000
MOST_KEPT = 32
NAME = "nodes:columns"
MAX_RANKS = 32_768
MESH = "mesh"
MAX_PLACE = 24
"""Characters of a replica and a rank in a cursor."""


class ColumnFilter(pages.Paging):
    """Query of the nodes as columns."""

    limit: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Rows of a page.")] = MAX_ROWS
    state: NodeState = None
    q: NodeName = ""
    fields: Fields = ""


class MeshFilter(pages.Paging):
    """Query of a job's ranks as columns."""

    limit: Annotated[int, Field(ge=1, le=MAX_RANKS, description="Ranks of a page.")] = MAX_RANKS
    fields: Fields = ""


class Kept(NamedTuple):
    """An answer but for `as_of_seq`, of the version of the nodes (`fleet.followed`) of which it is."""

    number: int
    tag: str
    head: Head


_kept: OrderedDict[tuple[Any, ...], Kept] = OrderedDict()
_lock = threading.Lock()


@router.get(
    "/nodes:columns",
    summary="All nodes as columns",
    tags=["fleet"],
    openapi_extra=describe(NodeColumns, errors=(304, 422)),
)
def list_node_columns(request: HttpRequest, query: Query[ColumnFilter]) -> HttpResponse:
    """Every node in one answer, a list for each field: for fleets of thousands. Where `next` is not null, as above
    20,000 nodes, more follow. `fields` chooses; `id` and `state_reason` are given where they are asked for. Without
    ages, readings and jobs, which `/nodes` has. Has an ETag that costs next to nothing while no node has changed."""
    names = chosen(query.fields, columns.FIELDS, columns.DEFAULT, of="a node as columns")
    after = pages.decode(query.cursor, NAME)
    version = followed.nodes.version()
    key = (names, query.state, query.q, after, query.limit)
    with _lock:
        kept = _kept.get(key)
        if kept is not None:
            _kept.move_to_end(key)
    if kept is None or kept.number != version.number:
        kept = _read(version.number, query, names, after)
        with _lock:
            _kept[key] = kept
            _kept.move_to_end(key)
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    if etags.has(request, kept.tag):
        return etags.unchanged(kept.tag)
    response = send_in_parts(request, kept.head, b',"as_of_seq":%d}' % version.seq)
    return etags.tagged(response, kept.tag)


def _read(number: int, query: ColumnFilter, names: tuple[str, ...], after: str | None) -> Kept:
    found = columns.node_columns(
        names, in_turn=pages.natural, state=query.state, q=query.q, after=after, limit=query.limit
    )
    following = None if found.last is None else pages.encode(found.last, NAME)
    body = msgspec.json.encode({"rows": found.rows, "columns": found.columns, "next": following, "total": found.total})
    return Kept(number, etags.tag_of(body), head_of(body[:-1]))


@router.get(
    "/jobs/{rid:job_id}/mesh",
    summary="The ranks of a job as columns",
    tags=["jobs"],
    openapi_extra=describe(JobMesh, errors=(404, 422)),
)
def job_mesh(request: HttpRequest, job_id: str, query: Query[MeshFilter]) -> HttpResponse:
    """Every rank of the newest attempt in one answer, a list for each field, by its place in the layout; and the ten
    slowest and most silent ones. Where `next` is not null, as above 32,768 ranks, more follow. `fields` chooses. Has
    ages, so it has no ETag."""
    seq, job = newest_seq(), job_of(request, job_id)
    names = chosen(query.fields, mesh.FIELDS, mesh.FIELDS, of="a rank as columns")
    found = mesh.mesh(job, names, after=_place(query.cursor), limit=query.limit)
    last = found.pop("last")
    found["next"] = None if last is None else pages.encode("{}.{}".format(*last), MESH)
    return send_in_parts(request, head_of(msgspec.json.encode(found)[:-1]), b',"as_of_seq":%d}' % seq)


def _place(cursor: str | None) -> mesh.Place | None:
    text = pages.decode(cursor, MESH)
    if text is None:
        return None
    replica, _, rank = text.partition(".")
    if not (replica.isascii() and replica.isdigit() and rank.isascii() and rank.isdigit() and len(text) <= MAX_PLACE):
        raise Problem(Kind.BAD_CURSOR, pages.UNCHANGED)
    return int(replica), int(rank)
