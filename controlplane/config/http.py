"""uvicorn's HTTP/1.1 protocol with deadlines for receiving a request.

uvicorn ends idle connections between requests, but waits for ever for the rest of a request
that was begun: a few hundred connections that send a byte a minute hold a process. Here the
head of a request (request line and headers) and then its body each have a fixed time, counted
from when the connection is ready for it and not from its last byte.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from controlplane.runtime import metrics

HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
"""At most 1 MiB is read (`api.middleware`): 17 KiB/s is enough."""


class DeadlineProtocol(H11Protocol):
    """See the module. A connection that becomes a WebSocket leaves here."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_timeout_s = BODY_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is due."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Bytes do not move a deadline; the end of a part does."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next head is due (idle, uvicorn's shorter keep-alive ends it first)."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._wait_for(None)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The socket has its own rules."""
        self._wait_for(None)
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._wait_for(None)
            return
        state = self.conn.their_state
        self._wait_for("head" if state is h11.IDLE else "body" if state is h11.SEND_BODY else None)

    def _wait_for(self, part: str | None) -> None:
        if part == self._part:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._part, self._deadline = part, None
        if part is not None:
            limit_s = self.head_timeout_s if part == "head" else self.body_timeout_s
            self._deadline = self.loop.call_later(limit_s, self._overdue)

    def _overdue(self) -> None:
        metrics.REQUESTS_OVERDUE.labels(part=self._part).inc()
        self.transport.close()
