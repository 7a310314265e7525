"""One cluster for all scenes."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

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
