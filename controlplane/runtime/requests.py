"""One id a request: taken from the caller if it is sane, else made; in every log line and error."""

import re
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse

from controlplane.runtime.ids import new_id

HEADER = "X-Request-ID"
_SANE = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


class RequestIdMiddleware:
    """Sets `request.request_id` and echoes it in the answer."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        offered = request.headers.get(HEADER, "")
        request_id = offered if _SANE.match(offered) else new_id("req")
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response[HEADER] = request_id
        return response
