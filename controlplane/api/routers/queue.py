"""The whole queue, and what the fleet's devices are in use for."""

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from controlplane.access.models import Scope
from controlplane.api import pages
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import reach
from controlplane.protocol import rest
from controlplane.recovery.capacity_view import capacity
from controlplane.recovery.queue_view import queue_page
from controlplane.runtime.events import newest_seq

router = Router(tags=["queue"], auth=needs(Scope.READ))
MAX_PLACE_DIGITS = 9


@router.get("/queue", summary="Every job that waits", openapi_extra=describe(list[rest.WaitingJob], errors=(422,)))
def get_queue(request: HttpRequest, query: Query[pages.Listing]) -> HttpResponse:
    """In line, the first to start first: what each waits for, what would make room, and whom it would displace."""
    seq = newest_seq()
    items, after, waiting = queue_page(reach(request), _after(query.cursor), query.limit)
    shown = None if after is None else pages.encode(f"{after[0]}:{after[1]}", "queue")
    return send(pages.listing(items, shown, seq, total=waiting if query.count else None))


@router.get("/capacity", summary="What devices are in use for", openapi_extra=describe(rest.Capacity))
def get_capacity(request: HttpRequest) -> HttpResponse:
    """Each device once, by type and segment; which jobs are expected to end when, and who yields to whom."""
    return send(capacity(reach(request)))


def _after(cursor: str | None) -> tuple[int, str] | None:
    """The place and the job that a page ended with. Raises Problem."""
    key = pages.decode(cursor, "queue")
    if key is None:
        return None
    place, _, job_id = key.partition(":")
    if not (place.isascii() and place.isdigit() and len(place) <= MAX_PLACE_DIGITS and int(place) > 0 and job_id):
        raise Problem(Kind.BAD_CURSOR, "Use `next` of the page before, unchanged, on the same list.")
    return int(place), job_id
