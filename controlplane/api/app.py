"""The API object: routers, error handlers, and the checks every operation goes through."""

from ninja import NinjaAPI

from controlplane.api.edge import strict
from controlplane.api.errors import install
from controlplane.api.routers import (
    audit,
    breakers,
    columns,
    demo,
    engines,
    events,
    fleet,
    identity,
    installation,
    job_parts,
    jobs,
    ledger,
    policy,
    projects,
    queue,
    ranks,
    recovery,
    requests,
    reservations,
    series,
    session,
    shadow,
    windows,
)


def build() -> NinjaAPI:
    """One API; its schema is served by `openapi`, not by Ninja's own pages."""
    api = NinjaAPI(title="Holdfast", version="1", docs_url=None, openapi_url=None, urls_namespace="api")
    install(api)
    api.add_decorator(strict, mode="view")
    for module in (
        session,
        audit,
        jobs,
        job_parts,
        ledger,
        ranks,
        recovery,
        breakers,
        policy,
        projects,
        shadow,
        queue,
        requests,
        events,
        fleet,
        columns,
        identity,
        installation,
        series,
        windows,
        reservations,
        engines,
        demo,
    ):
        api.add_router("", module.router)
    return api


api = build()
