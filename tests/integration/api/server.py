"""A real HTTP server over the test's own database, for clients that speak sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from django.core.asgi import get_asgi_application

START_TIMEOUT_S = 20.0


class _Server(uvicorn.Server):
    """Says when it listens; handles no signals, since it is no process of its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def running(app: Any = None) -> Iterator[str]:
    """The address of a server that runs until the block ends; Django's own application unless
    `app` is given."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # An open event stream never ends by itself.
        config = uvicorn.Config(
            app or get_asgi_application(), log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = _Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert server.listening.wait(START_TIMEOUT_S), "the server did not start"
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(timeout=START_TIMEOUT_S)
