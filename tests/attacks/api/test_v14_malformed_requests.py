"""What made the server answer 500: each is a 4xx problem document, on both databases."""

import asyncio
import json
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import Client, override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.access.services import create_api_token
from controlplane.api import errors, pages, throttle
from controlplane.fleet.models import Node
from controlplane.runtime import metrics
from tests.attacks.api.fuzzing import watched_server
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job
from tests.integration.backend.fake_agent import join_token

pytestmark = pytest.mark.django_db
GENERATED = settings(
    max_examples=150, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
YAML = "application/yaml"
HUGE = 2**70


def refused(response: Any) -> dict[str, Any]:
    """A 4xx problem document."""
    assert 400 <= response.status_code < 500, (response.status_code, response.content[:300])
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert body["type"].startswith("https://holdfast.dev/problems/") or body["type"].startswith("urn:")
    return body


@pytest.fixture(autouse=True)
def _unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle.Buckets, "take", lambda self, name: None)


@pytest.fixture
def ids(db: None) -> dict[str, str]:
    nodes = [make_node("node-1"), make_node("node-2")]
    return {"job": running_job(nodes, SPEC).id, "node": nodes[0].id}


@pytest.mark.parametrize(
    "text",
    ["a: !!bool x", "a: !!timestamp x", "a: !!int x", "a: !!float x", "a: !!binary '@'", "!!set {a, b}",
     "a: !!null x", "a: !!omap x", "!!pairs x", "a: ! x", "a: !own x", '"\\ud800": 1', 'a: "\\ud800"', '"\\0": 1',
     "a: =",
     "? [a]\n: b", "<<: 5", "a: 2001-02-30", "a: 9999-99-99t99:99:99", "a: 1_",
     "? {a: b}\n: c", "metadata: {name: \"a\\0b\"}"],
)  # fmt: skip
def test_no_yaml_is_a_server_error(caller: Any, text: str) -> None:
    refused(caller("submit").post("/jobs", text, content_type=YAML))
    refused(caller("submit").post("/jobs?dry_run=true", text, content_type=YAML)) if "!!" in text else None


@pytest.mark.parametrize(
    "text",
    ['{"\\ud800": 1}', '{"metadata": {"name": "\\udfff"}}', '{"\\u0000": 1}',
     '{"metadata": {"labels": {"\\ud800": "x"}}}', '{"metadata": {"name": "a\\u0000"}}',
     '{"a": ' + "9" * 400 + "}", "[" * 100_000, '{"a":' * 5000, '"\\ud800"', "1e999999"],
)  # fmt: skip
@pytest.mark.parametrize("dry_run", ["", "?dry_run=true"])
def test_no_json_spec_is_a_server_error(caller: Any, text: str, dry_run: str) -> None:
    response = caller("submit").post(f"/jobs{dry_run}", text)
    assert response.status_code < 500, response.content


@pytest.mark.parametrize("name", ["a\x00", "\x00", "\x00" * 100])
def test_nobody_needs_an_account_to_be_refused_politely(name: str, db: None) -> None:
    body = json.dumps({"username": name, "password": "x"})
    refused(Client(raise_request_exception=False).post("/api/v1/login", body, content_type="application/json"))


def test_a_password_with_half_a_character_is_refused(db: None) -> None:
    body = '{"username": "ada", "password": "\\ud800"}'
    refused(Client(raise_request_exception=False).post("/api/v1/login", body, content_type="application/json"))


READS = [
    "/jobs?q=%00", "/jobs?q=a%00b", "/nodes?q=%00", "/nodes?state=%00", "/events?job_id=%00", "/events?node_id=%00",
    "/jobs/{job}/diagnostics?command_id=%00", "/jobs/%00", "/nodes/%00", "/incidents/%00", "/decisions/%00",
    "/jobs/{job}%00",
    f"/events?after_seq={HUGE}", f"/jobs/{{job}}/steps?since_step={HUGE}", f"/jobs/{{job}}/replicas?attempt={HUGE}",
    f"/jobs/{{job}}/logs?rank={HUGE}", f"/jobs?limit={HUGE}", f"/nodes/{{node}}/series?max_points={HUGE}",
    "/nodes/{node}/series?window_s=nan", "/nodes/{node}/series?window_s=inf", "/audit?actor=%00", "/jobs?%00=1",
]  # fmt: skip


@pytest.mark.parametrize("path", READS)
def test_no_address_is_a_server_error(caller: Any, ids: dict[str, str], path: str) -> None:
    refused(caller("admin").get(path.format(**ids)))


