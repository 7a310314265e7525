"""One id a request: taken from the caller if it is sane, else made; in every log line, error
and audit row. `current` tells who writes on a request's behalf which request that is."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import structlog
from django.http import HttpRequest, HttpResponse

from controlplane.runtime.address import client_address
from controlplane.runtime.ids import new_id

HEADER = "X-Request-ID"
_SANE = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRequest:
    """`address`: where it came from. Both are empty outside a request."""

    request_id: str = ""
    address: str = ""


_current: ContextVar[CurrentRequest] = ContextVar("holdfast_request", default=CurrentRequest())  # noqa: B039 - frozen


def current() -> CurrentRequest:
    """The request under way in this context."""
    return _current.get()


@contextmanager
def on_behalf_of(request_id: str, address: str) -> Iterator[None]:
    """Acts inside the block are those of this request (or socket)."""
    token = _current.set(CurrentRequest(request_id=request_id, address=address))
    try:
        yield
    finally:
        _current.reset(token)


def request_id_of(request: HttpRequest) -> str:
    """The id that the middleware gave; empty where none did."""
    return str(getattr(request, "request_id", ""))


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
        address = client_address(request)
        with structlog.contextvars.bound_contextvars(request_id=request_id), on_behalf_of(request_id, address):
            response = self.get_response(request)
        response[HEADER] = request_id
        return response
