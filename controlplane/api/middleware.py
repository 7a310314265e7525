"""What must hold for every answer under the API's addresses, also for those that no
router makes: bodies are bounded, text can be kept, errors are problem+json, nothing is cached."""

import json
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from controlplane.access.refusals import refusals
from controlplane.api import probes, throttle
from controlplane.api.compressed import compress_rows
from controlplane.api.errors import respond
from controlplane.api.problems import BY_STATUS, CONTENT_TYPE, Kind, Problem, answer
from controlplane.protocol.plain import text_fault

MAX_BODY_BYTES = 1 << 20
SIGN_IN_ROUTES = ("api/v1/login", "api/v1/password")
ENROL_ROUTE = "agent/v1/enroll"
PREFIXES = ("/api/", "/agent/", "/healthz", "/readyz", "/metrics")

# Refusals of somebody: not of a visitor who has not signed in (401 without credentials).
AUDITED = (401, 403, 429)

_TEXT = {
    Kind.NOT_FOUND: "There is nothing at this address; /api/v1/openapi.json lists what there is.",
    Kind.METHOD_NOT_ALLOWED: "This address exists, but not for this method; see the Allow header.",
    Kind.TOO_LARGE: "Send at most 1 MiB.",
}


class ApiEdgeMiddleware:
    """Belongs inside RequestIdMiddleware and outside the session's."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith(PREFIXES):
            return self.get_response(request)
        refusal = _check_size(request) or _check_text(request)
        if refusal is not None:
            return answer(request, refusal)
        response = probes.metrics(request) if probes.is_scrape(request) else self.get_response(request)
        if response.status_code >= 400 and not response.get("Content-Type", "").startswith(CONTENT_TYPE):
            response = _as_problem(request, response)
        response.setdefault("Cache-Control", "no-store")
        if (account := getattr(request, "holdfast_rate_of", None)) is not None:
            for name, value in throttle.headers(account).items():
                response[name] = value
        if getattr(response, "holdfast_rows", False):
            compress_rows(request, response)
        if response.status_code in AUDITED:
            _audit_refusal(request, response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Views outside the routers (probes, enrolment) raise through here."""
        return respond(request, exception) if request.path.startswith(PREFIXES) else None


def _audit_refusal(request: HttpRequest, response: HttpResponse) -> None:
    """Who was refused what, and why. Signing in and enrolment tell their own refusals
    (`access.signins`, `live.enroll`)."""
    route = request.resolver_match.route if request.resolver_match else ""
    actor = getattr(request, "holdfast_actor", "")
    if (
        route == ENROL_ROUTE
        or (route in SIGN_IN_ROUTES and response.status_code != 403)
        or (not actor and response.status_code == 401)
    ):
        return
    try:
        detail = str(json.loads(response.content)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = ""
    subject = f"{request.method} /{route}"
    refusals.note(actor or "unknown", f"request.refused.{response.status_code}", subject, reason=detail)


def _check_size(request: HttpRequest) -> Problem | None:
    """Refuse by Content-Length before a byte is read; Django bounds what it reads itself."""
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return Problem(Kind.BAD_REQUEST, "Content-Length is no number.")
    if length > MAX_BODY_BYTES:
        return Problem(Kind.TOO_LARGE, f"{length} bytes; send at most {MAX_BODY_BYTES}.")
    return None


def _check_text(request: HttpRequest) -> Problem | None:
    """Refuse text that no row can hold, wherever in the head it stands. What is in a body is
    checked where it is decoded (`bodies.read`, `spec_text`, enrolment)."""
    parts = (
        ("address", (request.path_info,)),
        ("query", (text for name, values in request.GET.lists() for text in (name, *values))),
        ("cookies", (text for pair in request.COOKIES.items() for text in pair)),
        ("headers", request.headers.values()),
    )
    for place, texts in parts:
        fault = next(filter(None, map(text_fault, texts)), None)
        if fault:
            return Problem(Kind.BAD_REQUEST, f"The {place} of the request cannot be used: {fault}.")
    return None


def _as_problem(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    status = response.status_code
    kind = BY_STATUS.get(status, Kind.INTERNAL if status >= 500 else Kind.BAD_REQUEST)
    keep = {name: response[name] for name in ("Allow", "Retry-After") if name in response}
    return answer(request, Problem(kind, _TEXT.get(kind, "The request was refused."), headers=keep))