@pytest.mark.parametrize("key", ["0", "-1", "00", "1e9", "$", "a[0]", "a.b", "%22", "%27", "%5C", "%25s", "\u00e9", ""])
def test_a_label_is_found_by_its_key_whatever_that_looks_like(caller: Any, key: str) -> None:
    named = SPEC | {"metadata": SPEC["metadata"] | {"labels": {unquote(key): "1"}}}
    if key:
        assert caller("submit").post("/jobs", named).status_code == 201
    for value, found in (("1", bool(key)), ("2", False)):
        answer = caller("read").get(f"/jobs?labels={key}={value}")
        assert answer.status_code < 500, answer.content
        assert not key or len(answer.json()["items"]) == found


@pytest.mark.parametrize("labels", ["-1", "0", " "])
def test_a_label_without_a_value_is_refused(caller: Any, labels: str) -> None:
    refused(caller("read").get(f"/jobs?labels={labels}"))


@override_settings(HOLDFAST_DEMO=True)
@pytest.mark.parametrize("revision", [2, 3])
@pytest.mark.parametrize("value", [-1, 1e308, -1e308, "x" * 1000])
@pytest.mark.parametrize("kind", ["cut_node", "xid", "overheat_device", "ecc_errors", "cut_nvlink", "slow_rank"])
def test_no_strength_of_a_demo_fault_is_a_server_error(
    caller: Any, ids: dict[str, str], kind: str, value: Any, revision: int
) -> None:
    Node.objects.update(revision=revision)
    rank = {"job_id": ids["job"], "replica": 0, "rank": 0}
    where = rank if kind == "slow_rank" else {"node_id": ids["node"], "device_index": 0}
    body = refused(caller("operate").post("/demo/faults", {"kind": kind, "value": value, **where}))
    assert body["errors"][0]["pointer"] == "/value"


@pytest.mark.parametrize("cidr", [",", " ", " , ,"])
def test_a_join_token_that_would_fit_nobody_is_refused(caller: Any, cidr: str) -> None:
    body = refused(caller("admin").post("/join-tokens", {"cidr": cidr}))
    assert "names no network" in json.dumps(body["errors"])


@pytest.mark.parametrize("key", [str(HUGE), "-" + "9" * 30, "\ufffd", "\u0661" * 30])
def test_a_cursor_beyond_the_database_is_refused(caller: Any, ids: dict[str, str], key: str) -> None:
    body = refused(caller("admin").get(f"/audit?cursor={pages.encode(key, 'audit')}"))
    assert body["type"].endswith("/bad-cursor")


@pytest.mark.parametrize("verb", ["cancel", "checkpoint"])
def test_a_reason_with_a_nul_is_refused(caller: Any, ids: dict[str, str], verb: str) -> None:
    body = refused(caller("operate").post(f"/jobs/{ids['job']}:{verb}", {"reason": "a\x00b"}))
    assert body["errors"][0]["pointer"] == "/reason"


@pytest.mark.parametrize("part", ["cordon", "uncordon"])
def test_a_node_is_not_touched_by_a_reason_that_cannot_be_kept(caller: Any, ids: dict[str, str], part: str) -> None:
    refused(caller("operate").post(f"/nodes/{ids['node']}:{part}", {"reason": "\x00"}))


def test_a_name_of_a_token_fits_its_column(caller: Any) -> None:
    refused(caller("admin").post("/tokens", {"name": "x" * 101}))
    refused(caller("admin").post("/tokens", {"name": "x\x00"}))


@override_settings(HOLDFAST_DEMO=True)
def test_a_demo_fault_with_a_nul_is_refused(caller: Any, ids: dict[str, str]) -> None:
    refused(caller("operate").post("/demo/faults", {"kind": "kill_rank", "job_id": "\x00", "replica": 0, "rank": 0}))


@pytest.mark.parametrize("cookie", ['sessionid="\\000"', 'sessionid="a\\000b"', 'csrftoken="\\000"'])
def test_a_cookie_can_carry_no_nul(cookie: str, db: None) -> None:
    response = Client(raise_request_exception=False).get("/api/v1/jobs", headers={"Cookie": cookie})
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize("last", ["\u00b2", str(HUGE), "9" * 5000, "-1", "\u0661"])
@pytest.mark.django_db(transaction=True)
def test_where_a_stream_begins_is_checked(last: str) -> None:
    user = User.objects.create_user("ada", password="correct horse battery")
    token = create_api_token(user, name="read").secret
    with watched_server() as (url, watched):
        headers = {"Authorization": f"Bearer {token}", b"Last-Event-ID": last.encode("latin-1", "replace")}
        with httpx.stream("GET", f"{url}/api/v1/events/watch", headers=headers, timeout=10) as response:
            assert response.status_code < 500
        with httpx.stream("GET", f"{url}/api/v1/events/watch?since={HUGE}", headers=headers, timeout=10) as response:
            assert response.status_code in (410, 422)
    assert watched.failed == []


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DEVICE = st.fixed_dictionaries(
    {"index": st.integers(), "uuid": st.text(), "model": st.text(), "memory_bytes": st.none() | st.integers(),
     "driver": st.text()}
)  # fmt: skip


