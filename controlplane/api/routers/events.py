"""The event log of the whole fleet."""

import re
from typing import Annotated

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.eventlog import EventQuery, Seq, answered_id, event_page, must_be_kept, stream
from controlplane.api.reach import reach
from controlplane.protocol import rest
from controlplane.runtime.events import newest_seq

router = Router(tags=["events"], auth=needs(Scope.READ))
# What a browser sends back is one of our own sequence numbers; anything else is as good as none.
_SEQ = re.compile(r"[0-9]{1,15}")
Id = Annotated[str, Field(max_length=64)]


class FleetEventQuery(EventQuery):
    """A window of the log, of one job or node if given."""

    job_id: Id = ""
    node_id: Id = ""


class WatchQuery(Schema):
    """Where to begin: after `since`; absent means now."""

    since: Seq | None = None
    job_id: Id = ""


@router.get("/events", summary="Events", openapi_extra=describe(list[rest.Event], errors=(410, 422)))
def events(request: HttpRequest, query: Query[FleetEventQuery]) -> HttpResponse:
    """In order of seq; go on with after_seq = the last one. 410: some are no longer kept."""
    return send(event_page(query, reach(request), job_id=query.job_id, node_id=query.node_id))


@router.get(
    "/events/watch",
    summary="Events as they happen",
    openapi_extra=describe(rest.Event, media_type="text/event-stream", errors=(410, 422)),
)
async def watch(request: HttpRequest, query: Query[WatchQuery]) -> StreamingHttpResponse:
    """Server-sent events; `Last-Event-ID` resumes. Ends when who opened it may no longer read.
    410: some are no longer kept, list anew."""
    last = request.headers.get("Last-Event-ID", "")
    since = int(last) if _SEQ.fullmatch(last) else query.since
    if since is None:
        since = await sync_to_async(newest_seq)()
    rights = await sync_to_async(reach)(request)
    await sync_to_async(must_be_kept)(since, await sync_to_async(answered_id)(rights, query.job_id))
    reader = principal_of(request).standing
    response = StreamingHttpResponse(stream(since, query.job_id, reader, rights), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response
