"""The web process: uvicorn with the options that belong to the program and not to a place.

    python -m controlplane.config.serve --host 127.0.0.1 --port 8000

Forwarded headers are not read by uvicorn: `runtime.address` does, from named proxies only.
"""

import argparse
import sys
from pathlib import Path

import uvicorn

from controlplane.config.env import start_or_say_why
from controlplane.config.guards import close_files
from controlplane.protocol.frames import MAX_FRAME_BYTES

APPLICATION = "controlplane.config.asgi:application"
# Above what the sockets take (`protocol.frames.MAX_FRAME_BYTES`): they refuse, count and tell
# what is beyond that; what is beyond this ends the connection without a word.
MAX_SOCKET_MESSAGE_BYTES = 2 * MAX_FRAME_BYTES
MAX_HEAD_BYTES = 65_536


def config(
    host: str, port: int, *, graceful_s: int, tls: tuple[Path, Path] | None = None, log_level: str = "warning"
) -> uvicorn.Config:
    """What `make demo`, the containers and the units run. `tls`: certificate and key in PEM, where no proxy stands in
    front of it."""
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
        ssl_certfile=str(tls[0]) if tls else None,
        ssl_keyfile=str(tls[1]) if tls else None,
        log_level=log_level,
    )


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal; 3 if the server could not start."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.config.serve", description="the web process")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--timeout-graceful-shutdown", type=int, default=10, help="seconds")
    parser.add_argument("--tls-certificate", type=Path, help="PEM; serve https and wss by it")
    parser.add_argument("--tls-key", type=Path, help="PEM; of --tls-certificate")
    options = parser.parse_args(arguments)
    if (options.tls_certificate is None) is not (options.tls_key is None):
        parser.error("--tls-certificate and --tls-key go together")
    close_files()
    start_or_say_why()
    tls = (options.tls_certificate, options.tls_key) if options.tls_key else None
    server = uvicorn.Server(config(options.host, options.port, graceful_s=options.timeout_graceful_shutdown, tls=tls))
    server.run()
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
