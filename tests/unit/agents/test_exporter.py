"""The agent tells Prometheus what its core knows, and goes on where it cannot."""

import socket
import sys
import urllib.request
from dataclasses import replace

import pytest

from agents import exporter
from agents.core.state import Link, State
from agents.errors import ConfigError

STATE = State(started_s=0.0, boot_id="boot", journal_id="journal")


def test_a_scrape_sees_the_state_of_now() -> None:
    now = {"state": STATE}
    address = exporter.start(("127.0.0.1", 0), lambda: now["state"])
    assert scraped(address, "holdfast_agent_connected") == 0
    now["state"] = replace(STATE, link=Link(up=True), shed_reports=7, absent_devices=frozenset({1, 3}))
    assert scraped(address, "holdfast_agent_connected") == 1
    assert scraped(address, "holdfast_agent_shed_reports") == 7
    assert scraped(address, "holdfast_agent_devices_lost") == 2


def scraped(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_a_port_that_is_taken_or_a_missing_library_stops_no_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert exporter.start(("127.0.0.1", taken.getsockname()[1]), lambda: STATE) == ""
    assert exporter.start(None, lambda: STATE) == ""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert exporter.start(("127.0.0.1", 0), lambda: STATE) == ""
    told = "".join(capsys.readouterr())
    assert "the port cannot be had" in told
    assert "prometheus-client is not installed" in told


@pytest.mark.parametrize(
    ("text", "meant"), [("off", None), ("127.0.0.1:9474", ("127.0.0.1", 9474)), ("[::1]:0", ("::1", 0))]
)
def test_a_bind_names_address_and_port(text: str, meant: object) -> None:
    assert exporter.parse_bind(text) == meant


@pytest.mark.parametrize("text", ["", "127.0.0.1", "host:1", "127.0.0.1:x", "127.0.0.1:65536"])
def test_another_bind_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--metrics-bind"):
        exporter.parse_bind(text)
