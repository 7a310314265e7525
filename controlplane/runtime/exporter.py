"""A process's own figures for Prometheus, on a port of its own.

The sentinel, the worker and beat call `start`; a web process answers /metrics on its own port
(`api.probes`) with `figures`. The worker counts in the processes that it forks: `share_with_children`
before anything counts makes all of them count in files of one directory, and the parent exports
the sums. Never waits for anybody: a port that cannot be had is told in log and health, and the
process goes on without it.
"""

import atexit
import ipaddress
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer
from typing import Any, ClassVar
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.conf import settings
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import REGISTRY, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

import controlplane
from controlplane.runtime import metrics
from controlplane.runtime.address import is_peer_in
from controlplane.runtime.logs import get

PORTS = {"sentinel": 9471, "worker": 9472, "beat": 9473}
"""Where HOLDFAST_METRICS_BIND names no port."""
READ_TIMEOUT_S = 5.0
PATH = "/metrics"
VERSION = "holdfast_build_info"
REFUSAL = b"Figures are for the addresses of HOLDFAST_METRICS_FROM; on loopback, under a loopback name.\n"
_log = get(__name__)
_started: dict[str, Any] = {"address": "", "server": None, "registry": None}


class TooLate(RuntimeError):
    """The client library was imported before `share_with_children` could tell it."""


class Summed(Collector):
    """What this worker and the processes that it forked have counted since it started."""

    def __init__(self, directory: str) -> None:
        self._files = MultiProcessCollector(None, path=directory)

    def collect(self) -> Iterator[Metric]:
        """Counters and histograms, and which version counts: no other gauge is set in a worker."""
        return (found for found in self._files.collect() if found.type != "gauge" or found.name == VERSION)


def figures(*, fleet: bool = False) -> bytes:
    """This process's figures in Prometheus' text format; with those of the `fleet`, that are read
    from rows, where this process refreshes them."""
    version = getattr(controlplane, "__version__", "0.1.0")
    metrics.BUILD_INFO.labels(version=version).set(1)
    own = generate_latest(_started["registry"] or REGISTRY)
    return own + generate_latest(metrics.FLEET) if fleet else own


def share_with_children(directory: Path) -> None:
    """Sum over the processes that this one will fork; `directory` goes when this
    process ends. Raises TooLate."""
    if metrics.FRAMES.labels(result="ok")._value._multiprocess is False:
        raise TooLate("figures of forked processes would be lost: the metrics were made before they were shared")
    owner = os.getpid()
    registry = CollectorRegistry()
    registry.register(Summed(str(directory)))
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    _started["registry"] = registry
    atexit.register(lambda: shutil.rmtree(directory, ignore_errors=True) if os.getpid() == owner else None)


def start(role: str) -> str:
    """Serve this process's figures; "host:port", "" where it is off or the port cannot be had."""
    if settings.METRICS_BIND is None:
        _log.info("metrics are not exported: HOLDFAST_METRICS_BIND is off", role=role)
        return ""
    host, port = settings.METRICS_BIND
    port = PORTS[role] if port is None else port
    try:
        server = make_server(host, port, _answer, _Server6 if ":" in host else _Server, _Handler)
    except OSError as error:
        _log.warning(
            "metrics are not exported: the port cannot be had; set HOLDFAST_METRICS_BIND for this process",
            role=role, host=host, port=port, error=str(error),
        )  # fmt: skip
        return ""
    address = f"[{host}]:{server.server_port}" if ":" in host else f"{host}:{server.server_port}"
    _started.update(address=address, server=server)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    _log.info("metrics exported", role=role, address=address, path=PATH)
    return address


def address() -> str:
    """Where this process, or the parent that forked it, serves its figures; "" nowhere."""
    return str(_started["address"])


def leave_to_parent() -> None:
    """In a forked process: the port is the parent's, and must not outlive it here."""
    if _started["server"] is not None:
        _started["server"].socket.close()
        _started["server"] = None


def may_read(peer: str, host: str) -> bool:
    """True for a scraper of HOLDFAST_METRICS_FROM. On loopback there are browsers, which any page can
    send to 127.0.0.1 under a name of its own: there the Host header must be loopback's, too."""
    if not is_peer_in(peer, settings.METRICS_FROM):
        return False
    return not _is_loopback(peer) or _is_loopback(_name_of(host))


def _answer(request: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    peer, host = str(request.get("REMOTE_ADDR", "")), str(request.get("HTTP_HOST", ""))
    if not may_read(peer, host):
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [REFUSAL]
    if request.get("REQUEST_METHOD") != "GET" or request.get("PATH_INFO") != PATH:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"GET /metrics is all that is here.\n"]
    body = figures()
    start_response("200 OK", [("Content-Type", CONTENT_TYPE_LATEST), ("Cache-Control", "no-store")])
    return [body]


def _name_of(host: str) -> str:
    """`[::1]:9471` -> `::1`."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


class _Handler(WSGIRequestHandler):
    """Quiet, asks no name server, and waits for no slow request."""

    timeout = READ_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Every scrape is not news."""

    def address_string(self) -> str:
        """The address as it is."""
        return str(self.client_address[0])


class _Server(ThreadingWSGIServer):
    """One thread a request of a scraper; nobody else gets one."""

    def server_bind(self) -> None:
        """As its parents do, but no name server is asked."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse by the peer's address, before anything is read."""
        if is_peer_in(str(client_address[0]), settings.METRICS_FROM):
            return True
        with suppress(OSError):
            request.sendall(b"HTTP/1.0 403 Forbidden\r\nContent-Type: text/plain\r\n\r\n" + REFUSAL)
        return False


class _Server6(_Server):
    address_family: ClassVar[int] = socket.AF_INET6
