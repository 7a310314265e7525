"""The client retries what is safe, pages by itself, resumes a watch, and raises by kind.

The network is an httpx transport of this file: the client's own code runs whole.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import stamina

from controlplane.protocol import rest
from controlplane.sdk import (
    AsyncClient,
    AuthError,
    ChangedError,
    Client,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    SdkError,
    ServerError,
    ThrottledError,
    UnavailableError,
    retry,
    sse,
)

Answer = Callable[[httpx.Request], httpx.Response]
ACCEPTED = {"detail": "done"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stamina.set_testing(True, attempts=3)
    monkeypatch.setattr(sse, "RECONNECT_S", 0.0)
    yield
    stamina.set_testing(False)


def client(answer: Answer) -> Client:
    return Client("http://server", token="holdfast_read_x", transport=httpx.MockTransport(answer))


def problem(status: int, **fields: Any) -> httpx.Response:
    body = {"type": "t", "title": "No", "status": status, "detail": "because"} | fields
    return httpx.Response(status, content=json.dumps(body), headers={"Content-Type": "application/problem+json"})


def script(*answers: httpx.Response | Exception) -> tuple[Answer, list[httpx.Request]]:
    """Answers in order; the requests seen."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        given = answers[min(len(seen), len(answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return given

    return answer, seen


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError), (401, AuthError), (403, ForbiddenError), (404, NotFoundError), (409, ConflictError),
        (410, GoneError), (413, InvalidError), (415, InvalidError), (422, InvalidError), (429, ThrottledError),
        (500, ServerError), (503, ServerError),
    ],
)  # fmt: skip
def test_each_status_raises_its_kind_with_the_problem(status: int, kind: type[Exception]) -> None:
    with client(lambda request: problem(status)) as api, pytest.raises(kind) as caught:
        api.nodes.cordon("n", "r")
    assert caught.value.problem.detail == "because"  # type: ignore[attr-defined]


def test_faults_of_a_body_reach_the_caller() -> None:
    errors = [{"pointer": "/a", "message": "m", "fix": "f"}]
    with client(lambda request: problem(422, errors=errors)) as api, pytest.raises(InvalidError) as caught:
        api.jobs.submit({})
    assert caught.value.problem.errors == [rest.FieldError("/a", "m", "f")]


def test_a_keyed_write_is_repeated_with_the_same_key() -> None:
    answer, seen = script(httpx.ConnectError("refused"), problem(503), httpx.Response(202, json=ACCEPTED))
    with client(answer) as api:
        assert api.jobs.cancel("j", "r").detail == "done"
    keys = {request.headers["Idempotency-Key"] for request in seen}
    assert len(seen) == 3
    assert len(keys) == 1


def test_two_writes_have_two_keys() -> None:
    answer, seen = script(httpx.Response(202, json=ACCEPTED))
    with client(answer) as api:
        api.jobs.cancel("j", "r")
        api.jobs.cancel("j", "r")
    assert seen[0].headers["Idempotency-Key"] != seen[1].headers["Idempotency-Key"]


def later(status: int, retry_after: str) -> httpx.Response:
    return httpx.Response(status, headers={"Retry-After": retry_after, "Content-Type": "text/plain"}, content=b"later")


def test_a_call_waits_as_long_as_the_server_asks_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    stamina.set_testing(False)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    answer, seen = script(later(503, "3"), later(429, "7"), later(503, "86400"), httpx.Response(202, json=ACCEPTED))
    with client(answer) as api:
        assert api.jobs.cancel("j", "r").detail == "done"
    assert waits == [3.0, 7.0, retry.RETRY_AFTER_MAX_S]
    assert len({request.headers["Idempotency-Key"] for request in seen}) == 1


def test_all_tries_of_a_call_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    stamina.set_testing(False)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"{seconds} s after its deadline"))
    answer, seen = script(later(503, "1"))
    short = Client("http://server", token="t", transport=httpx.MockTransport(answer), deadline_s=1e-9)
    with short as api, pytest.raises(ServerError):
        api.jobs.cancel("j", "r")
    assert len(seen) == 1


def test_a_refusal_is_not_repeated() -> None:
    answer, seen = script(problem(409))
    with client(answer) as api, pytest.raises(ConflictError):
        api.jobs.cancel("j", "r")
    assert len(seen) == 1


def test_no_answer_at_all_is_unavailable() -> None:
    answer, seen = script(httpx.ConnectError("refused"))
    with client(answer) as api, pytest.raises(UnavailableError):
        api.me()
    assert len(seen) == 3


def test_a_page_of_a_proxy_is_told_as_such() -> None:
    with (
        client(lambda request: httpx.Response(404, html="<h1>nginx</h1>")) as api,
        pytest.raises(NotFoundError) as caught,
    ):
        api.jobs.get("x")
    assert "proxy" in str(caught.value)


def test_an_answer_of_another_shape_is_an_sdk_error() -> None:
    with client(lambda request: httpx.Response(200, json={"odd": 1})) as api, pytest.raises(SdkError):
        api.me()


