"""The agent's own figures for Prometheus, on a port of its own.

Started once by `agents.main`; reads the state of the core when it is scraped and changes
nothing. Without the client library, or without its port, the agent says so and goes on: no
figure is worth a rank.
"""

import ipaddress
import time
from collections.abc import Callable, Iterator
from typing import Any

from agents.core.state import ProcessState, State
from agents.device_series import DeviceSeries
from agents.errors import ConfigError
from agents.log import note

OFF = "off"
DEFAULT_BIND = "127.0.0.1:9474"
MAX_PORT = 65_535


def parse_bind(text: str) -> tuple[str, int] | None:
    """`address:port` (0: any that is free, `[::1]:9474` for IPv6), None for `off`. Raises ConfigError."""
    if text == OFF:
        return None
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError as error:
        raise ConfigError(f"--metrics-bind must be ADDRESS:PORT or off, not {text!r}: {error}") from error
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"--metrics-bind must end in a port of 0 to {MAX_PORT}, not {text!r}")
    return str(address), int(port)


def start(bind: tuple[str, int] | None, state: Callable[[], State], devices: DeviceSeries | None = None) -> str:
    """Serve; "host:port", "" where it is off or cannot be. Blocks for a moment: call it in a thread."""
    if bind is None:
        return ""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ImportError:
        note("metrics are not exported: prometheus-client is not installed; --metrics-bind off says so")
        return ""
    registry = CollectorRegistry()
    registry.register(_collector(state))
    if devices is not None:
        registry.register(_of_devices(devices))
    ProcessCollector(registry=registry)
    host, port = bind
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        note("metrics are not exported: the port cannot be had; set --metrics-bind", bind=f"{host}:{port}", error=error)
        return ""
    address = f"[{host}]:{server.server_port}" if ":" in host else f"{host}:{server.server_port}"
    note("metrics exported", address=address, path="/metrics")
    return address


def _collector(state: Callable[[], State]) -> Any:
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class FromState(Collector):
        """Each scrape looks once: the state is replaced, never changed."""

        def collect(self) -> Iterator[Metric]:
            """Gauges alone: what they say is so now."""
            for name, text, value in readings(state(), time.monotonic()):
                yield GaugeMetricFamily(name, text, value=value)

    return FromState()


def _of_devices(devices: DeviceSeries) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class FromDevices(Collector):
        """Each scrape groups what is known now by its names."""

        def collect(self) -> Iterator[Metric]:
            """A family a name."""
            families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for name, text, counts, labels, value in devices.read(time.monotonic()):
                made = CounterMetricFamily if counts else GaugeMetricFamily
                family = families.setdefault(name, made(name, text, labels=list(labels)))
                family.add_metric(list(labels.values()), value)
            yield from families.values()

    return FromDevices()


def readings(state: State, now_s: float) -> list[tuple[str, str, float]]:
    """(name, help, value) of each figure. `now_s`: by the monotonic clock."""
    alive = sum(rank.process is ProcessState.ALIVE for rank in state.ranks.values())
    return [
        ("holdfast_agent_connected", "1 while the server has welcomed this agent.", float(state.link.up)),
        ("holdfast_agent_link_seconds", "Since the session began or ended.", now_s - state.link.since_s),
        ("holdfast_agent_ranks", "Ranks that run here.", alive),
        ("holdfast_agent_hosts", "Rank hosts that are known here.", len(state.hosts)),
        ("holdfast_agent_events_waiting", "Events that the server has not acknowledged.", len(state.events)),
        ("holdfast_agent_checks_failing", "The node's own checks that fail.", len(state.node_failed or ())),
        ("holdfast_agent_devices_lost", "Devices that fell off the bus.", len(state.absent_devices)),
        ("holdfast_agent_shed_reports", "Reports of ranks shed since the agent began.", state.shed_reports),
        (
            "holdfast_agent_refused_orders",
            "Commands refused by this node's policy since then.",
            state.refused_by_policy,
        ),
    ]
