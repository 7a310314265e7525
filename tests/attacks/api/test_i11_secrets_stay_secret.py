"""No secret of a whole flow is in the database, the logs, the events or what the API answers.

Only what everybody may use takes part: a one-time password, the session's cookie, an API token,
a join token and enrolment, a job with an environment; on real processes, on either database.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from django.contrib.auth.models import User
from django.db import connection

from controlplane.access.models import AuditEntry, JoinToken
from controlplane.access.services import create_api_token, create_one_time_password
from controlplane.protocol.plain import without_secrets
from controlplane.runtime.events import publish
from controlplane.runtime.models import Event
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.backend.fake_agent import enroll, join_token
from tests.integration.backend.servers import RedisServer, Stack

PASSWORD, WRONG, ENV_VALUE = "correct horse battery staple", "wr0ng-but-s3cret-elsewhere", "env-s3cret-f0r-the-j0b"
LISTS = (
    "/me", "/overview", "/jobs", "/jobs/keeper", "/jobs/keeper/events", "/jobs/keeper/commands",
    "/jobs/keeper/decisions", "/nodes", "/incidents", "/events?limit=500", "/tokens", "/version", "/openapi.json",
)  # fmt: skip


class Flow:
    """What was used, by name, and where to look for it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.secrets: dict[str, str] = {}
        self.answers: dict[str, str] = {}

    def play(self) -> None:
        """Sign in wrongly and rightly, make and use a token, enrol, submit, order, read as another."""
        user = User.objects.create_user("ada", password=PASSWORD, is_superuser=True)
        self.secrets |= {"password": PASSWORD, "wrong password": WRONG, "job's environment": ENV_VALUE}
        self.secrets["one-time password"] = create_one_time_password(user)
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", timeout=30) as page:
            for name, password in (("ada", WRONG), (WRONG, "x"), ("ada", self.secrets["one-time password"])):
                signed = page.post("/login", json={"username": name, "password": password})
            assert signed.status_code == 200, signed.text
            self.secrets["session cookie"] = page.cookies["sessionid"]
            csrf = {"X-CSRFToken": page.get("/me").json()["csrf"]}
            made = page.post("/tokens", json={"name": "ci", "scope": "admin"}, headers=csrf)
            assert made.status_code == 201, made.text
            self.secrets["API token"] = made.json()["token"]
            self._as_program({"Authorization": f"Bearer {self.secrets['API token']}"})
            # Nobody signs out: what a live session leaves behind is looked at too.

    def _as_program(self, token: dict[str, str]) -> None:
        self.secrets["join token"] = join_token()
        credential = enroll(self.stack.url, "node-1", self.secrets["join token"])
        if isinstance(credential, str):
            self.secrets["node's credential"] = credential
        spec = json.loads(json.dumps(SPEC))
        spec["metadata"]["name"] = "keeper"
        spec["spec"]["env"] = {"KEY_OF_THE_JOB": ENV_VALUE}
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", timeout=30, headers=token) as program:
            sent = program.post("/jobs", json=spec, headers={"Idempotency-Key": "once"})
            assert sent.status_code == 201, sent.text
            pasted = program.post("/jobs/keeper:cancel", json={"reason": f"leaked {self.secrets['API token']}"})
            assert pasted.status_code == 422, "a reason is for everybody to read"
            program.post("/jobs/keeper:cancel", json={"reason": "enough"})
            self.answers["/audit"] = program.get("/audit?limit=500").text
        reader = {"Authorization": f"Bearer {create_api_token(User.objects.create_user('bob'), name='r').secret}"}
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", timeout=30, headers=reader) as other:
            for path in LISTS:
                answer = other.get(path)
                assert answer.status_code == 200, answer.text
                self.answers[path] = answer.text
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", timeout=30) as stranger:
            stranger.get("/jobs", headers={"Authorization": token["Authorization"] + "x"})

    def places(self) -> Iterator[tuple[str, str, str]]:
        """(kind, where, text) of everything that somebody else might read."""
        for table in connection.introspection.table_names():
            quoted = connection.ops.quote_name(table)
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {quoted}")
                names = [column[0] for column in cursor.description]
                for row in cursor.fetchall():
                    for name, value in zip(names, row, strict=True):
                        if isinstance(value, memoryview | bytes):
                            value = unpacked(bytes(value)).decode("latin-1")
                        yield "database", f"{table}.{name}", str(value)
        for process in (self.stack.web, self.stack.sentinel):
            yield "log", process.name, process.log.read_text(errors="replace")
        for path, text in self.answers.items():
            yield "API", path, text


def unpacked(data: bytes) -> bytes:
    """Compressed text hides nothing from who can decompress."""
    for frame in (data, data[1:]):
        with contextlib.suppress(zstandard.ZstdError):
            return zstandard.decompress(frame)
    return data


@pytest.fixture
def flow(transactional_db: None, tmp_path: Path, redis_server: RedisServer) -> Iterator[Flow]:
    stack = Stack(tmp_path, redis_server.url)
    stack.start()
    try:
        made = Flow(stack)
        made.play()
        yield made
    finally:
        stack.stop()


def test_no_secret_of_a_whole_flow_can_be_read_anywhere(flow: Flow) -> None:
    found = []
    for kind, where, text in flow.places():
        for name, secret in flow.secrets.items():
            if secret in text:
                found.append(f"{name} in {kind} {where}")
    assert found == [], "\n".join(found)
    assert len(flow.secrets) >= 7
    assert all(flow.answers.values())
    assert "login.one_time_password" in flow.answers["/audit"]


@pytest.mark.django_db
def test_a_credential_in_a_sentence_is_masked_in_events() -> None:
    secret = join_token()
    publish("job.note", f"somebody wrote {secret}.")
    which = JoinToken.objects.get().id
    assert Event.objects.get(kind="job.note").sentence == f"somebody wrote holdfast_join_{which}_[masked]."


def test_a_join_token_in_a_reason_is_refused_and_one_that_is_masked_is_not(caller: Any) -> None:
    admin, secret, node = caller("admin"), join_token(), make_node("node-1")
    refused = admin.post(f"/nodes/{node.id}:cordon", {"reason": f"it came with {secret}"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/reason")
    masked = without_secrets(secret)
    assert admin.post(f"/nodes/{node.id}:cordon", {"reason": f"it came with {masked}"}).status_code == 202
    assert JoinToken.objects.get().id in AuditEntry.objects.get(action="node.cordon").reason


def test_a_credential_in_a_log_line_is_masked() -> None:
    program = (
        "from controlplane.runtime.logs import configure, get\n"
        "configure()\n"
        "get('x').info('said', text='otp_' + 'a' * 43, deep={'b': ['holdfast_admin_' + 'c' * 43]})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, check=True
    )
    assert b"aaaa" not in done.stderr
    assert b"cccc" not in done.stderr
    assert json.loads(done.stderr)["deep"] == {"b": ["holdfast_admin_[masked]"]}
