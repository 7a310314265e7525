"""/healthz (this process), /readyz (what it needs), /metrics (Prometheus)."""

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from controlplane.access.models import Scope
from controlplane.api.auth import who_asks
from controlplane.api.problems import Kind, Problem
from controlplane.recovery import health_gate
from controlplane.runtime import beats, bus, exporter
from controlplane.runtime.address import is_direct_from


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers; no database is asked, so that its loss restarts nobody."""
    return HttpResponse(b'{"ok":true}', content_type="application/json")


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when the database answers and is migrated. Redis, sentinel and worker are told
    but do not count: without them everything still works, later. Details need an account."""
    checks = {"database": _database(), "migrations": _migrated()}
    ready = all(checks.values())
    body: dict[str, object] = {"ok": ready}
    if request.user.is_authenticated if checks["database"] else False:
        told = {
            "redis": bus.ping(),
            "sentinel": beats.view("sentinel").ok and not health_gate.blind_reason(),
            "worker": beats.view("worker").ok,
        }
        body |= {"checks": checks, "told": told}
    return HttpResponse(msgspec.json.encode(body), status=200 if ready else 503, content_type="application/json")


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """This process's figures and the fleet's, which every web process refreshes. For scrapers at the
    addresses of HOLDFAST_METRICS_FROM, and for accounts that see every project: they name jobs and nodes."""
    if not is_direct_from(request, settings.METRICS_FROM) and not who_asks(request, Scope.READ).rights().whole:
        raise Problem(Kind.FORBIDDEN, "The figures name jobs of all projects, and there are some that you do not see.")
    return HttpResponse(exporter.figures(fleet=True), content_type=CONTENT_TYPE_LATEST)


def is_scrape(request: HttpRequest) -> bool:
    """A scraper that HOLDFAST_METRICS_FROM names asks by the name or address under which it finds this
    process: that need not be one of HOLDFAST_ALLOWED_HOSTS. Not through a proxy."""
    return (
        request.path_info == exporter.PATH
        and "HTTP_X_FORWARDED_FOR" not in request.META
        and exporter.may_read(request.META.get("REMOTE_ADDR") or "", request.META.get("HTTP_HOST", ""))
    )


def _database() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True


def _migrated() -> bool:
    try:
        executor = MigrationExecutor(connection)
        return not executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return False
