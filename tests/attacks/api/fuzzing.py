"""schemathesis against a real server: every phase, one principal at a time.

Called by test_v14_fuzz.py. Judges nothing itself: the server's own statuses are counted where
they leave the application, so that an answer which a client library swallows counts too.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from django.core.asgi import get_asgi_application
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.engine.run import PhaseName

from tests.integration.api.server import running

PHASES = (PhaseName.EXAMPLES, PhaseName.COVERAGE, PhaseName.FUZZING, PhaseName.STATEFUL_TESTING)
# An event stream never ends by itself; test_v14_malformed_requests.py has it.
ENDLESS = "/api/v1/events/watch"
# The engine's own look at how the server takes NUL in headers: nothing of the API.
REQUEST_TIMEOUT_S = 20.0
MAX_KEPT = 20


@dataclass
class Watched:
    """An ASGI application that counts the statuses it answers and keeps the requests behind 5xx."""

    app: Any = field(default_factory=get_asgi_application)
    statuses: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on; note its answer."""
        body = bytearray()

        async def received() -> Any:
            message = await receive()
            body.extend(message.get("body", b"")[:2000])
            return message

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, bytes(body), message["status"])
            await send(message)

        await self.app(scope, received, sent)

    def _note(self, scope: dict[str, Any], body: bytes, status: int) -> None:
        with self.lock:
            self.statuses[status] += 1
            if status >= 500 and len(self.failed) < MAX_KEPT:
                query = scope.get("query_string", b"")
                self.failed.append(f"{status} {scope['method']} {scope['path']!r}?{query!r} {body[:500]!r}")


@dataclass
class Report:
    """What one run did. `finished`: phases that ran to their end, by name."""

    finished: dict[str, str] = field(default_factory=dict)
    scenarios: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


@contextmanager
def watched_server() -> Iterator[tuple[str, Watched]]:
    """Address of a server over the test's database, and what it answered."""
    watched = Watched()
    with running(watched) as url:
        yield url, watched


def fuzz(
    url: str,
    headers: dict[str, str],
    *,
    examples: int,
    seed: int,
    parameters: dict[str, str],
    phases: tuple[PhaseName, ...] = PHASES,
) -> Report:
    """Run `phases` as one principal, to their end. `parameters` fixes path parameters, so that
    requests reach rows that exist; the rest is generated. `examples` are of one operation."""
    project: dict[str, Any] = {
        "base-url": url,
        "headers": headers,
        "workers": 1,
        "continue-on-failure": True,
        "request-timeout": REQUEST_TIMEOUT_S,
        "checks": {"enabled": False, "not_a_server_error": {"enabled": True}},
        "generation": {"max-examples": examples, "no-shrink": True, "with-security-parameters": not headers},
        "phases": {name.value: {"enabled": name in phases} for name in PHASES},
        "operations": [{"include-path": ENDLESS, "enabled": False}],
    }
    if parameters:
        project["parameters"] = parameters
    config = SchemathesisConfig.from_dict({"seed": seed, **project})
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", config=config)
    report = Report()
    for event in from_schema(schema).execute():
        match event:
            case events.PhaseFinished() if event.phase.name in phases:
                reason = event.phase.skip_reason
                report.finished[event.phase.name.value] = str(reason.value if reason else event.status.value)
            case events.ScenarioFinished():
                report.scenarios[event.status.value] += 1
            case events.NonFatalError() | events.FatalError() | events.Interrupted():
                report.errors.append(str(getattr(event, "exception", "") or getattr(event, "info", event)))
    return report
