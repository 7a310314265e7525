"""What every operation goes through, and how it is described.

`strict` refuses query parameters that the operation does not declare: a misspelt
filter that is ignored answers a question nobody asked. `describe` attaches the types
of `protocol.rest` to an operation, for `openapi`; `Described` says which scope it needs.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponseBase
from django.urls import register_converter
from django.urls.converters import StringConverter
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from controlplane.api.auth import SessionAuth, TokenAuth
from controlplane.api.errors import respond
from controlplane.api.problems import Kind, Problem

EXTRA = "x-holdfast"
NOT_COMPARED = "Nothing at this address has an ETag to compare: leave If-Match out."


class Described(OpenAPISchema):
    """Ninja's schema, where each way in (`security`) names the scope that it takes, as OpenAPI 3.1 has it for roles."""

    def operation_security(self, operation: Operation) -> list[dict[str, Any]] | None:
        """None: no way in is asked for."""
        ways = super().operation_security(operation) or []
        guards = [guard for guard in operation.auth_callbacks if isinstance(guard, TokenAuth | SessionAuth)]
        return [{name: [guard.needed.value] for name in way} for way, guard in zip(ways, guards, strict=True)] or None


class IdConverter(StringConverter):
    """An id in a path; stops before the `:verb` of an action."""

    regex = "[A-Za-z0-9_.-]{1,64}"


register_converter(IdConverter, "rid")


def strict(run: Callable[..., Any]) -> Callable[..., Any]:
    """Ninja view decorator: 400 for undeclared query parameters, and for an If-Match that nothing would compare."""
    operation = run.__self__  # type: ignore[attr-defined]
    assert isinstance(operation, Operation), "add this decorator last"
    declared: set[str] | None = None

    def refusal(request: HttpRequest) -> HttpResponseBase | None:
        nonlocal declared
        if declared is None:
            declared = _declared(operation)
        compared = 412 in (operation.openapi_extra or {})[EXTRA]["errors"]
        if request.method == "POST" and "If-Match" in request.headers and not compared:
            return respond(request, Problem(Kind.BAD_REQUEST, NOT_COMPARED))
        unknown = sorted(set(request.GET) - declared)
        if not unknown:
            return None
        known = ", ".join(sorted(declared)) or "none"
        return respond(
            request, Problem(Kind.UNKNOWN_PARAMETER, f"{unknown[0][:64]!r} is unknown here; known: {known}.")
        )

    if asyncio.iscoroutinefunction(run):

        @functools.wraps(run)
        async def checked_async(request: HttpRequest, **values: Any) -> Any:
            return refusal(request) or await run(request, **values)

        return checked_async

    @functools.wraps(run)
    def checked(request: HttpRequest, **values: Any) -> Any:
        return refusal(request) or run(request, **values)

    return checked


def describe(
    answer: Any,
    *,
    status: int = 200,
    body: type[msgspec.Struct] | None = None,
    errors: tuple[int, ...] = (),
    media_type: str = "application/json",
) -> dict[str, Any]:
    """`openapi_extra` of an operation: its answer (a Struct, `list[Struct]` for a page, or
    None), request body, and the statuses beyond 400, 401, 403, 429, 500 and 503."""
    return {EXTRA: {"answer": answer, "status": status, "body": body, "errors": errors, "media_type": media_type}}


def _declared(operation: Operation) -> set[str]:
    names: set[str] = set()
    for model in operation.models:
        if model.__ninja_param_source__ == "query":
            names |= set(model.__ninja_flatten_map__)
    return names