@GENERATED
@given(body=JSON_VALUES)
def test_no_enrolment_of_any_shape_is_a_server_error(body: Any, db: None) -> None:
    text = json.dumps(body)
    refused(Client(raise_request_exception=False).post("/agent/v1/enroll", text, content_type="application/json"))


@GENERATED
@given(name=st.just("node-1") | st.text(), version=JSON_VALUES, devices=st.lists(DEVICE, max_size=2))
def test_no_enrolment_with_a_good_token_is_a_server_error(name: str, version: Any, devices: Any, db: None) -> None:
    body = {"join_token": join_token(), "node_name": name, "agent_version": version, "devices": devices}
    client = Client(raise_request_exception=False)
    response = client.post("/agent/v1/enroll", json.dumps(body), content_type="application/json")
    assert response.status_code < 500, response.content


@GENERATED
@given(raw=st.binary(max_size=300), kind=st.sampled_from([YAML, "application/json", "text/plain", "", "\x00"]))
def test_no_bytes_posted_anywhere_are_a_server_error(raw: bytes, kind: str, caller: Any) -> None:
    operator = caller("admin")
    for path in ("/jobs", "/login", "/tokens", "/jobs/x:cancel", "/demo/faults"):
        assert operator.post(path, raw, content_type=kind).status_code < 500


def test_what_a_check_missed_is_refused_counted_and_logged(rf: Any) -> None:
    before = metrics.LATE_REFUSALS.labels(error="OverflowError")._value.get()
    response = errors.respond(rf.get("/api/v1/jobs"), OverflowError("int too large"))
    assert response.status_code == 400
    assert metrics.LATE_REFUSALS.labels(error="OverflowError")._value.get() == before + 1


def browser_messages() -> st.SearchStrategy[dict[str, Any]]:
    """What a browser, or somebody who plays one, may send."""
    topics = st.lists(st.text(max_size=100), max_size=120) | JSON_VALUES
    shaped = st.fixed_dictionaries(
        {"type": st.sampled_from(["subscribe", "ping", "x"]), "topics": topics, "since": st.integers() | JSON_VALUES}
    ).map(json.dumps)
    texts = shaped | st.text() | st.just("[" * 10_000) | st.just("x" * 20_000) | JSON_VALUES.map(json.dumps)
    return texts.map(lambda text: {"type": "websocket.receive", "text": text}) | st.binary(max_size=50).map(
        lambda data: {"type": "websocket.receive", "bytes": data}
    )


@pytest.mark.django_db(transaction=True)
def test_no_message_of_a_browser_ends_its_socket_otherwise_than_by_a_refusal() -> None:
    from controlplane.live.browser_socket import BrowserSocket
    from controlplane.live.process import WebProcess

    process = WebProcess(None)  # type: ignore[arg-type]
    user = User.objects.create_user("ada")
    page = Client()
    page.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    scope = {"type": "websocket", "user": user, "session": page.session}

    async def play(messages: list[dict[str, Any]]) -> None:
        socket = ApplicationCommunicator(BrowserSocket.as_asgi(), dict(scope))
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output(10))["type"] == "websocket.accept"
        for message in messages:
            await socket.send_input(message)
        await socket.send_input({"type": "websocket.receive", "text": '{"type": "ping"}'})
        while True:
            said = await socket.receive_output(10)
            if said["type"] == "websocket.close" or said.get("text") == '{"type":"pong"}':
                break
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(10)

    async def play_all() -> None:
        process.loop = asyncio.get_running_loop()  # its pumps are not needed
        for messages in generated:
            await asyncio.wait_for(play(messages), 60)
        process._pool.shutdown()

    generated: list[list[dict[str, Any]]] = []

    @GENERATED
    @given(messages=st.lists(browser_messages(), max_size=30))
    def collect(messages: list[dict[str, Any]]) -> None:
        generated.append(messages)

    collect()
    asyncio.run(play_all())
