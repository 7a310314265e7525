"""A small REST driver for scenes and benchmarks: ask, order, wait until something holds."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

POLL_S = 0.2
PAGE = 200
REQUEST_TIMEOUT_S = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other refusal: following it would carry the token elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """None: it is not followed, and raised as the HTTPError that it is."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
"""Asks the server itself: no proxy that the environment names sees the token."""


class SceneTimeout(AssertionError):
    """What was waited for did not come; the text holds the last answer."""


class Refused(RuntimeError):
    """The server answered with a problem; `status` and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Driver:
    """Speaks to one server with one token, and shows it to no other. `tick` is called while waiting (the
    supervisor's, where the same process supervises). `headers`: what a proxy in front of it would add."""

    def __init__(
        self,
        base_url: str,
        token: str,
        tick: Callable[[], None] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._base = base_url + "/api/v1"
        self._token = token
        self._tick = tick
        self._headers = dict(headers)

    def get(self, path: str) -> Any:
        """GET under /api/v1."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST JSON under /api/v1."""
        return self._call("POST", path, body or {})

    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a list answer (first page)."""
        return list(self.get(path)["items"])

    def whole_list(self, path: str) -> list[dict[str, Any]]:
        """The items of a list, page by page. `path` has no query."""
        found, cursor = [], ""
        while True:
            page = self.get(f"{path}?limit={PAGE}{cursor and f'&cursor={quote(cursor)}'}")
            found += page["items"]
            if page["next"] is None:
                return found
            cursor = page["next"]

    def wait(self, what: str, ask: Callable[[], Any], *, timeout_s: float) -> Any:
        """Ask until the answer is true. A server that is away is asked again."""
        deadline_s = time.monotonic() + timeout_s
        last: Any = None
        while time.monotonic() < deadline_s:
            if self._tick is not None:
                self._tick()
            try:
                last = ask()
            except (OSError, urllib.error.URLError, Refused) as error:
                last = error
            else:
                if last:
                    return last
            time.sleep(POLL_S)
        raise SceneTimeout(f"{what}: not within {timeout_s:.0f} s; last answer: {last!r}")

    def job(self, name: str) -> dict[str, Any]:
        """The newest job of that name."""
        for job in self.items("/jobs?limit=100"):
            if job["name"] == name:
                return job
        raise LookupError(f"no job named {name}")

    def current_replicas(self, job_id: str) -> list[dict[str, Any]]:
        """The newest incarnation of each slot of the current attempt, by index."""
        return sorted(
            (r for r in self.items(f"/jobs/{job_id}/replicas") if r["current"]), key=lambda replica: replica["index"]
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, data=data, headers=headers, method=method)  # noqa: S310
        try:
            with _OPENER.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")[:2000]) from error
