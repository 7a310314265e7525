"""How many HTTP requests one web process works on at once; who is beyond that is refused at once, and not left waiting.

Each request takes a thread and most of the time a database connection, of which there are few. Under more requests than
are answered each of them waits for all others, until clients give up what is then done for nobody. So at most `most`
wait for their answers, and everybody else gets a 503 that says when to come again, before any of it is read. Who has
not sent all of a request yet does not count: it is we that wait. Event streams count until they begin; the probes of
this process are always answered, or it would be ended for being asked a lot. Sockets have their own limits
(`live.intake`, `live.limits`).
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from controlplane.api.problems import CONTENT_TYPE, TABLE, TYPE_BASE, Kind
from controlplane.protocol.rest import Problem
from controlplane.runtime import metrics
from controlplane.runtime.ids import new_id

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
MOST = 64
"""Of requests of 20 ms one that is let in is answered within about a second."""
RETRY_AFTER_S = 1
ALWAYS = ("/healthz", "/readyz")
_DETAIL = "This process works on as many requests as it can; come again in a moment, with the same Idempotency-Key."


class Busy:
    """ASGI application around `app`, HTTP alone."""

    def __init__(self, app: App, *, most: int = MOST) -> None:
        self.app, self.most = app, most
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["path"] in ALWAYS:
            await self.app(scope, receive, send)
            return
        if self.waiting >= self.most:
            metrics.REQUESTS_BUSY.inc()
            await _refuse(scope, send)
            return
        place = _Place(self)
        try:
            await self.app(scope, place.heard(receive), place.watched(send))
        finally:
            place.leave()


class _Place:
    """Of one request, from its begin until its answer begins."""

    def __init__(self, of: Busy) -> None:
        self._of: Busy | None = of
        self._whole = False
        of.waiting += 1

    def leave(self) -> None:
        """Once."""
        if self._of is not None:
            self._of.waiting -= 1
            self._of = None

    def heard(self, receive: Any) -> Callable[[], Awaitable[Scope]]:
        """`receive`, which gives the place up for as long as a part of the request is waited for."""

        async def received() -> Scope:
            of = self._of
            if self._whole or of is None:
                return await receive()  # type: ignore[no-any-return]
            of.waiting -= 1
            try:
                message: Scope = await receive()
            finally:
                of.waiting += 1
            self._whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        return received

    def watched(self, send: Any) -> Callable[[Scope], Awaitable[None]]:
        """`send`, which gives the place up with the head of an answer."""

        async def sent(message: Scope) -> None:
            if message["type"] == "http.response.start":
                self.leave()
            await send(message)

        return sent


async def _refuse(scope: Scope, send: Any) -> None:
    status, title = TABLE[Kind.UNAVAILABLE]
    request_id = new_id("req")
    problem = Problem(
        type=TYPE_BASE + Kind.UNAVAILABLE, title=title, status=status, detail=_DETAIL, instance=scope["path"],
        request_id=request_id,
    )  # fmt: skip
    headers = {
        "content-type": CONTENT_TYPE, "cache-control": "no-store", "retry-after": str(RETRY_AFTER_S),
        "x-request-id": request_id,
        # What is left of the request is not read.
        "connection": "close",
    }  # fmt: skip
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": msgspec.json.encode(problem)})
