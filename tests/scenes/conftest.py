"""The whole ring: real processes, real ranks, real sockets. One installation a module."""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver
from controlplane.demo.installation import Installation
from tests.forks import command

KEEP_LOGS = Path(os.environ.get("HOLDFAST_TEST_SCENE_LOGS", "var/scene-logs"))


class Quick(Installation):
    """Its commands of `manage.py` are forks, and its tables a copy of the first one's; its processes start as
    they always do."""

    empty: ClassVar[bytes] = b""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__(config)
        self.python = tuple(command(kind="backend"))

    def manage(self, *arguments: str) -> str:
        path = self.config.directory.absolute() / "holdfast.sqlite3"
        makes = arguments[0] == "migrate" and not self.config.database_url
        if makes and self.empty:
            path.write_bytes(self.empty)
        said = super().manage(*arguments)
        if makes and not self.empty:
            with contextlib.closing(sqlite3.connect(path)) as rows:
                rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            Quick.empty = path.read_bytes()
        return said


class Ring:
    """An installation with its driver; the supervisor ticks in a thread of its own."""

    def __init__(self, installation: Installation, driver: Driver) -> None:
        self.installation = installation
        self.driver = driver


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ring]:
    """Four nodes of two devices and a spare one, nothing submitted yet."""
    directory = tmp_path_factory.mktemp("ring")
    config = DemoConfig(directory=directory, port=0, nodes=4, spare_nodes=1)
    yield from ring_of(config, request.module.__name__)


def ring_of(config: DemoConfig, module: str) -> Iterator[Ring]:
    """The installation, until its tests are over; `module` names its logs."""
    installation = Quick(config)
    stop = threading.Event()
    try:
        installation.start()
        installation.one_time_password()
        token = installation.api_token("admin")
        keeper = threading.Thread(target=installation.supervisor.run, args=(stop.is_set,), daemon=True)
        keeper.start()
        driver = Driver(installation.addresses.web, token)
        driver.wait(
            "all agents connected", lambda: _connected(driver) == config.nodes + config.spare_nodes, timeout_s=60
        )
        yield Ring(installation, driver)
    finally:
        stop.set()
        installation.supervisor.stop_all()
        _keep_logs(config.directory, KEEP_LOGS / module.rsplit(".", 1)[-1])


def _connected(driver: Driver) -> int:
    return sum(1 for node in driver.items("/nodes") if node["connected"])


def _keep_logs(directory: Path, target: Path) -> None:
    """Logs of a failed scene are the only evidence: keep the newest run's."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory / "logs", target / "logs", dirs_exist_ok=True)
    for log in directory.glob("nodes/*/**/*.log"):
        destination = target / "nodes" / log.relative_to(directory / "nodes")
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(log, destination)
