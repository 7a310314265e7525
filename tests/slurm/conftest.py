"""One cluster for all scenes."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.slurm.observer import HOOKS
from tests.house.tree import ROOT
from tests.slurm import cluster as slurm

KEEP_LOGS = Path(os.environ.get("HOLDFAST_TEST_SCENE_LOGS", "var/scene-logs")) / "slurm"


@pytest.fixture(scope="session")
def cluster() -> Iterator[slurm.Cluster]:
    """Real daemons, or a skip that says what is missing."""
    if why := slurm.missing():
        pytest.skip(why)
    with slurm.running() as made:
        yield made
        # Of a scene that failed they are the only evidence.
        shutil.rmtree(KEEP_LOGS, ignore_errors=True)
        KEEP_LOGS.mkdir(parents=True)
        if (made.folder / "runs").exists():
            ignored = shutil.ignore_patterns("checkpoints")
            shutil.copytree(made.folder / "runs", KEEP_LOGS, ignore=ignored, dirs_exist_ok=True)
        for log in made.root.glob("*.log"):
            shutil.copy2(log, KEEP_LOGS)


@pytest.fixture
def hooks(cluster: slurm.Cluster) -> Iterator[Callable[[str], None]]:
    """hooks("prolog") puts the script of deploy/slurm in its place; in the end none of it is left."""

    def put(name: str) -> None:
        script = (ROOT / "deploy/slurm" / name).read_text()
        # Slurm tells a health check its node's name alone.
        settings = f"HOLDFAST_SLURM_CONFIG={cluster.root}/slurm.toml SLURM_CONF={cluster.root}/slurm.conf"
        python = f"{settings} PYTHONPATH={ROOT} {sys.executable}"
        cluster.hook(name, script.replace("/opt/holdfast", str(ROOT)).replace("5 .venv/bin/python", f"5 env {python}"))

    yield put
    for name in HOOKS:
        cluster.hook(name)
    for node in slurm.NODES:
        if "DRAIN" in cluster.believed(node).states:
            cluster.run("scontrol", "update", f"nodename={node}", "state=undrain")
