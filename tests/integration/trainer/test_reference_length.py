"""A reference run that may not train for long tells what it has come to."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import TrainerConfig
from tests.forks import command
from tests.integration.trainer.cluster import tiny_config
from trainer.reference import Losses

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]
LIMIT_S = 240.0


def run(config: TrainerConfig, folder: Path, *arguments: str) -> Losses:
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    argv = command("-m", "trainer.reference", "--config", str(folder / "config.json"))
    done = subprocess.run(
        [*argv, "--out", str(folder / "out.json"), *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return msgspec.json.decode((folder / "out.json").read_bytes(), type=Losses)


def test_time_that_is_over_ends_it_well_with_what_was_trained(tmp_path: Path) -> None:
    config = msgspec.structs.replace(tiny_config(tmp_path), store="127.0.0.1:1")
    assert run(config, tmp_path, "--steps", "3", "--seconds", "0").losses == []
    assert len(run(config, tmp_path, "--steps", "3", "--seconds", "3600").losses) == 3
