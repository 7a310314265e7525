"""Everything that goes wrong is a problem+json that says what and what to do."""

from typing import Any

import pytest
from django.test import Client, override_settings

from controlplane.api.openapi import document
from controlplane.api.problems import TABLE, TYPE_BASE, Kind

pytestmark = pytest.mark.django_db


def assert_problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == TYPE_BASE + kind
    assert body["status"] == status
    assert body["detail"]
    assert body["request_id"] == response["X-Request-ID"]
    return body  # type: ignore[no-any-return]


def test_an_unknown_address_is_a_problem(caller: Any) -> None:
    assert_problem(caller("").get("/nothing/here"), 404, "not-found")


def test_a_wrong_method_is_a_problem_and_names_the_right_ones(caller: Any) -> None:
    response = caller("admin").post("/overview")
    assert_problem(response, 405, "method-not-allowed")
    assert "GET" in response["Allow"]


def test_an_unknown_query_parameter_is_refused(caller: Any) -> None:
    body = assert_problem(caller("read").get("/jobs?stat=running"), 400, "unknown-parameter")
    assert "state" in body["detail"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "state=flying"])
def test_a_faulty_parameter_is_pointed_at(caller: Any, query: str) -> None:
    body = assert_problem(caller("read").get(f"/jobs?{query}"), 422, "invalid")
    assert body["errors"][0]["pointer"] == "/query/" + query.partition("=")[0]


@pytest.mark.parametrize("cursor", ["x", "am9icwo", "bm9kZXMKbm9kZV8x"])
def test_a_foreign_or_damaged_cursor_is_refused(caller: Any, cursor: str) -> None:
    assert_problem(caller("read").get(f"/jobs?cursor={cursor}"), 400, "bad-cursor")


def test_a_body_over_the_limit_is_refused_unread(caller: Any) -> None:
    assert_problem(caller("submit").post("/jobs", b" " * ((1 << 20) + 1)), 413, "too-large")


@pytest.mark.parametrize("body", ["{", "", "\xff".encode("latin-1"), "[" * 3000, '{"a":1,"a":2}'])
def test_a_body_that_is_no_document_is_a_400(caller: Any, body: Any) -> None:
    response = caller("submit").post("/jobs", body)
    assert response.status_code in (400, 422)
    assert response["Content-Type"] == "application/problem+json"


def test_a_strange_content_type_is_a_415(caller: Any) -> None:
    response = caller("submit").post("/jobs", b"x", content_type="text/csv")
    assert_problem(response, 415, "unsupported-media-type")


def test_a_session_that_does_not_prove_its_request_is_a_403(user: Any) -> None:
    page = Client(enforce_csrf_checks=True)
    page.force_login(user)
    response = page.post("/api/v1/jobs", data="{}", content_type="application/json")
    assert_problem(response, 403, "csrf")


def test_nobody_and_too_little_are_problems_too(caller: Any, node: Any) -> None:
    assert_problem(caller("").get("/jobs"), 401, "unauthenticated")
    assert_problem(caller("read").post(f"/nodes/{node.id}:cordon", {"reason": "r"}), 403, "forbidden")


def test_the_schema_lists_every_kind_of_problem_there_is() -> None:
    told = document()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert told == [TYPE_BASE + kind for kind in Kind]
    assert {status for status, _ in TABLE.values()} >= {400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503}


def test_an_action_without_a_reason_is_told_so(caller: Any, node: Any) -> None:
    body = assert_problem(caller("operate").post(f"/nodes/{node.id}:cordon", {}), 422, "invalid")
    assert body["errors"][0]["pointer"] == "/reason"


def test_an_unforeseen_failure_tells_the_request_id_and_nothing_else(
    caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode() -> None:
        raise ZeroDivisionError("secret detail of /etc/holdfast")

    monkeypatch.setattr("controlplane.api.routers.fleet.overview", explode)
    response = caller("read").get("/overview")
    assert_problem(response, 500, "internal")
    assert b"secret" not in response.content


@pytest.mark.parametrize("path", ["/jobs/job_nope", "/nodes/nope", "/incidents/nope", "/decisions/nope"])
def test_what_does_not_exist_is_a_404(caller: Any, path: str) -> None:
    assert_problem(caller("admin").get(path), 404, "not-found")


@override_settings(HOLDFAST_DEMO=False)
def test_outside_a_demo_there_are_no_faults(caller: Any) -> None:
    assert_problem(caller("admin").get("/demo/faults"), 404, "not-found")
    assert_problem(caller("admin").post("/demo/faults", {"kind": "no_spares"}), 404, "not-found")


def test_too_many_requests_say_when_to_come_back(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.api.auth.allow", lambda name: 7)
    response = caller("read").get("/jobs")
    assert_problem(response, 429, "too-many-requests")
    assert response["Retry-After"] == "7"


def test_probes_and_metrics_answer_without_an_account() -> None:
    client = Client()
    assert client.get("/healthz").json() == {"ok": True}
    assert client.get("/readyz").json() == {"ok": True}
    assert b"holdfast_build_info" in client.get("/metrics").content


def test_the_page_allows_nothing_inline_and_nothing_foreign() -> None:
    response = Client().get("/jobs/some-job")
    policy = response["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-inline" not in policy
    assert "csrftoken" in response.cookies
