"""One installation with PostgreSQL, Redis, agents and ranks that may be broken, and Debian's Prometheus beside it.

Each agent has a line of its own to the server, and the server one to its database: both can be cut.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver
from controlplane.demo.private_postgres import MissingPostgres, private_postgres
from tests.prometheus import Prometheus, beside
from tests.relay import Relay
from tests.scenes.conftest import KEEP_LOGS, Quick, _connected, _keep_logs

LONG_S = 240.0
"""For whatever must come, on a machine with much else to do."""
PATIENCE_S = 1
CHECKPOINT_OLD_S = 20
"""The limits of HoldfastCheckpointOld here: saves come every few seconds."""


class Lines(Quick):
    """An installation whose agents reach it by a relay each."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__(config)
        self.lines: dict[str, Relay] = {}

    def start_agent(self, node: str, number: int, token_file: Path) -> None:
        real = self.addresses
        self.lines[node] = Relay((real.host, real.web_port))
        self.addresses = replace(real, web_port=self.lines[node].port)
        super().start_agent(node, number, token_file)
        self.addresses = real

    def close_lines(self) -> None:
        """For good."""
        for line in self.lines.values():
            line.close()


class World:
    """All that a test breaks and looks at. `database_url` leads past the line that may be cut."""

    def __init__(
        self, installation: Lines, driver: Driver, prometheus: Prometheus, database: Relay, database_url: str
    ) -> None:
        self.installation, self.driver, self.prometheus = installation, driver, prometheus
        self.database, self.database_url = database, database_url

    def eventually(self, what: str, check: Callable[[], Any], *, within_s: float = LONG_S) -> Any:
        return self.driver.wait(what, check, timeout_s=within_s)

    def fires(self, *alerts: str) -> None:
        """Wait until each of them fires."""
        for alert in alerts:
            self.eventually(f"{alert} fires", lambda a=alert: self.prometheus.fires(a))

    def resolves(self, *alerts: str, within_s: float = LONG_S) -> None:
        """Wait until none of them fires."""
        for alert in alerts:
            self.eventually(f"{alert} resolves", lambda a=alert: not self._told(a), within_s=within_s)

    def silent(self, *alerts: str) -> None:
        """None of them fires now."""
        assert not [alert for alert in alerts if self.prometheus.fires(alert)]

    def _told(self, alert: str) -> bool:
        """It fires or is about to; so is one of which Prometheus says nothing, as it does not answer."""
        found = self.prometheus.ask("alerts")
        return found is None or any(each["labels"]["alertname"] == alert for each in found["alerts"])

    def nodes(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {node["name"]: node for node in self.driver.items("/nodes")}

    def order(self, verb: str, *names: str) -> None:
        """`cordon` or `uncordon` nodes, all where none is named."""
        found = self.nodes()
        for name in names or found:
            self.driver.post(f"/nodes/{found[name]['id']}:{verb}", {"reason": "for the test"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two nodes of four devices, nothing submitted yet."""
    folder = tmp_path_factory.mktemp("alerts")
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(private_postgres())
        except MissingPostgres as error:
            pytest.skip(f"{error}: the database is to be taken away")
        port = int(url.rpartition(":")[2].partition("/")[0])
        database = Relay(("127.0.0.1", port))
        stack.callback(database.close)
        config = DemoConfig(
            directory=folder / "ring", port=0, nodes=2, spare_nodes=0, devices_per_node=4, reference_runs="off",
            database_url=url.replace(f":{port}/", f":{database.port}/"),
            server_env={"HOLDFAST_CHECKPOINT_OLD_S": str(CHECKPOINT_OLD_S)},
        )  # fmt: skip
        installation, stop = Lines(config), threading.Event()
        stack.callback(_keep_logs, config.directory, KEEP_LOGS / "alerts")
        stack.callback(installation.close_lines)
        stack.callback(installation.supervisor.stop_all)
        stack.callback(stop.set)
        installation.start()
        installation.one_time_password()
        driver = Driver(installation.addresses.web, installation.api_token("admin"))
        threading.Thread(target=installation.supervisor.run, args=(stop.is_set,), daemon=True).start()
        driver.wait("both agents", lambda: _connected(driver) == config.nodes, timeout_s=LONG_S)
        prometheus = stack.enter_context(beside(installation, driver, folder / "prometheus", for_s=PATIENCE_S))
        yield World(installation, driver, prometheus, database, url)
