"""A live server with a running job, and the command line pointed at it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from controlplane.access.services import create_api_token
from controlplane.api import throttle
from controlplane.cli.context import STATE, State
from controlplane.cli.main import main
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.server import running
from tests.integration.api.world import running_job


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class World:
    url: str
    token: str
    job_id: str


@pytest.fixture
def world(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    settings.HOLDFAST_DEMO = True
    throttle.requests.clear()
    user = User.objects.create_user("ada", password="correct horse battery", is_superuser=True)
    token = create_api_token(user, name="cli", scope="operate").secret
    job = running_job([make_node("node-1"), make_node("node-2")], SPEC)
    monkeypatch.setenv("HOLDFAST_CLI_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    with running() as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield World(url, token, job.id)
    connections.close_all()


@pytest.fixture
def holdfast(capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """holdfast("job", "ls") -> Result, in this process, stdout a pipe."""

    def run(*argv: str) -> Result:
        capfd.readouterr()
        code = main(list(argv))
        out, err = capfd.readouterr()
        return Result(code, out, err)

    yield run
    for name in State.__dataclass_fields__:
        setattr(STATE, name, getattr(State(), name))
