"""The node image holds all an agent needs, and nothing of the server.

The files that deploy/Dockerfile copies into the node stage are laid out in an empty
folder and run from there.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("django", "channels", "celery", "redis", "torch", "megatron", "numpy", "pydantic", "httpx")
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node stage's working directory."""
    folder = tmp_path_factory.mktemp("node")
    stage = (ROOT / "deploy" / "Dockerfile").read_text(encoding="ascii").split(" AS node")[1]
    for line in re.findall(r"^COPY (.+)$", stage, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = folder / target if len(sources) == 1 else folder / target / source
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    return folder


def python(node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in the stage, with no way back to the checkout."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=node,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(node), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_the_agent_starts_there(node: Path) -> None:
    done = python(node, "-m", "agents", "--help")
    assert done.returncode == 0, done.stderr
    assert "--server" in done.stdout


def test_the_agent_loads_nothing_heavy(node: Path) -> None:
    script = (
        "import sys, agents.main; print(agents.main.__file__); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = python(node, "-c", script)
    assert done.returncode == 0, done.stderr
    place, loaded = done.stdout.splitlines()
    assert place.startswith(str(node))
    assert set(loaded.split()) & set(HEAVY) == set()


def test_every_flag_of_the_descriptions_is_known_to_the_agent(node: Path) -> None:
    known = set(re.findall(r"--[a-z-]+", python(node, "-m", "agents", "--help").stdout))
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="ascii"))["services"]
    unit = (ROOT / "deploy" / "systemd" / "holdfast-agent.service").read_text(encoding="ascii")
    used = {word for name in ("agent-1", "agent-2") for word in services[name]["command"] if word.startswith("--")}
    used |= set(re.findall(r"--[a-z-]+", next(line for line in unit.splitlines() if line.startswith("ExecStart="))))
    assert used
    assert used <= known


def test_the_server_is_not_in_the_node_image(node: Path) -> None:
    assert sorted(path.name for path in (node / "controlplane").iterdir() if path.is_dir()) == ["policy", "protocol"]
