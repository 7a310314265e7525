"""What this installation runs with, for administrators: read only, as the environment is set where the server runs."""

import platform
from collections.abc import Iterator

import django
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.access import gate, join_tokens, services
from controlplane.access.models import Scope
from controlplane.api import throttle
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.pages import listing
from controlplane.api.routers.session import API_REVISION, VERSION
from controlplane.protocol import rest
from controlplane.runtime.effective import effective
from controlplane.runtime.events import newest_seq

router = Router(tags=["installation"], auth=needs(Scope.ADMIN))
UNITS = {"_s": "s", "_days": "days", "_gib": "GiB"}
"""Of a key, by its end."""
ENVIRONMENT, BUILT_IN = "environment", "built in"


@router.get("/settings", summary="What this installation runs with", openapi_extra=describe(list[rest.Setting]))
def list_settings(request: HttpRequest) -> HttpResponse:
    """Of a secret only whether it is set, of an address with a password only where it leads."""
    rows = [*_configuration(), *_of_access(), *_versions()]
    return send(listing(rows, None, newest_seq(), total=len(rows)))


def _configuration() -> Iterator[rest.Setting]:
    for key, value, source in effective(settings):
        unit = next((unit for end, unit in UNITS.items() if key.lower().endswith(end)), "")
        known = f"{ENVIRONMENT}: {key}" if source == ENVIRONMENT else source
        yield rest.Setting(group="configuration", name=key, value=value, unit=unit, source=known)


def _of_access() -> Iterator[rest.Setting]:
    for name, value, unit in (
        ("A session ends after", settings.SESSION_COOKIE_AGE, "s"),
        ("A one-time password is good for", services.ONE_TIME_TTL_S, "s"),
        ("A join token is good for, unless asked otherwise", join_tokens.TTL_S, "s"),
        ("A join token is good for, at most", join_tokens.TTL_MAX_S, "s"),
        ("Live API tokens of an account, at most", services.MAX_LIVE_TOKENS, ""),
        ("Requests of an account, of each process", throttle.REQUESTS_A_SECOND, "a second"),
        ("Requests of an account at once", throttle.REQUEST_BURST, ""),
        ("Failed sign-ins of a name from one address without a pause", gate.PAIR.free, ""),
        ("Pause after failed sign-ins, at most", gate.PAIR.most_s, "s"),
    ):
        yield rest.Setting(group="access", name=name, value=f"{value:.10g}", unit=unit, source=BUILT_IN)


def _versions() -> Iterator[rest.Setting]:
    for name, value in (
        ("Holdfast", VERSION),
        ("API", API_REVISION),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        (f"Database ({connection.vendor})", ".".join(map(str, connection.get_database_version()))),
    ):
        yield rest.Setting(group="versions", name=name, value=str(value), unit="", source=BUILT_IN)
