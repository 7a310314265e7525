"""The store's own figures for Prometheus, on a port of its own.

Started once by `python -m trainer.store`; a scrape asks the store's own loop, so that a store which
no longer serves does not go on looking well. Without the client library, or without its port, the
store says so and goes on: no figure is worth a view.
"""

import argparse
import asyncio
import ipaddress
import sys
from collections.abc import Iterator
from typing import Any

from controlplane.protocol.store_keys import STORE_ITSELF
from trainer.store.server import StoreServer

OFF = "off"
DEFAULT_BIND = "127.0.0.1:9475"
MAX_PORT = 65_535
ANSWER_WITHIN_S = 5.0
REFUSED = "holdfast_store_refused"


def parse_bind(text: str) -> tuple[str, int] | None:
    """`address:port` (0: any that is free, `[::1]:9475` for IPv6), None for `off`. Raises ArgumentTypeError."""
    if text == OFF:
        return None
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be ADDRESS:PORT or off: {error}") from error
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"must end in a port of 0 to {MAX_PORT}")
    return str(address), int(port)


def start(bind: tuple[str, int] | None, server: StoreServer, loop: asyncio.AbstractEventLoop) -> str:
    """Serve; "host:port", "" where it is off or cannot be."""
    if bind is None:
        return ""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError:
        _tell("metrics are not exported: prometheus-client is not installed; --metrics-bind off says so")
        return ""
    registry = CollectorRegistry()
    registry.register(_collector(server, loop))
    ProcessCollector(registry=registry)
    host, port = bind
    try:
        serving, _ = start_http_server(port, host, registry)
    except OSError as error:
        _tell(f"metrics are not exported: {host}:{port} cannot be had ({error}); set --metrics-bind")
        return ""
    address = f"[{host}]:{serving.server_port}" if ":" in host else f"{host}:{serving.server_port}"
    print(f"store metrics exported {address} /metrics", flush=True)
    return address


def readings(server: StoreServer) -> list[tuple[str, str, float]]:
    """(name, help, value) of each gauge, of what jobs keep: the store's own key is not theirs. In the server's loop."""
    shelves = [shelf for job_id, shelf in server.shelves.items() if job_id != STORE_ITSELF]
    return [
        ("holdfast_store_up", "Always 1: the store's loop has answered.", 1.0),
        ("holdfast_store_connections", "Open connections.", server.connections),
        ("holdfast_store_jobs", "Jobs with a connection.", len(server.clients)),
        ("holdfast_store_keys", "Keys that all jobs keep there.", sum(len(shelf.values) for shelf in shelves)),
        ("holdfast_store_held_bytes", "Bytes of keys, values, queues of jobs.", sum(s.held_bytes for s in shelves)),
        ("holdfast_store_waits", "Clients that wait for a key.", sum(shelf.waiting for shelf in shelves)),
    ]


async def _read(server: StoreServer) -> tuple[list[tuple[str, str, float]], int]:
    return readings(server), server.refused


def _collector(server: StoreServer, loop: asyncio.AbstractEventLoop) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class FromStore(Collector):
        """Each scrape asks the loop once. A loop that does not answer in time fails the scrape."""

        def describe(self) -> Iterator[Metric]:
            """Nothing is asked when it is registered: the loop waits for that itself."""
            return iter(())

        def collect(self) -> Iterator[Metric]:
            """Gauges, and what was refused."""
            gauges, refused = asyncio.run_coroutine_threadsafe(_read(server), loop).result(ANSWER_WITHIN_S)
            for name, text, value in gauges:
                yield GaugeMetricFamily(name, text, value=value)
            yield CounterMetricFamily(REFUSED, "Connections ended for a wrong key or request.", value=refused)

    return FromStore()


def _tell(text: str) -> None:
    print(f"store: {text}", file=sys.stderr, flush=True)
