"""A real checkpoint of the reference trainer, made by a process of its own: it forks, which a test may not."""

import subprocess
from pathlib import Path

import msgspec

from controlplane.protocol.launch import TrainerConfig
from tests.forks import command

LIMIT_S = 240.0
_SAVE = """
import sys, msgspec
from controlplane.protocol.launch import TrainerConfig
from trainer import device
from trainer.reference import Keep, Until, reference_losses
device.prepare_import()
config = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=TrainerConfig)
step = int(sys.argv[3])
reference_losses(config, until=Until(step), keep=Keep(step, sys.argv[2]))
"""


def save(config: TrainerConfig, place: Path, *, step: int, scratch: Path) -> None:
    """Train `step` steps and write the state, with a marker, to the directory `place`, which is not there
    yet. `scratch` takes the configuration. Raises AssertionError with what was said."""
    (scratch / "config.json").write_bytes(msgspec.json.encode(config))
    argv = command("-c", _SAVE, str(scratch / "config.json"), str(place), str(step))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
