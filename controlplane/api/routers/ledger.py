"""The GPU-second ledger."""

from collections.abc import Callable
from typing import Annotated, Literal

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import AwareDatetime, Field

from controlplane.access.models import Scope
from controlplane.api import pages
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.reach import job_of, judged, reach
from controlplane.api.spans import ends_s
from controlplane.fleet import selectors as fleet
from controlplane.protocol import rest
from controlplane.recovery import ledger_load
from controlplane.recovery.ledger_view import ledger

router = Router(tags=["ledger"], auth=needs(Scope.READ))

WEEK_S = 7 * 86_400.0
MAX_SPAN_S = 400 * 86_400.0


class LedgerQuery(Schema):
    """Which span: from `since` (or the last `window_s` seconds) until `until`; and by what its rows are."""

    by: Annotated[Literal["class", "cause", "job", "node"], Field(description="What each row is.")] = "class"
    window_s: Annotated[
        float | None,
        Field(ge=1, le=MAX_SPAN_S, description="Seconds before `until`; a week where `since` is not given either."),
    ] = None
    since: Annotated[
        AwareDatetime | None, Field(description="Not before this instant, at most 400 days before `until`.")
    ] = None
    until: Annotated[AwareDatetime | None, Field(description="Not after this instant; now where not given.")] = None
    limit: Annotated[int, Field(ge=1, le=pages.MAX_LIMIT, description="Rows, the largest first.")] = 100

    def span(self) -> tuple[float, float]:
        """Its two ends in Unix seconds. Raises Problem for a span that is none, or too long."""
        return ends_s(self.since, self.until, self.window_s, default_s=WEEK_S, most_s=MAX_SPAN_S)


class FleetLedgerQuery(LedgerQuery):
    """Of the whole fleet, or of a part."""

    job: Annotated[str | None, Field(max_length=64, description="Only what this job held.")] = None
    node: Annotated[str | None, Field(max_length=64, description="Only devices of this node.")] = None
    project: Annotated[str | None, Field(max_length=63, description="Only what jobs of this project held.")] = None


@router.get(
    "/ledger", summary="Where the seconds of all devices went", openapi_extra=describe(rest.Ledger, errors=(404, 422))
)
def get_ledger(request: HttpRequest, query: Query[FleetLedgerQuery]) -> HttpResponse:
    """Every second of every device in exactly one class, with its cause; of the fleet, a project, a job or a node."""
    if query.project:
        judged(request, query.project, Scope.READ, f"no project {query.project!r}")
    scope = ledger_load.Scope(
        job=job_of(request, query.job).id if query.job else "",
        node=fleet.node(query.node).id if query.node else "",
        project=query.project or "",
    )
    return _answer(scope, query, reach(request).only)


@router.get(
    "/jobs/{rid:job_id}/ledger",
    summary="Where the seconds of a job's devices went",
    openapi_extra=describe(rest.Ledger, errors=(404, 422)),
)
def get_job_ledger(request: HttpRequest, job_id: str, query: Query[LedgerQuery]) -> HttpResponse:
    """Every second of the devices that it held, and what it queued for beside them."""
    return _answer(ledger_load.Scope(job=job_of(request, job_id).id), query, reach(request).only)


def _answer(scope: ledger_load.Scope, query: LedgerQuery, only: Callable[..., Q]) -> HttpResponse:
    since_s, until_s = query.span()
    return send(ledger(scope, by=query.by, since_s=since_s, until_s=until_s, limit=query.limit, only=only))
