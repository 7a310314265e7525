"""From exceptions to problems: what services raise, what the framework raises, and the
one catch-all, which logs the trace under the request's id and tells the caller only that."""

from collections.abc import Mapping
from types import MappingProxyType

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja import NinjaAPI
from ninja.errors import HttpError
from ninja.errors import ValidationError as NinjaValidationError

from controlplane.api.problems import BY_STATUS, Kind, Problem, answer
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.rest import FieldError
from controlplane.protocol.spec_lint import escape
from controlplane.runtime import errors as services
from controlplane.runtime import metrics

_log = structlog.get_logger(__name__)

SERVICE_KINDS: Mapping[type[services.ServiceError], Kind] = MappingProxyType(
    {
        services.NotFound: Kind.NOT_FOUND,
        services.LostRace: Kind.CONFLICT,
        services.Conflict: Kind.CONFLICT,
        services.Denied: Kind.FORBIDDEN,
        services.Invalid: Kind.INVALID,
    }
)
RETRY_AFTER_S = "1"
# What should have been refused at the door and was not: the caller's fault all the same, but
# logged with its trace and counted, since each one shows a check that is missing.
LATE = (DataError, OverflowError, UnicodeError, RecursionError)


def to_problem(error: Exception) -> Problem | None:
    """The problem an exception stands for; None for one nobody foresaw."""
    match error:
        case Problem():
            return error
        case services.ServiceError():
            kind = next((SERVICE_KINDS[base] for base in type(error).__mro__ if base in SERVICE_KINDS), Kind.CONFLICT)
            told = [FieldError(e.get("pointer", ""), e.get("message", ""), e.get("fix", "")) for e in error.errors]
            return Problem(kind, error.detail, errors=told)
        case ProtocolError():
            return Problem(Kind.BAD_REQUEST, str(error))
        case NinjaValidationError():
            return Problem(Kind.INVALID, "A parameter is not valid.", errors=[_parameter(e) for e in error.errors])
        case HttpError():
            kind = BY_STATUS.get(error.status_code, Kind.BAD_REQUEST)
            if error.status_code == 403 and "CSRF" in error.message:
                return Problem(Kind.CSRF, "Send the cookie `csrftoken` again in the header X-CSRFToken.")
            if error.status_code == 401:
                return Problem(kind, "Sign in, or send `Authorization: Bearer holdfast_...`.")
            return Problem(kind, error.message)
        case RequestDataTooBig() | UnreadablePostError():
            return Problem(Kind.TOO_LARGE, "Send at most 1 MiB.")
        case Http404():
            return Problem(Kind.NOT_FOUND, "There is nothing at this address.")
        case PermissionDenied():
            return Problem(Kind.FORBIDDEN, "Your account may not do this.")
        case SuspiciousOperation():
            return Problem(Kind.BAD_REQUEST, "The request was refused as it stands.")
        case DataError() | OverflowError() | UnicodeError() | RecursionError():
            return Problem(Kind.BAD_REQUEST, "A text or a number of the request is none that Holdfast can keep.")
        case OperationalError() | InterfaceError():
            return Problem(
                Kind.UNAVAILABLE, "The database does not answer; try again.", headers={"Retry-After": RETRY_AFTER_S}
            )
        case _:
            return None


def respond(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answer any exception."""
    problem = to_problem(error)
    if isinstance(error, LATE):
        metrics.LATE_REFUSALS.labels(error=type(error).__name__).inc()
    if problem is None or isinstance(error, (DatabaseError, *LATE)):
        _log.error("request failed", path=request.path, method=request.method, exc_info=error)
    if problem is None:
        problem = Problem(Kind.INTERNAL, "This was logged under the request id; give it to your administrator.")
    return answer(request, problem)


def install(api: NinjaAPI) -> None:
    """Make `respond` the handler of everything raised under `api`."""
    for kind in (Exception, Http404, HttpError, NinjaValidationError):
        api.add_exception_handler(kind, _handle)


def _handle(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    """Ninja's signature also allows classes, which nothing here raises."""
    assert isinstance(error, Exception)
    return respond(request, error)


def _parameter(error: Mapping[str, object]) -> FieldError:
    """Ninja's location (source, model, field) as a pointer: /query/limit."""
    location = error.get("loc", ())
    assert isinstance(location, tuple | list)
    tokens = [str(part) for part in location]
    ends = [tokens[0], tokens[-1]] if len(tokens) > 1 else tokens
    return FieldError(pointer="/" + "/".join(escape(token) for token in ends), message=str(error.get("msg", "")))
