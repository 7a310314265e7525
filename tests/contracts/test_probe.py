"""deploy/probe.py tells a healthy process from a hung one."""

import importlib.util
import socket
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from django.utils import timezone

from controlplane.runtime.models import ProcessBeat


@pytest.fixture
def probe() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "deploy" / "probe.py"
    spec = importlib.util.spec_from_file_location("holdfast_probe", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beat(role: str, age_s: float) -> None:
    now = timezone.now()
    ProcessBeat.objects.create(
        name=f"{role}-{age_s}", role=role, pid=1, started_at=now, beat_at=now - timedelta(seconds=age_s)
    )


@pytest.mark.django_db
def test_a_fresh_beat_is_health(probe: ModuleType) -> None:
    beat("worker", 500.0)
    beat("worker", 1.0)
    assert probe.main(["beat", "worker", "--max-age-s", "60"]) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["worker", "sentinel"])
def test_an_old_beat_or_none_is_illness(probe: ModuleType, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    beat("worker", 500.0)
    assert probe.main(["beat", role, "--max-age-s", "60"]) == 1
    assert role in capsys.readouterr().err


@pytest.mark.django_db
def test_one_that_has_just_started_may_be_waited_for(probe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def sleep(_duration_s: float) -> None:
        asked.append(1)
        if len(asked) == 3:
            beat("worker", 0.0)

    monkeypatch.setattr(probe.time, "sleep", sleep)
    assert probe.main(["beat", "worker"]) == 1
    assert probe.main(["--wait-s", "30", "beat", "worker"]) == 0
    assert len(asked) == 3


def test_an_open_port_is_health_and_a_closed_one_is_not(probe: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert probe.main(["tcp", address]) == 0
        assert probe.main(["url", "ftp://127.0.0.1/"]) == 1
    assert probe.main(["tcp", address]) == 1


def test_an_address_that_nobody_answers_is_illness(probe: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert probe.main(["url", f"http://127.0.0.1:{port}/readyz"]) == 1
