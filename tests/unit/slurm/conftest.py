"""A server that says what a test wants it to say, on a real socket."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.sdk import Client

JOB: dict[str, Any] = dict.fromkeys(
    (
        "step_time_s", "loss", "eta_s", "last_checkpoint_step", "checkpoint_age_s", "work_at_risk_s", "ettr", "layout",
        "undisturbed_step_s", "productivity", "open_incident_id", "finished_at",
    )
)  # fmt: skip
JOB |= dict.fromkeys(("restarts", "preemptions", "evictions", "replicas_active", "replicas_total", "as_of_seq"), 0)
JOB |= dict.fromkeys(("state_reason", "state_since", "created_at", "why"), "")
JOB |= {
    "id": "job_1", "name": "first", "project": "default", "owner": "ada", "state": "running", "priority": 500,
    "epoch": 2, "committed_step": 42, "total_steps": 90, "progress": 0.5, "attempt": 1, "spec": {}, "attempts": [],
    "spares": [],
}  # fmt: skip
NODE: dict[str, Any] = dict.fromkeys(("state_reason", "state_since", "agent_version", "segment"), "")
NODE |= {"id": "node_1", "name": "n1", "state": "ready", "connected": True, "devices": [], "ranks_running": 0}
NODE |= {"signals": [], "ranks": [], "events": [], "as_of_seq": 0}


class Server:
    """An API. `answers`: by method and path without its query; an int is a bare status, of a list the first is used up
    while there are more. What is not there is a 500. `asked`: what it was asked for, with queries; `keys`: by which a
    POST may be repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.keys: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = f"{self.command} {self.path.removeprefix('/api/v1')}"
                server.asked.append(asked)
                found = server.answers.get(asked.partition("?")[0], 500)
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                self.send_response(found if isinstance(found, int) else 200)
                self.end_headers()
                self.wfile.write(b"" if isinstance(found, int) else json.dumps(found).encode())

            def do_POST(self) -> None:
                server.keys.append(self.headers.get("Idempotency-Key", ""))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.client = Client(f"http://127.0.0.1:{self._http.server_address[1]}")

    def stop(self) -> None:
        self.client.close()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()
