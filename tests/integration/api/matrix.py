"""Every address of the server and what it takes to use it: the rows of the access matrix.

The operations are read from the API itself, the other addresses from the URL configuration and
the sockets' routes, so that a new one without a row here fails.
"""

from dataclasses import dataclass, field
from typing import Any

from django.urls import URLPattern, get_resolver

from tests.integration.api.conftest import SPEC

WITH_REASON = {"reason": "r"}
WINDOW = WITH_REASON | {"starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-01T01:00:00Z"}


@dataclass(frozen=True, slots=True)
class Row:
    """`needed`: the scope; "" for everybody. `body` of a POST. `query` of a GET."""

    needed: str
    body: Any = field(default_factory=dict)
    query: str = ""


OPERATIONS: dict[str, Row] = {
    "POST /login": Row(""),
    "POST /password": Row(""),
    "POST /logout": Row("read"),
    "GET /me": Row("read"),
    "GET /version": Row(""),
    "GET /audit": Row("admin"),
    "GET /audit/export": Row("admin"),
    "GET /audit/state": Row("admin"),
    "GET /settings": Row("admin"),
    "GET /tokens": Row("read"),
    "POST /tokens": Row("read", {"name": "x"}),
    "POST /tokens/{token_id}:revoke": Row("read"),
    "GET /jobs": Row("read"),
    "POST /jobs": Row("submit", SPEC),
    "GET /jobs/{job_id}": Row("read"),
    "POST /jobs/{job_id}:cancel": Row("operate", WITH_REASON),
    "POST /jobs/{job_id}:checkpoint": Row("operate", WITH_REASON),
    "POST /jobs/{job_id}:preempt": Row("operate", WITH_REASON),
    "POST /jobs/{job_id}:resume": Row("operate", WITH_REASON),
    "POST /jobs/{job_id}:evict-replica": Row("operate", {"reason": "r", "replica": 0}),
    "POST /jobs/{job_id}:fault": Row("operate", {"reason": "r", "replica": 0, "rank": 0, "fault": "nan"}),
    "POST /jobs/{job_id}:debug": Row("operate", {"reason": "r", "replica": 0, "rank": 0, "diagnostic": "ping"}),
    "POST /jobs/{job_id}:command-rank": Row(
        "operate", {"reason": "r", "replica": 0, "rank": 0, "command": {"name": "collect_garbage"}}
    ),
    "GET /jobs/{job_id}/replicas": Row("read"),
    "GET /jobs/{job_id}/mesh": Row("read"),
    "GET /jobs/{job_id}/steps": Row("read"),
    "GET /jobs/{job_id}/speed": Row("read"),
    "GET /jobs/{job_id}/numerics": Row("read"),
    "GET /jobs/{job_id}/budget": Row("read"),
    "GET /jobs/{job_id}/queue": Row("read"),
    "GET /jobs/{job_id}/ledger": Row("read"),
    "GET /jobs/{job_id}/timeouts": Row("read"),
    "GET /jobs/{job_id}/events": Row("read"),
    "GET /jobs/{job_id}/decisions": Row("read"),
    "GET /jobs/{job_id}/incidents": Row("read"),
    "GET /jobs/{job_id}/checkpoints": Row("read"),
    "GET /jobs/{job_id}/commands": Row("read"),
    "GET /jobs/{job_id}/logs": Row("read"),
    "GET /jobs/{job_id}/diagnostics": Row("read"),
    "GET /incidents": Row("read"),
    "GET /incidents/{incident_id}": Row("read"),
    "GET /incidents/{incident_id}/readings": Row("read"),
    "POST /incidents/{incident_id}:acknowledge": Row("operate", WITH_REASON),
    "GET /breakers": Row("read"),
    "POST /breakers/{breaker_id}:close": Row("operate", WITH_REASON),
    "GET /decisions/{decision_id}": Row("read"),
    "POST /decisions/{decision_id}:approve": Row("operate", WITH_REASON),
    "POST /decisions/{decision_id}:reject": Row("operate", WITH_REASON),
    "POST /decisions/{decision_id}:hold": Row("operate", WITH_REASON),
    "GET /events": Row("read"),
    "GET /events/watch": Row("read"),
    "GET /ledger": Row("read", query="?by=cause&window_s=600"),
    "GET /queue": Row("read"),
    "GET /capacity": Row("read"),
    "GET /overview": Row("read"),
    "GET /nodes": Row("read"),
    "GET /nodes:columns": Row("read"),
    "GET /nodes/{node_id}": Row("read"),
    "POST /nodes/{node_id}:cordon": Row("operate", WITH_REASON),
    "POST /nodes/{node_id}:uncordon": Row("operate", WITH_REASON),
    "POST /nodes/{node_id}:drain": Row("operate", WITH_REASON),
    "POST /nodes/{node_id}:maintain": Row("operate", WINDOW),
    "GET /windows": Row("read"),
    "POST /windows": Row("operate", WINDOW | {"nodes": ["node_404"]}),
    "GET /windows/{window_id}": Row("read"),
    "POST /windows/{window_id}:cancel": Row("operate", WITH_REASON),
    "GET /reservations": Row("read"),
    "POST /reservations": Row("operate", WINDOW | {"nodes": ["node_404"], "project": "default"}),
    "GET /reservations/{reservation_id}": Row("read"),
    "POST /reservations/{reservation_id}:cancel": Row("operate", WITH_REASON),
    "GET /engines": Row("read"),
    "POST /pools/{pool_id}:resize": Row("operate", {"size": 1, "reason": "r"}),
    "GET /requests": Row("read"),
    "GET /requests/{request_id}": Row("read"),
    "POST /requests/{request_id}:withdraw": Row("operate", WITH_REASON),
    "POST /devices/{device_id}:reset": Row("operate", WITH_REASON),
    "POST /nodes/{node_id}:revoke": Row("admin", WITH_REASON),
    "POST /nodes/{node_id}:restore": Row("admin", WITH_REASON),
    "POST /nodes/{node_id}:rotate-key": Row("admin", WITH_REASON),
    "POST /nodes/{node_id}:confirm": Row("admin", WITH_REASON),
    "POST /nodes/{node_id}:remove": Row("admin", WITH_REASON),
    "POST /nodes/{node_id}:re-enrol": Row("admin", WITH_REASON),
    "GET /join-tokens": Row("admin"),
    "POST /join-tokens": Row("admin", {"name": "n9"}),
    "POST /join-tokens/{token_id}:revoke": Row("admin"),
    "GET /policy": Row("read"),
    "GET /policy/versions": Row("read"),
    "GET /policy/diff": Row("read"),
    "GET /policy/xids": Row("read"),
    "GET /policy/recorded/{version}": Row("read"),
    "POST /policy:put": Row("admin", {"text": "{}", "parent": 0, "reason": "r"}),
    "POST /policy:replay": Row("operate", {"since_s": 60}),
    "POST /policy:rollback": Row("admin", {"to": 0, "parent": 0, "reason": "r"}),
    "GET /projects": Row("read"),
    "POST /projects": Row("admin", {"name": "vision", "reason": "r"}),
    "GET /projects/{name}": Row("read"),
    "GET /projects/{name}/bill": Row("read", query="?month=2026-10"),
    "POST /projects/{name}:set": Row("admin", {"weight": 2, "reason": "r"}),
    "POST /projects/{name}:set-member": Row("admin", {"account": "ada", "role": "viewer", "reason": "r"}),
    "POST /projects/{name}:remove-member": Row("admin", {"account": "ada", "reason": "r"}),
    "GET /policy/shadow": Row("read"),
    "POST /policy/shadow:start": Row("admin", {"text": "{}", "reason": "r"}),
    "POST /policy/shadow:promote": Row("admin", {"run": 0, "parent": 0, "reason": "r"}),
    "POST /policy/shadow:stop": Row("admin", {"run": 0, "reason": "r"}),
    "GET /nodes/{node_id}/series": Row("read"),
    "GET /nodes/{node_id}/dead-letters": Row("operate"),
    "GET /demo/faults": Row("read"),
    "POST /demo/faults": Row("operate", {"kind": "no_spares"}),
}

