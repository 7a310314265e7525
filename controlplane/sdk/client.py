"""The synchronous client."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx
import msgspec
import stamina

from controlplane.protocol import rest
from controlplane.sdk import calls, retry, sse
from controlplane.sdk.access import Audit, Tokens
from controlplane.sdk.breakers import Breakers
from controlplane.sdk.calls import API, Call, Page
from controlplane.sdk.engines import Engines
from controlplane.sdk.errors import ApiError, SdkError, UnavailableError, error_for
from controlplane.sdk.ledger import Ledger
from controlplane.sdk.policy import Policy
from controlplane.sdk.projects import Projects
from controlplane.sdk.queue import Queue
from controlplane.sdk.reservations import Reservations
from controlplane.sdk.resources import (
    Decisions,
    Demo,
    Incidents,
    Jobs,
    JoinTokens,
    Nodes,
    Requests,
)
from controlplane.sdk.windows import Windows


class Client:
    """Speaks to one server. Thread-safe as httpx's client is; close it or use `with`.

    `timeout_s` bounds one request, `deadline_s` a call with its retries; `transport`
    replaces the network (an in-process server, for instance); `on_date` takes the `Date` of each answer, by which
    the server's clock can be compared.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        timeout_s: float = 10.0,
        deadline_s: float = retry.DEADLINE_S,
        attempts: int = retry.ATTEMPTS,
        transport: httpx.BaseTransport | None = None,
        on_date: Callable[[str], None] | None = None,
    ) -> None:
        headers = {"User-Agent": "holdfast-sdk"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # No redirects: they would carry the token to another host.
        self._http = httpx.Client(
            base_url=url.rstrip("/") + API, headers=headers, timeout=timeout_s, transport=transport
        )
        self._attempts, self._deadline_s, self._on_date = attempts, deadline_s, on_date
        group = (self.run, self._iterate, self.watch)
        self.jobs, self.nodes, self.incidents = Jobs(*group), Nodes(*group), Incidents(*group)
        self.decisions, self.tokens, self.demo = Decisions(*group), Tokens(*group), Demo(*group)
        self.join_tokens, self.ledger, self.queue = JoinTokens(*group), Ledger(*group), Queue(*group)
        self.audit, self.requests, self.policy = Audit(*group), Requests(*group), Policy(*group)
        self.projects = Projects(*group)
        self.breakers = Breakers(*group)
        self.windows = Windows(*group)
        self.reservations = Reservations(*group)
        self.engines = Engines(*group)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def me(self) -> rest.Me:
        """Who the server thinks I am."""
        answer: rest.Me = self.run(calls.get("/me", rest.Me))
        return answer

    def sign_in(self, username: str, password: str) -> rest.Me:
        """Go on as that person, by password or one-time password, until `sign_out`: to make a
        token where there is none yet."""
        call = calls.secret("/login", {"username": username, "password": password}, rest.Me)
        answer: rest.Me = self.run(call)
        # What a session writes proves itself with these; behind TLS the server asks for the second.
        self._http.headers.update({"X-CSRFToken": answer.csrf, "Referer": str(self._http.base_url)})
        return answer

    def sign_out(self) -> None:
        """End what `sign_in` began."""
        self.run(calls.secret("/logout", {}, None))

    def change_password(self, username: str, current: str, password: str) -> None:
        """`current`: the password so far, or a one-time password. Needs no token and no session."""
        self.run(calls.secret("/password", {"username": username, "current": current, "password": password}, None))

    def version(self) -> rest.Version:
        """Of the server."""
        answer: rest.Version = self.run(calls.get("/version", rest.Version))
        return answer

    def settings(self) -> list[rest.Setting]:
        """What the installation runs with; for administrators."""
        page: Page[rest.Setting] = self.run(calls.get("/settings", Page[rest.Setting]))
        return page.items

    def overview(self) -> rest.Overview:
        """The fleet on one page."""
        answer: rest.Overview = self.run(calls.get("/overview", rest.Overview))
        return answer

    def watch(self, since: int = 0, job_id: str | None = None) -> Iterator[rest.Event]:
        """Events from `since` on, for ever; a lost connection is taken up again where it
        broke. An event of kind "resync" means: some are no longer kept, read anew."""
        reader = sse.Reader(since)
        timeout = httpx.Timeout(10.0, read=sse.READ_TIMEOUT_S)
        while True:
            params = {"since": str(reader.since)} | ({"job_id": job_id} if job_id else {})
            try:
                with self._http.stream("GET", "/events/watch", params=params, timeout=timeout) as response:
                    if response.status_code not in (200, *calls.RETRIED_STATUSES):
                        response.read()
                        raise _error(response)
                    for line in response.iter_lines():
                        event = reader.feed(line)
                        if event is not None:
                            yield event
            except httpx.TransportError:
                pass
            time.sleep(sse.RECONNECT_S)

    def run(self, call: Call[Any]) -> Any:
        """Send one call. Raises the tree of `sdk.errors`."""
        attempts = self._attempts if call.repeatable else 1
        try:
            response = self._attempt(call, attempts)
        except retry.TryAgain as error:
            response = error.response
        except httpx.HTTPError as error:
            raise UnavailableError(f"{self._http.base_url.host}: {error or type(error).__name__}") from error
        except httpx.InvalidURL as error:
            raise UnavailableError(f"not an address: {error}") from error
        if response.status_code >= 300:
            raise _error(response)
        try:
            return calls.decode(call, response.status_code, response.content)
        except msgspec.DecodeError as error:
            raise SdkError(f"the server's answer to {call.path} is not as expected: {error}") from error

    def _attempt(self, call: Call[Any], attempts: int) -> httpx.Response:
        for attempt in stamina.retry_context(
            on=retry.should_retry, attempts=attempts, timeout=self._deadline_s, wait_max=retry.WAIT_MAX_S
        ):
            with attempt:
                response = self._http.request(
                    call.method, call.path, params=call.params, content=call.body, headers=call.headers()
                )
                if self._on_date is not None and "Date" in response.headers:
                    self._on_date(response.headers["Date"])
                return retry.raise_if_transient(response)
        raise AssertionError("unreachable: the loop returns or raises")

    def _iterate(self, call: Call[Any]) -> Iterator[Any]:
        while True:
            page: Page[Any] = self.run(call)
            yield from page.items
            if page.next is None:
                return
            call = msgspec.structs.replace(call, params={**call.params, "cursor": page.next})


def _error(response: httpx.Response) -> ApiError:
    return error_for(calls.problem_of(response.status_code, response.content, response.headers.get("Content-Type", "")))