def test_a_redirect_never_carries_the_token_elsewhere() -> None:
    answer, seen = script(httpx.Response(302, headers={"Location": "http://evil/"}))
    with client(answer) as api, pytest.raises(SdkError):
        api.me()
    assert {request.url.host for request in seen} == {"server"}


def paged(request: httpx.Request) -> httpx.Response:
    token = {"id": "t", "name": "n", "owner": "ada", "parent": None, "scope": "read", "project": "",
             "created_at": "", "expires_at": None, "last_used_at": None,
             "revoked_at": None}  # fmt: skip
    cursor = int(request.url.params.get("cursor", "0"))
    items = [token | {"id": f"t{cursor + i}"} for i in range(2)]
    return httpx.Response(200, json={"items": items, "next": str(cursor + 2) if cursor < 4 else None, "as_of_seq": 1})


def test_a_list_hides_its_pages() -> None:
    with client(paged) as api:
        assert [token.id for token in api.tokens.list()] == [f"t{i}" for i in range(6)]


async def test_the_asynchronous_client_does_the_same() -> None:
    async with AsyncClient("http://server", transport=httpx.MockTransport(paged)) as api:
        assert [token.id async for token in api.tokens.list()] == [f"t{i}" for i in range(6)]


def events(*seqs: int) -> bytes:
    event = {"at": "", "kind": "k", "sentence": "s"}
    return b"retry: 1000\n\n" + b"".join(
        b"id: %d\nevent: event\ndata: %s\n\n" % (seq, json.dumps(event | {"seq": seq}).encode()) for seq in seqs
    )


def streamed(*parts: bytes | Exception) -> tuple[Answer, list[httpx.Request]]:
    return script(*(part if isinstance(part, Exception) else httpx.Response(200, content=part) for part in parts))


def test_a_watch_goes_on_where_the_connection_broke() -> None:
    answer, seen = streamed(events(5, 6), httpx.ReadError("cut"), events(7))
    with client(answer) as api:
        watch = api.watch(since=4)
        assert [next(watch).seq for _ in range(3)] == [5, 6, 7]
    assert [request.url.params["since"] for request in seen] == ["4", "6", "6"]


async def test_an_asynchronous_watch_too() -> None:
    answer, seen = streamed(events(5), events(6))
    async with AsyncClient("http://server", transport=httpx.MockTransport(answer)) as api:
        watch = api.jobs.watch("job_1", since=4)
        assert [(await anext(watch)).seq for _ in range(2)] == [5, 6]
    assert [request.url.params["since"] for request in seen] == ["4", "5"]
    assert seen[0].url.params["job_id"] == "job_1"


def test_a_watch_from_too_long_ago_says_so() -> None:
    with client(lambda request: problem(410)) as api, pytest.raises(GoneError):
        next(api.watch(since=1))


def test_an_event_split_over_lines_and_comments_is_whole() -> None:
    reader = sse.Reader(0)
    lines = [": quiet", "", "event: event", 'data: {"seq": 3, "at": "", "kind": "k",', 'data: "sentence": "s"}']
    assert [reader.feed(line) for line in lines] == [None] * 5
    event = reader.feed("")
    assert event is not None
    assert (event.seq, reader.since) == (3, 3)


def test_the_client_needs_neither_django_nor_torch() -> None:
    import subprocess
    import sys

    program = "import sys, controlplane.sdk; sys.stderr.write(str({'django', 'torch'} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_change_rests_on_what_was_read_where_it_is_told_so_and_on_nothing_else() -> None:
    answer, seen = script(httpx.Response(202, json=ACCEPTED))
    api = client(answer)
    api.jobs.cancel("job_1", "why", if_match='"1-2.3"', expected_attempt=0)
    api.nodes.cordon("node_1", "why", if_match="*")
    api.projects.set("vision", "why", weight=2, if_match='"4"')
    api.jobs.cancel("job_1", "why")
    assert [request.headers.get("If-Match") for request in seen] == ['"1-2.3"', "*", '"4"', None]
    assert [json.loads(request.content) for request in seen] == [
        {"reason": "why", "expected_attempt": 0}, {"reason": "why"}, {"reason": "why", "weight": 2}, {"reason": "why"},
    ]  # fmt: skip


def test_what_was_changed_meanwhile_is_an_error_of_its_own_and_is_not_sent_again() -> None:
    answer, seen = script(problem(412))
    with pytest.raises(ChangedError) as refused:
        client(answer).policy.put("{}", reason="why", if_match='"old"')
    assert isinstance(refused.value, ConflictError) and len(seen) == 1
    assert "parent" not in json.loads(seen[0].content)


def test_an_if_match_that_no_header_can_hold_is_not_sent() -> None:
    answer, seen = script(httpx.Response(202, json=ACCEPTED))
    for tag in ('"a\r\nX-Evil: 1"', '"\x9b"', '"\u202e"'):
        with pytest.raises(SdkError, match="no ETag"):
            client(answer).nodes.cordon("node_1", "why", if_match=tag)
    assert seen == []