ABOUT_JOBS = ("{job_id}", "{incident_id}", "{decision_id}", "{request_id}")
"""What belongs to a job, and so to its project: these addresses are judged by the rights there."""

OF_PROJECTS: dict[str, Row] = {
    name: row for name, row in OPERATIONS.items() if any(part in name for part in (*ABOUT_JOBS, "/projects/{name}"))
}
"""Operations on one project and on what belongs to it. Making and changing a project is the fleet's."""
OF_THE_FLEET = frozenset({"POST /projects/{name}:set"})

_NAMED = {
    "GET /policy": "?project={name}",
    "GET /policy/versions": "?project={name}",
    "GET /policy/diff": "?before=0&after=0&project={name}",
}
BY_NAME: dict[str, Row] = {
    name: Row(row.needed, row.body | {"project": "{name}"} if name.startswith("POST") else {}, _NAMED.get(name, ""))
    for name, row in OPERATIONS.items()
    if name.partition(" ")[2]
    in ("/policy", "/policy/versions", "/policy/diff", "/policy:put", "/policy:replay", "/policy:rollback")
}
"""Operations on the fleet that are one on a project where its name stands in their query or body."""

OTHER_ADDRESSES: dict[str, str] = {
    "agent/v1/enroll": "a join token in the body",
    "healthz": "everybody: it says only that the process answers",
    "readyz": "everybody: details only to accounts",
    "metrics": "HOLDFAST_METRICS_FROM, or scope read",
    "api/v1/openapi.json": "everybody",
    "api/v1/job.schema.json": "everybody",
    "api/v1/": "the operations above",
    "^(?!api/|agent/|static/|healthz|readyz|metrics).*$": "everybody: the page's document, which holds no data",
}

