"""Blocks that begin a program of its own are run as they are written, each in a copy of the checkout.

Nothing is downloaded: pip is told of no index and finds in the environment what the page's extra needs.
A Prometheus, which never ends, is ended once it has taken the configuration.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.house.blocks import blocks_of
from tests.integration.install import packages
from tests.integration.install.blocks_run import BENCHMARKS, CLIENT, DRILL
from tests.integration.install.packages import ROOT, site_of
from tests.prometheus import NEEDED

pytestmark = pytest.mark.timeout(240)
BLOCK_S, TAKEN_S = 180.0, 40.0
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "node_modules", "results")


def checkout(folder: Path, *names: str) -> Path:
    """A copy of these parts of the tree, so that what a block writes does not get into it."""
    for name in names:
        source = ROOT / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy2(source, folder / name)
    return folder


def run(name: str, folder: Path, **env: str) -> str:
    """Its output; a command that fails ends it. `python` is this interpreter, in `folder`."""
    (block,) = [block for block in blocks_of(ROOT / name.partition(": ")[0]) if block.first == name]
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "python").write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
    (programs / "python").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"set -eu -o pipefail\n{block.text}"], cwd=folder, capture_output=True, text=True,
        timeout=BLOCK_S, check=False,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | env,
    )  # fmt: skip
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_benchmarks_are_listed_and_the_one_that_the_page_names_runs(tmp_path: Path) -> None:
    parts = ("benchmarks", "controlplane", "agents", "trainer", "pyproject.toml")
    said = run(BENCHMARKS, checkout(tmp_path, *parts))
    assert "what a signature adds to a command" in said, "the list"
    found = json.loads((tmp_path / "benchmarks" / "results" / "flight.json").read_text())
    assert found["goal"] == "flight" and found["rows"]


def test_the_client_is_installed_with_all_that_it_needs_and_nothing_of_the_server(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    packages.make(venv)
    for found in [*packages.closure(("cli",)), distribution("setuptools")]:
        packages.put(found, site_of(venv))
    here = checkout(tmp_path / "checkout", "controlplane", "agents", "trainer", "pyproject.toml", "README.md")
    python = str(venv / "bin" / "python")
    alone = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_PYTHON": python}
    run(CLIENT, here, **alone)
    told = subprocess.run(
        [python, "-c", "import controlplane.sdk as sdk; print(sdk.__file__); import django"], cwd=tmp_path,
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, timeout=60, check=False,
    )  # fmt: skip
    assert told.stdout.strip().startswith(str(site_of(venv))), told.stderr
    assert "No module named 'django'" in told.stderr
    said = subprocess.run([str(venv / "bin" / "holdfast"), "--help"], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "Usage" in said.stdout, said.stderr


@NEEDED
def test_a_drill_of_the_alerts_is_written_and_a_prometheus_takes_it(tmp_path: Path) -> None:
    checkout(tmp_path, "scripts/prometheus_drill.py", "deploy/prometheus")
    real = shutil.which("prometheus")
    programs = tmp_path / "programs"
    programs.mkdir()
    # Ended as a person ends it, once it is up; its own port may be in use here.
    (programs / "prometheus").write_text(
        f"#!/bin/sh\n'{real}' \"$@\" --web.listen-address 127.0.0.1:0 > log 2>&1 &\n"
        f"for _ in $(seq {int(TAKEN_S * 10)}); do grep -q 'Server is ready' log && break; sleep 0.1; done\n"
        "kill -TERM $!; wait $!; cat log; grep -q 'Server is ready' log\n"
    )
    (programs / "prometheus").chmod(0o755)
    said = run(DRILL, tmp_path)
    assert "Completed loading of configuration file" in said
    assert "drill/prometheus.yml" in said
