"""Every call of the API as data: what to send and what comes back. Pure, so that the
synchronous and the asynchronous client are the same table with other plumbing."""

import uuid
from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from controlplane.protocol import rest
from controlplane.protocol.rest import Problem
from controlplane.sdk.errors import SdkError

T = TypeVar("T")

API = "/api/v1"
RETRIED_STATUSES = frozenset({429, 502, 503, 504})


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request. `answer` None: nothing to decode; with `lines` the type of each line. `key` makes a POST safe to
    repeat."""

    method: str
    path: str
    answer: Any = None
    params: dict[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    key: str = ""
    if_match: str | None = None
    lines: bool = False

    @property
    def repeatable(self) -> bool:
        """True if sending it twice has the effect of once."""
        return self.method == "GET" or bool(self.key)

    def headers(self) -> dict[str, str]:
        """Of this call alone. Raises SdkError for an `if_match` that no header can hold."""
        headers = {"Accept": "application/json"}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        if self.key:
            headers["Idempotency-Key"] = self.key
        if self.if_match is not None:
            if not (self.if_match.isascii() and self.if_match.isprintable()):
                raise SdkError(f"{self.if_match!r} is no ETag")
            headers["If-Match"] = self.if_match
        return headers


class AsRead(TypedDict, total=False):
    """What a change may rest on. `if_match`: the `etag` of the object as it was read, or "*"; ChangedError where it is
    another one by now, and nothing was changed."""

    if_match: str | None


class JobAsRead(AsRead, total=False):
    """`expected_attempt`: ConflictError where the job's newest attempt is another one (0: it has none yet)."""

    expected_attempt: int | None


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list answer. `total`: rows of all pages, None where they are not counted."""

    items: list[T]
    next: str | None = None
    as_of_seq: int = 0
    total: int | None = None


def get(path: str, answer: Any, **params: Any) -> Call[Any]:
    """A GET; parameters that are None are left out."""
    return Call(method="GET", path=path, answer=answer, params=_params(params))


def post(path: str, body: Mapping[str, Any], answer: Any, *, if_match: str | None = None, **params: Any) -> Call[Any]:
    """A POST of JSON with a key of its own."""
    return Call(
        method="POST",
        path=path,
        answer=answer,
        params=_params(params),
        body=msgspec.json.encode(dict(body)),
        key=str(uuid.uuid4()),
        if_match=if_match,
    )


def secret(path: str, body: Mapping[str, Any], answer: Any) -> Call[Any]:
    """A POST that shows a password: sent once, as the second time it may have been used up."""
    return Call(method="POST", path=path, answer=answer, body=msgspec.json.encode(dict(body)))


def submit(spec: Mapping[str, Any] | str | bytes, *, dry_run: bool = False, key: str = "") -> Call[Any]:
    """A job from a mapping, or from YAML text sent as it is."""
    text = isinstance(spec, str | bytes)
    body = (spec.encode() if isinstance(spec, str) else spec) if text else msgspec.json.encode(spec)
    return Call(
        method="POST",
        path="/jobs",
        answer=rest.DryRun if dry_run else rest.Job,
        params={"dry_run": "true"} if dry_run else {},
        body=body,  # type: ignore[arg-type]
        content_type="application/yaml" if text else "application/json",
        key="" if dry_run else key or str(uuid.uuid4()),
    )


def one(resource: str, identifier: str, tail: str = "") -> str:
    """`/jobs/{id}tail` with the id made safe for a path."""
    return f"/{resource}/{quote(identifier, safe='')}{tail}"


def decode(call: Call[Any], status: int, content: bytes) -> Any:
    """The typed answer. Raises msgspec.DecodeError for one this client cannot read."""
    if call.answer is None or status == 204:
        return None
    if call.lines:
        return msgspec.json.Decoder(call.answer).decode_lines(content)
    return msgspec.json.decode(content, type=call.answer)


def problem_of(status: int, content: bytes, content_type: str) -> Problem:
    """The server's problem; one made up from the status where a proxy answered instead."""
    if content_type.startswith("application/problem+json"):
        try:
            return msgspec.json.decode(content, type=Problem)
        except msgspec.DecodeError:
            pass
    return Problem(
        type="about:blank",
        title=f"HTTP {status}",
        status=status,
        detail="The answer did not come from Holdfast; is the address right, and is a proxy in between?",
    )


def _params(params: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in params.items() if value is not None}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
