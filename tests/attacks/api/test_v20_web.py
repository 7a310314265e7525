"""V20, what concerns the web process: sign-in by another site's form, the page's policy, endless
heads of requests, a job's environment, weak settings in production."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.models import AuditEntry, IdempotencyKey
from controlplane.access.services import create_api_token
from controlplane.config.guards import weakness_of_secret
from controlplane.config.http import DeadlineProtocol
from controlplane.config.serve import config
from controlplane.runtime.models import Event
from tests.integration.api.conftest import SPEC, Caller, grant, make_node
from tests.integration.api.principals import PASSWORD
from tests.integration.api.server import running

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 100.0
GOOD_KEY = "k3Jx9vQ2mZ7bT5wR8yL1nC4fH6gD0sAqWeUiOpXcVbNmKjYtRz"
CREDENTIALS = f'{{"username": "ada", "password": "{PASSWORD}"}}'


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_sites_form_signs_nobody_in(user: User, kind: str) -> None:
    answer = Client().post("/api/v1/login", CREDENTIALS, content_type=kind)
    assert answer.status_code == 415
    assert "sessionid" not in answer.cookies


@pytest.mark.django_db
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://testserver"},
        {"Origin": "http://testserver.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_another_sites_script_signs_nobody_in(user: User, headers: dict[str, str]) -> None:
    answer = Client().post("/api/v1/login", CREDENTIALS, content_type="application/json", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["type"].endswith("/csrf")
    assert "sessionid" not in answer.cookies


@pytest.mark.django_db
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://holdfast.example:8443"},
        {"Origin": "https://page.trusted.example"},
    ],
    ids=str,
)
def test_our_own_page_and_programs_sign_in(user: User, settings: Any, headers: dict[str, str]) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://holdfast.example:8443", "https://*.trusted.example"]
    answer = Client().post("/api/v1/login", CREDENTIALS, content_type="application/json", headers=headers)
    assert answer.status_code == 200


@pytest.mark.django_db
def test_no_operation_reads_a_body_that_a_form_can_send(caller: Any) -> None:
    answer = caller("admin").post("/tokens", '{"name": "x"}', content_type="text/plain")
    assert answer.status_code == 415


def test_the_page_connects_to_its_own_origin_alone(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["holdfast.example"]
    for secure, scheme in ((False, "ws"), (True, "wss")):
        answer = Client().get("/", headers={"Host": "holdfast.example:8443"}, secure=secure)
        policy = dict(re.findall(r"([a-z-]+) ([^;]*)", answer["Content-Security-Policy"]))
        assert policy["connect-src"].split() == ["'self'", f"{scheme}://holdfast.example:8443"]
    assert Client().get("/", headers={"Host": "evil.example"}).status_code == 400


class Hasty(DeadlineProtocol):
    """The same, with less patience."""

    head_timeout_s = 0.3
    body_timeout_s = 0.3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a second head", "half a body"],
)
def test_a_request_that_never_comes_to_its_end_is_ended(begun: bytes) -> None:
    with running(http=Hasty) as url, socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as line:
        line.settimeout(LIMIT_S)
        line.sendall(begun)
        said = b""
        try:
            while chunk := line.recv(4096):
                said += chunk
        except ConnectionResetError:
            pass
        assert said.count(b"HTTP/1.1") == begun.count(b"\r\n\r\n") * (b"POST" not in begun)


def test_bytes_that_trickle_in_move_no_deadline() -> None:
    with running(http=Hasty) as url, socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\n")
        line.settimeout(0.05)
        ended = False
        while not ended:
            try:
                line.sendall(b"X-A: 1\r\n")
                ended = line.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True


def test_the_web_process_has_the_deadlines_and_reads_no_forwarded_headers() -> None:
    made = config("127.0.0.1", 0, graceful_s=1)
    assert made.http is DeadlineProtocol
    assert made.proxy_headers is False


@pytest.mark.django_db
def test_the_environment_of_a_job_is_for_its_owner_and_for_admins(user: User) -> None:
    secret = "hunter2-hunter2"
    grant(user, "submit")
    owner = Caller(create_api_token(user, name="x", scope="submit").secret)
    spec = {"metadata": SPEC["metadata"], "spec": SPEC["spec"] | {"env": {"WANDB_API_KEY": secret, "MODE": "a"}}}
    make_node("node-1")
    made = owner.post("/jobs", spec, Idempotency_Key="once")
    assert made.status_code == 201
    job_id = made.json()["id"]
    callers = {"owner": Caller(create_api_token(user, name="x", scope="read").secret)}
    for scope in ("read", "submit", "operate", "admin"):
        other = User.objects.create_user(scope)
        grant(other, scope)
        callers[scope] = Caller(create_api_token(other, name="x", scope=scope).secret)
    for name, caller in callers.items():
        answer = caller.get(f"/jobs/{job_id}")
        env = answer.json()["spec"]["spec"]["env"]
        if name in ("owner", "admin"):
            assert env == {"WANDB_API_KEY": secret, "MODE": "a"}
        else:
            assert env == {"WANDB_API_KEY": "***", "MODE": "***"}
            everything = [caller.get(f"/jobs/{job_id}{part}").content.decode() for part in ("", "/events", "/commands")]
            everything += [caller.get(path).content.decode() for path in ("/jobs", "/events", "/overview")]
            assert secret not in "".join(everything)
    rows = [list(model.objects.values()) for model in (Event, AuditEntry, IdempotencyKey)]
    assert secret not in str(rows)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("short", "characters"),
        ("django-insecure-" + GOOD_KEY, "default"),
        ("changeme" * 10, "default"),
        ("a" * 64, "different"),
        ("abcdefghijkl" * 6, "repeats"),
    ],
)
def test_a_weak_secret_is_known_for_one(key: str, why: str) -> None:
    assert why in (weakness_of_secret(key) or "")


@pytest.mark.parametrize("key", [GOOD_KEY, "0123456789abcdef0123456789abcde1" * 2 + "9"])
def test_a_random_secret_is_none(key: str) -> None:
    assert weakness_of_secret(key) is None


def production(tmp_path: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Settings of production, loaded in a process of their own."""
    (tmp_path / "store_key").write_text("0123456789abcdef" * 4)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOLDFAST_PROFILE": "production",
        "HOLDFAST_STATE_DIR": str(tmp_path),
        "HOLDFAST_SECRET_KEY": GOOD_KEY,
        "HOLDFAST_ALLOWED_HOSTS": "holdfast.example",
        "HOLDFAST_DATABASE_URL": "postgres://holdfast@127.0.0.1:1/holdfast",
        "HOLDFAST_SIGNING_KEY_FILE": str(tmp_path / "signing_key"),
        **changes,
    }
    told = (
        "from django.conf import settings as s;"
        "print(s.SECURE_HSTS_SECONDS, s.SECURE_HSTS_INCLUDE_SUBDOMAINS, s.SECURE_HSTS_PRELOAD)"
    )
    return subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "--command", told],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("HOLDFAST_STORE_KEY_FILE", "/nowhere/store_key"),
        ("HOLDFAST_SECRET_KEY", "x" * 60),
        ("HOLDFAST_SECRET_KEY", "django-insecure-" + GOOD_KEY),
        ("HOLDFAST_ALLOWED_HOSTS", "*"),
        ("HOLDFAST_ALLOWED_HOSTS", "holdfast.example,*"),
    ],
)
def test_production_does_not_start_with_it(tmp_path: Path, key: str, value: str) -> None:
    done = production(tmp_path, **{key: value})
    assert done.returncode != 0
    assert key in done.stderr
    assert value not in done.stderr or value == "*" or "," in value or key.endswith("_FILE")


def test_production_starts_and_speaks_for_its_own_host_alone(tmp_path: Path) -> None:
    done = production(tmp_path)
    assert done.stdout.split() == ["31536000", "False", "False"], done.stderr
    more = production(tmp_path, HOLDFAST_HSTS_S="60", HOLDFAST_HSTS_INCLUDE_SUBDOMAINS="true")
    assert more.stdout.split() == ["60", "True", "False"]
    assert production(tmp_path, HOLDFAST_HSTS_PRELOAD="true").stdout.split() == ["31536000", "False", "True"]
    assert os.stat(tmp_path).st_mode & 0o077 == 0
