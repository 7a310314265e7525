"""The asynchronous client: the same calls, awaited."""

import asyncio
from collections.abc import AsyncIterator
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
from controlplane.sdk.errors import SdkError, UnavailableError, error_for
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


class AsyncClient:
    """As `Client`; every method is awaited, every list is an async iterator."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        timeout_s: float = 10.0,
        deadline_s: float = retry.DEADLINE_S,
        attempts: int = retry.ATTEMPTS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"User-Agent": "holdfast-sdk"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + API, headers=headers, timeout=timeout_s, transport=transport
        )
        self._attempts, self._deadline_s = attempts, deadline_s
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

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def me(self) -> rest.Me:
        """Who the server thinks I am."""
        answer: rest.Me = await self.run(calls.get("/me", rest.Me))
        return answer

    async def version(self) -> rest.Version:
        """Of the server."""
        answer: rest.Version = await self.run(calls.get("/version", rest.Version))
        return answer

    async def settings(self) -> list[rest.Setting]:
        """What the installation runs with; for administrators."""
        page: Page[rest.Setting] = await self.run(calls.get("/settings", Page[rest.Setting]))
        return page.items

    async def overview(self) -> rest.Overview:
        """The fleet on one page."""
        answer: rest.Overview = await self.run(calls.get("/overview", rest.Overview))
        return answer

    async def watch(self, since: int = 0, job_id: str | None = None) -> AsyncIterator[rest.Event]:
        """As `Client.watch`."""
        reader = sse.Reader(since)
        timeout = httpx.Timeout(10.0, read=sse.READ_TIMEOUT_S)
        while True:
            params = {"since": str(reader.since)} | ({"job_id": job_id} if job_id else {})
            try:
                async with self._http.stream("GET", "/events/watch", params=params, timeout=timeout) as response:
                    if response.status_code not in (200, *calls.RETRIED_STATUSES):
                        await response.aread()
                        raise error_for(_problem(response))
                    async for line in response.aiter_lines():
                        event = reader.feed(line)
                        if event is not None:
                            yield event
            except httpx.TransportError:
                pass
            await asyncio.sleep(sse.RECONNECT_S)

    async def run(self, call: Call[Any]) -> Any:
        """Send one call. Raises the tree of `sdk.errors`."""
        attempts = self._attempts if call.repeatable else 1
        try:
            response = await self._attempt(call, attempts)
        except retry.TryAgain as error:
            response = error.response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnavailableError(f"{self._http.base_url.host}: {error or type(error).__name__}") from error
        if response.status_code >= 300:
            raise error_for(_problem(response))
        try:
            return calls.decode(call, response.status_code, response.content)
        except msgspec.DecodeError as error:
            raise SdkError(f"the server's answer to {call.path} is not as expected: {error}") from error

    async def _attempt(self, call: Call[Any], attempts: int) -> httpx.Response:
        async for attempt in stamina.retry_context(
            on=retry.should_retry, attempts=attempts, timeout=self._deadline_s, wait_max=retry.WAIT_MAX_S
        ):
            with attempt:
                response = await self._http.request(
                    call.method, call.path, params=call.params, content=call.body, headers=call.headers()
                )
                return retry.raise_if_transient(response)
        raise AssertionError("unreachable: the loop returns or raises")

    async def _iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        while True:
            page: Page[Any] = await self.run(call)
            for item in page.items:
                yield item
            if page.next is None:
                return
            call = msgspec.structs.replace(call, params={**call.params, "cursor": page.next})


def _problem(response: httpx.Response) -> rest.Problem:
    return calls.problem_of(response.status_code, response.content, response.headers.get("Content-Type", ""))
