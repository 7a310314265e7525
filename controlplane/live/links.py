"""Agents connected to this process: who, since which session, how to speak to them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from controlplane.protocol.codec import encode_frame
from controlplane.protocol.frames import Acked, Refused, ToAgent

Send = Callable[[dict[str, Any]], Awaitable[None]]
CLOSE_REFUSED = 4400
NO_RETRY = ("identity_mismatch", "bad_protocol")
FOREIGN_RETRY_S = 10.0
# Who was pushed out, or is to tell again, comes back at once: waiting would help a copy only.
AT_ONCE = ("replaced", "resync")
AT_ONCE_S = 0.1


class AgentLink:
    """One live socket. `refuse` ends it; everything else may be called from its loop only.
    `challenge` and `rotation` are nonces that its agent has yet to answer, b"" for none; `bind_tls`:
    whether each challenge asks for the TLS certificate, as the session's first one did."""

    def __init__(self, *, node_id: str, node_name: str, session_id: str, send: Send) -> None:
        self.node_id = node_id
        self.node_name = node_name
        self.session_id = session_id
        self.loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[int] = self.loop.create_future()
        self.closed = False
        self.refused_as = ""
        self.challenge = b""
        self.rotation = b""
        self.bind_tls = False
        self._send = send
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def tell(self, message: ToAgent) -> bool:
        """False when the socket is gone."""
        async with self._lock:
            if self.closed:
                return False
            try:
                await self._send({"type": "websocket.send", "bytes": encode_frame(message)})
            except (OSError, RuntimeError):
                self.closed = True
                return False
        return True

    async def refuse(self, code: str, detail: str, retry_after_s: float | None = None) -> None:
        """Say why and close. The first reason stays in `refused_as`."""
        self.refused_as = self.refused_as or code
        await self.tell(Refused(code=code, detail=detail, retry_after_s=retry_after_s))
        if self.closed:
            return
        self.closed = True
        try:
            await self._send({"type": "websocket.close", "code": CLOSE_REFUSED, "reason": code})
        except (OSError, RuntimeError):
            return

    def on_written(self, seq: int, resend: bool, code: str, detail: str) -> None:
        """The writer's callback, from its thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._after_write, seq, resend, code, detail)

    def _after_write(self, seq: int, resend: bool, code: str, detail: str) -> None:
        if code:
            self.spawn(self.refuse(code, detail, self._retry_after_s(code)))
            if not self.opened.done():
                self.opened.set_exception(ConnectionError(code))
        elif not self.opened.done():
            self.opened.set_result(seq)
        else:
            self.spawn(self._ack(seq, resend))

    def _retry_after_s(self, code: str) -> float | None:
        """A session that could not be opened for what its hello says is not tried again soon."""
        if code in AT_ONCE:
            return AT_ONCE_S
        if not self.opened.done():
            return None if code in NO_RETRY else 1.0
        return FOREIGN_RETRY_S if code in NO_RETRY else 1.0

    async def _ack(self, seq: int, resend: bool) -> None:
        await self.tell(Acked(seq=seq, resend=resend))

    def spawn(self, work: Awaitable[Any]) -> None:
        """Run beside the socket's reading."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
