"""Who may import whom: the contracts of .importlinter hold, and they bite."""

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.house.tree import ROOT

CONTRACTS = ROOT / ".importlinter"
TIMEOUT_S = 120.0
PACKAGES = (
    "controlplane/access",
    "controlplane/changes",
    "controlplane/checkpoints",
    "controlplane/dispatch",
    "controlplane/fleet",
    "controlplane/jobs",
    "controlplane/policy",
    "controlplane/protocol",
    "controlplane/recovery",
    "controlplane/runtime",
    "controlplane/scheduling",
    "controlplane/simulator",
    "controlplane/telemetry",
    "agents/core",
    "trainer",
    "trainer/core",
)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the packages in `folder`, by the contracts of the repository."""
    script = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    arguments = [sys.executable, "-c", script, "--config", str(CONTRACTS), "--no-cache"]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def plant(folder: Path, breaches: dict[str, str]) -> Path:
    """An empty copy of the packages with `breaches` (module path -> source) in it."""
    for package in PACKAGES:
        for step in (folder / package, (folder / package).parent):
            if step != folder:
                step.mkdir(parents=True, exist_ok=True)
                (step / "__init__.py").touch()
    for stub in ("controlplane/policy/snapshot.py", "controlplane/policy/plan.py", "trainer/parts.py"):
        (folder / stub).touch()
    rules = ConfigParser()
    rules.read(CONTRACTS, encoding="ascii")
    for name in rules["importlinter:contract:simulator_agents"]["forbidden_modules"].split():
        (folder / name.replace(".", "/")).with_suffix(".py").touch()
    for path, source in breaches.items():
        (folder / path).write_text(source, encoding="ascii")
    return folder


def test_every_import_contract_holds() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_the_simulator_may_import_nothing_of_the_agent_but_its_core() -> None:
    rules = ConfigParser()
    rules.read(CONTRACTS, encoding="ascii")
    forbidden = set(rules["importlinter:contract:simulator_agents"]["forbidden_modules"].split())
    parts = {path.stem for path in (ROOT / "agents").iterdir() if not path.name.startswith("__")}
    assert {f"agents.{part}" for part in parts - {"core"}} == forbidden


def test_an_empty_tree_keeps_the_contracts(tmp_path: Path) -> None:
    result = lint(plant(tmp_path, {}))
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("controlplane/protocol/a.py", "import controlplane.policy\n"),
        ("controlplane/fleet/a.py", "import controlplane.jobs\n"),
        ("controlplane/policy/a.py", "import time\n"),
        ("controlplane/policy/b.py", "import django\n"),
        ("controlplane/changes/a.py", "import django\n"),
        ("controlplane/changes/b.py", "import controlplane.jobs\n"),
        ("controlplane/simulator/a.py", "import asyncio\n"),
        ("controlplane/simulator/b.py", "import agents.link\n"),
        ("agents/core/a.py", "import random\n"),
        ("trainer/core/a.py", "import time\n"),
        ("trainer/core/b.py", "import torch\n"),
        ("controlplane/simulator/c.py", "import trainer.parts\n"),
        ("controlplane/recovery/a.py", "import trainer.core\n"),
        ("agents/a.py", "import trainer\n"),
        ("agents/b.py", "import torch\n"),
        ("trainer/a.py", "import controlplane.jobs\n"),
        ("agents/c.py", "import pynvml\n"),
    ],
)
def test_a_planted_breach_is_found(tmp_path: Path, path: str, source: str) -> None:
    result = lint(plant(tmp_path, {path: source}))
    assert result.returncode == 1, result.stdout[-4000:] + result.stderr[-2000:]
    assert "BROKEN" in result.stdout
