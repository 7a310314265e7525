"""application/problem+json (RFC 9457) for everything of 400 and above.

    Problem      raise it anywhere under a router; the edge answers it

One table holds every `type`. The text is for people and names a fix where there is
one; no stack trace, no SQL, no path of this machine leaves the server.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import msgspec
from django.http import HttpRequest, HttpResponse

from controlplane.protocol.rest import FieldError
from controlplane.protocol.rest import Problem as ProblemBody
from controlplane.runtime.requests import request_id_of

CONTENT_TYPE = "application/problem+json"
TYPE_BASE = "https://holdfast.dev/problems/"


class Kind(StrEnum):
    """Stable names of everything that can go wrong; `type` is TYPE_BASE + the value."""

    BAD_REQUEST = "bad-request"
    UNKNOWN_PARAMETER = "unknown-parameter"
    BAD_CURSOR = "bad-cursor"
    UNAUTHENTICATED = "unauthenticated"
    BAD_CREDENTIALS = "bad-credentials"
    FORBIDDEN = "forbidden"
    CSRF = "csrf"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    CONFLICT = "conflict"
    STILL_RUNNING = "still-running"
    GONE = "gone"
    PRECONDITION_FAILED = "precondition-failed"
    TOO_LARGE = "too-large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    INVALID = "invalid"
    INVALID_SPEC = "invalid-spec"
    KEY_REUSED = "idempotency-key-reused"
    PRECONDITION_REQUIRED = "precondition-required"
    TOO_MANY_REQUESTS = "too-many-requests"
    INTERNAL = "internal"
    UNAVAILABLE = "unavailable"


TABLE: Mapping[Kind, tuple[int, str]] = MappingProxyType(
    {
        Kind.BAD_REQUEST: (400, "The request cannot be understood"),
        Kind.UNKNOWN_PARAMETER: (400, "Unknown query parameter"),
        Kind.BAD_CURSOR: (400, "The cursor is none of this list"),
        Kind.UNAUTHENTICATED: (401, "Sign in first"),
        Kind.BAD_CREDENTIALS: (401, "Wrong name, password or token"),
        Kind.FORBIDDEN: (403, "Not allowed"),
        Kind.CSRF: (403, "The CSRF token is missing or wrong"),
        Kind.NOT_FOUND: (404, "Not found"),
        Kind.METHOD_NOT_ALLOWED: (405, "Method not allowed"),
        Kind.CONFLICT: (409, "The present state does not allow this"),
        Kind.STILL_RUNNING: (409, "A request with this Idempotency-Key is still running"),
        Kind.GONE: (410, "No longer kept"),
        Kind.PRECONDITION_FAILED: (412, "It has changed since you read it"),
        Kind.TOO_LARGE: (413, "The body is too large"),
        Kind.UNSUPPORTED_MEDIA_TYPE: (415, "The content type is not supported here"),
        Kind.INVALID: (422, "The request is not valid"),
        Kind.INVALID_SPEC: (422, "The job spec is not valid"),
        Kind.KEY_REUSED: (422, "This Idempotency-Key was used with another request"),
        Kind.PRECONDITION_REQUIRED: (428, "Say which version you have read"),
        Kind.TOO_MANY_REQUESTS: (429, "Too many requests"),
        Kind.INTERNAL: (500, "Something went wrong here"),
        Kind.UNAVAILABLE: (503, "Not available at the moment"),
    }
)

# What the framework answers by itself, by status.
BY_STATUS: Mapping[int, Kind] = MappingProxyType(
    {
        400: Kind.BAD_REQUEST,
        401: Kind.UNAUTHENTICATED,
        403: Kind.FORBIDDEN,
        404: Kind.NOT_FOUND,
        405: Kind.METHOD_NOT_ALLOWED,
        413: Kind.TOO_LARGE,
        415: Kind.UNSUPPORTED_MEDIA_TYPE,
        422: Kind.INVALID,
        429: Kind.TOO_MANY_REQUESTS,
        503: Kind.UNAVAILABLE,
    }
)


class Problem(Exception):
    """Ends a request with `kind`. `detail` says what to do about it; `errors` point into
    the body; `headers` are added to the answer."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """HTTP status."""
        return TABLE[self.kind][0]


def answer(request: HttpRequest, problem: Problem) -> HttpResponse:
    """The problem as a response to `request`."""
    status, title = TABLE[problem.kind]
    body = ProblemBody(
        type=TYPE_BASE + problem.kind,
        title=title,
        status=status,
        detail=problem.detail,
        instance=request.path,
        request_id=request_id_of(request),
        errors=list(problem.errors),
    )
    response = HttpResponse(msgspec.json.encode(body), status=status, content_type=CONTENT_TYPE)
    response["Cache-Control"] = "no-store"
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    for name, value in problem.headers.items():
        response[name] = value
    return response
