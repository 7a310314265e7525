"""Histories of a node's devices."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.fleet import selectors
from controlplane.protocol import rest
from controlplane.telemetry.selectors import node_series

router = Router(tags=["fleet"], auth=needs(Scope.READ))


class SeriesQuery(Schema):
    """How far back, and how many points at most."""

    window_s: Annotated[float, Field(ge=1, le=7 * 86400)] = 600.0
    max_points: Annotated[int, Field(ge=2, le=2000)] = 300


@router.get(
    "/nodes/{rid:node_id}/series", summary="Device histories", openapi_extra=describe(rest.Series, errors=(404, 422))
)
def get_series(request: HttpRequest, node_id: str, query: Query[SeriesQuery]) -> HttpResponse:
    """Points are thinned to `max_points`; missing readings are null."""
    row = selectors.node(node_id)
    return send(node_series(row.id, window_s=query.window_s, max_points=query.max_points))