SOCKETS: dict[str, str] = {
    "agent/v1/stream": "a node's credential",
    "api/v1/live": "the page's session, scope read",
}

STREAMS: frozenset[str] = frozenset({"GET /events/watch"})
"""Operations whose answer goes on; with the socket of the page all there are."""


def operations_of_the_api() -> set[str]:
    """ "METHOD /path" of every operation."""
    from controlplane.api.app import api

    paths = api.get_openapi_schema(path_prefix="")["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def streaming_operations() -> set[str]:
    """Those that say they answer with a stream."""
    from controlplane.api.app import api
    from controlplane.api.edge import EXTRA

    paths = api.get_openapi_schema(path_prefix="")["paths"]
    return {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if operation[EXTRA]["media_type"] == "text/event-stream"
    }


def policies_by_project() -> set[str]:
    """Operations on policies that take the name of a project in their query or body."""
    from controlplane.api.app import api
    from controlplane.api.edge import EXTRA

    found = set()
    for path, methods in api.get_openapi_schema(path_prefix="")["paths"].items():
        for method, operation in methods.items():
            names = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
            names |= set(getattr(operation[EXTRA]["body"], "__struct_fields__", ()))
            if path.startswith("/policy") and "project" in names:
                found.add(f"{method.upper()} {path}")
    return found


def other_addresses() -> set[str]:
    """Patterns of the URL configuration."""
    return {str(entry.pattern) for entry in get_resolver().url_patterns}


def socket_routes() -> set[str]:
    """Patterns of the sockets' router."""
    import os

    before = os.umask(0)
    try:
        from controlplane.config.asgi import application
    finally:
        os.umask(before)
    router = application.app.application_mapping["websocket"]
    return {str(route.pattern) for route in router.routes if isinstance(route, URLPattern)}


def ask(client: Any, operation: str) -> int:
    """The status of one operation, aimed at things that do not exist, as `client` (a Caller)."""
    method, _, path = operation.partition(" ")
    row = OPERATIONS[operation]
    path = path.replace("{", "").replace("}", "")
    return (client.get(path) if method == "GET" else client.post(path, row.body)).status_code
