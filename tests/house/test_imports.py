"""Who may import whom: the contracts of .importlinter hold, and they bite."""

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from tests.house.tree import ROOT

CONTRACTS = ROOT / ".importlinter"
TIMEOUT_S = 120.0
PACKAGES = (
    "controlplane/access",
    "controlplane/changes",
    "controlplane/checkpoints",
    "controlplane/dispatch",
    "controlplane/engines",
    "controlplane/engines/slurm",
    "controlplane/fleet",
    "controlplane/jobs",
    "controlplane/policies",
    "controlplane/policy",
    "controlplane/protocol",
    "controlplane/recovery",
    "controlplane/runtime",
    "controlplane/scheduling",
    "controlplane/simulator",
    "controlplane/slurm",
    "controlplane/bench",
    "controlplane/telemetry",
    "agents/core",
    "trainer",
    "trainer/core",
)
APART = ("controlplane.slurm.", "controlplane.engines.", "controlplane.bench.")
"""Packages of which the contract names the pure modules one by one."""
BREACHES = {
    "controlplane/protocol/a.py": "controlplane.policy",
    "controlplane/fleet/a.py": "controlplane.jobs",
    "controlplane/policy/a.py": "time",
    "controlplane/policy/b.py": "django",
    "controlplane/changes/a.py": "django",
    "controlplane/changes/b.py": "controlplane.jobs",
    "controlplane/simulator/a.py": "asyncio",
    "controlplane/simulator/b.py": "agents.link",
    "agents/core/a.py": "random",
    "trainer/core/a.py": "time",
    "trainer/core/b.py": "torch",
    "controlplane/simulator/c.py": "trainer.parts",
    "controlplane/recovery/a.py": "trainer.core",
    "controlplane/fleet/b.py": "controlplane.slurm",
    "controlplane/engines/slurm/answers.py": "subprocess",
    "controlplane/bench/script.py": "random",
    "controlplane/jobs/a.py": "controlplane.bench",
    "agents/a.py": "trainer",
    "agents/b.py": "torch",
    "trainer/a.py": "controlplane.jobs",
    "agents/c.py": "pynvml",
}
"""What each of these modules imports and may not. Nobody imports the modules, so none is a link between two others."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the packages in `folder`, by the contracts of the repository."""
    script = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    arguments = [sys.executable, "-c", script, "--config", str(CONTRACTS), "--no-cache"]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def plant(folder: Path, breaches: dict[str, str]) -> Path:
    """An empty copy of the packages with `breaches` (path of a module -> what it imports) in it."""
    for package in PACKAGES:
        for step in (folder / package, (folder / package).parent):
            if step != folder:
                step.mkdir(parents=True, exist_ok=True)
                (step / "__init__.py").touch()
    rules = ConfigParser()
    rules.read(CONTRACTS, encoding="ascii")
    pure = rules["importlinter:contract:pure"]["source_modules"].split()
    modules = [f"{name.replace('.', '/')}.py" for name in pure if name.startswith(APART)]
    for stub in ("controlplane/policy/snapshot.py", "controlplane/policy/plan.py", "trainer/parts.py", *modules):
        (folder / stub).touch()
    for name in rules["importlinter:contract:simulator_agents"]["forbidden_modules"].split():
        (folder / name.replace(".", "/")).with_suffix(".py").touch()
    for path, imported in breaches.items():
        (folder / path).write_text(f"import {imported}\n", encoding="ascii")
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


def test_every_planted_breach_is_found(tmp_path: Path) -> None:
    result = lint(plant(tmp_path, BREACHES))
    assert result.returncode == 1 and "BROKEN" in result.stdout, result.stdout[-4000:] + result.stderr[-2000:]
    told = {f"{path.removesuffix('.py').replace('/', '.')} -> {imported} " for path, imported in BREACHES.items()}
    assert {breach for breach in told if breach not in result.stdout} == set(), result.stdout
