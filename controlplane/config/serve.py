"""The web process: uvicorn with the options that belong to the program and not to a place.

    python -m controlplane.config.serve --host 127.0.0.1 --port 8000

Forwarded headers are not read by uvicorn: `runtime.address` does, from named proxies only.
"""

import argparse
import sys

import uvicorn

from controlplane.config.env import start_or_say_why
from controlplane.config.guards import close_files
from controlplane.protocol.frames import MAX_FRAME_BYTES

APPLICATION = "controlplane.config.asgi:application"
# Above what the sockets take (`protocol.frames.MAX_FRAME_BYTES`): they refuse, count and tell
# what is beyond that; what is beyond this ends the connection without a word.
MAX_SOCKET_MESSAGE_BYTES = 2 * MAX_FRAME_BYTES
MAX_HEAD_BYTES = 65_536


def config(host: str, port: int, *, graceful_s: int, log_level: str = "warning") -> uvicorn.Config:
    """What `make demo`, the containers and the units run."""
    from controlplane.config.http import DeadlineProtocol

    return uvicorn.Config(
        APPLICATION,
        host=host,
        port=port,
        http=DeadlineProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=MAX_SOCKET_MESSAGE_BYTES,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        timeout_graceful_shutdown=graceful_s,
        log_level=log_level,
    )


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 3 if the server could not start."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.config.serve", description="the web process")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--timeout-graceful-shutdown", type=int, default=10, help="seconds")
    options = parser.parse_args(arguments)
    close_files()
    start_or_say_why()
    server = uvicorn.Server(config(options.host, options.port, graceful_s=options.timeout_graceful_shutdown))
    server.run()
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
