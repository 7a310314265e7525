"""The rendezvous store as its own small process: `python -m trainer.store --key-file F --port N`.

Neither the control plane nor a rank holds it: its loss blocks view changes only, and the
groups that exist go on. F holds the key that the control plane makes the jobs' tokens with.
Prints `store ready HOST:PORT`, then where its figures are ("store metrics exported"), and serves
until SIGTERM. Exit code 2: no key.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from controlplane.protocol.store_keys import WeakStoreKey, read_store_key
from trainer.store import exporter
from trainer.store.server import StoreServer


async def serve(key: bytes, host: str, port: int, metrics_bind: tuple[str, int] | None) -> None:
    """Until a signal comes. Port 0 takes a free one."""
    server = StoreServer(key)
    taken = await server.start(host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tidying = asyncio.create_task(server.tidy_for_ever())
    print(f"store ready {host}:{taken}", flush=True)
    server.tell_health(await asyncio.to_thread(exporter.start, metrics_bind, server, loop))
    await stop.wait()
    tidying.cancel()


def main() -> int:
    """The process's exit code."""
    parser = argparse.ArgumentParser(description="Rendezvous store of the jobs' process groups.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key-file", type=Path, required=True, help="the key shared with the control plane")
    parser.add_argument(
        "--metrics-bind", type=exporter.parse_bind, default=exporter.DEFAULT_BIND, metavar="ADDRESS:PORT|off",
        help=f"where its figures are served for Prometheus (default: {exporter.DEFAULT_BIND}); docs/monitoring.md",
    )  # fmt: skip
    options = parser.parse_args()
    try:
        key = read_store_key(options.key_file)
    except WeakStoreKey as error:
        print(f"store: {error}", file=sys.stderr)
        return 2
    asyncio.run(serve(key, options.host, options.port, options.metrics_bind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
