"""Histories of a node's devices."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import AwareDatetime, Field

from controlplane.access.models import Scope
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.spans import ends_s
from controlplane.fleet import selectors
from controlplane.protocol import rest
from controlplane.telemetry.selectors import node_series

router = Router(tags=["fleet"], auth=needs(Scope.READ))


MAX_SPAN_S = 7 * 86400.0
WINDOW_S = 600.0


class SeriesQuery(Schema):
    """Which span, and how many points at most: the last `window_s` seconds before `until`, or from `since`."""

    window_s: Annotated[
        float | None,
        Field(ge=1, le=MAX_SPAN_S, description="Seconds before `until`; 600 where `since` is not given either."),
    ] = None
    since: Annotated[
        AwareDatetime | None, Field(description="Not before this instant, at most 7 days before `until`.")
    ] = None
    until: Annotated[AwareDatetime | None, Field(description="Not after this instant; now where not given.")] = None
    max_points: Annotated[int, Field(ge=2, le=2000)] = 300

    def span(self) -> tuple[float, float]:
        """Its two ends in Unix seconds. Raises Problem for a span that is none, or too long."""
        return ends_s(self.since, self.until, self.window_s, default_s=WINDOW_S, most_s=MAX_SPAN_S)


@router.get(
    "/nodes/{rid:node_id}/series", summary="Device histories", openapi_extra=describe(rest.Series, errors=(404, 422))
)
def get_series(request: HttpRequest, node_id: str, query: Query[SeriesQuery]) -> HttpResponse:
    """Of the last `window_s` seconds, or between `since` and `until`. Points are thinned to `max_points`;
    missing readings are null."""
    row = selectors.node(node_id)
    since_s, until_s = query.span()
    return send(node_series(row.id, since_s=since_s, until_s=until_s, max_points=query.max_points))
