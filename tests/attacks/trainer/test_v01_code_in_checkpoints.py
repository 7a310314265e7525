"""V1, by unpickling: a checkpoint in the right place, with the right digests, whose files ask for code.

Whoever submits a job writes its checkpoints, the marker included. What they name is not run:
neither by a load, nor by a reference run, nor by an examination. Nothing here is in a sandbox.
"""

import io
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.protocol.launch import Resume, TrainerConfig
from controlplane.protocol.spec import Model, Parallelism, Training
from tests.forks import command
from tests.integration.trainer.cluster import tiny_config
from tests.integration.trainer.saved import save
from trainer.checkpoint import manifest

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]
STEP, LIMIT_S = 2, 240.0
JOB = "job_attack"


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def config_of(folder: Path) -> TrainerConfig:
    """One rank of the smallest model."""
    model = Model(layers=2, hidden=32, heads=2, sequence_length=32)
    training = Training(steps=4, global_batch=2, warmup_steps=1)
    config = tiny_config(folder, model=model, training=training, parallelism=Parallelism())
    return msgspec.structs.replace(config, store="127.0.0.1:1", replicas=1)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False)


def mark(checkpoint: Path) -> None:
    """As whoever may write the files may write their digests."""
    (checkpoint / manifest.MARKER).unlink(missing_ok=True)
    content = manifest.Manifest(
        job_id=JOB, attempt=1, epoch=1, step=STEP, kind="interval", layout=manifest.Layout(1, 1, 1),
        consumed_samples=4, files=manifest.describe_files(checkpoint),
    )  # fmt: skip
    manifest.write_marker(checkpoint, content)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real one, of two steps of training."""
    folder = tmp_path_factory.mktemp("saved")
    save(config_of(folder), folder / "checkpoint", step=STEP, scratch=folder)
    return folder / "checkpoint"


def in_metadata(checkpoint: Path, canary: Path) -> None:
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Payload(canary)))


def beside_metadata(checkpoint: Path, canary: Path) -> None:
    """Sound metadata, with one attribute more."""
    found = pickle.loads((checkpoint / ".metadata").read_bytes())
    found.planner_data = Payload(canary)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(found))


def in_common(checkpoint: Path, canary: Path) -> None:
    import torch

    torch.save({"trainer": {"step": STEP, "consumed_samples": 4}, "more": Payload(canary)}, checkpoint / "common.pt")


def in_an_object(checkpoint: Path, canary: Path) -> None:
    """Among the shards: an object's place in the metadata leads to a file of its own."""
    import torch
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    found = pickle.loads((checkpoint / ".metadata").read_bytes())
    objects = [name for name, what in found.state_dict_metadata.items() if isinstance(what, BytesStorageMetadata)]
    assert objects, "Megatron keeps an object for each of its linear layers"
    content = io.BytesIO()
    torch.save(Payload(canary), content)
    (checkpoint / "more.distcp").write_bytes(content.getvalue())
    for index, place in found.storage_data.items():
        if index.fqn in objects:
            place.relative_path, place.offset, place.length = "more.distcp", 0, len(content.getvalue())
    (checkpoint / ".metadata").write_bytes(pickle.dumps(found))


ATTACKS = [in_metadata, beside_metadata, in_common, in_an_object]


def copy_of(checkpoint: Path, folder: Path) -> Path:
    target = folder / "checkpoint"
    target.mkdir()
    for file in checkpoint.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_checkpoint_names_is_run(
    attack: Callable[[Path, Path], None], checkpoint: Path, tmp_path: Path
) -> None:
    harmed, canary = copy_of(checkpoint, tmp_path), tmp_path / "canary"
    attack(harmed, canary)
    mark(harmed)
    config = config_of(tmp_path)
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(config))
    (tmp_path / "resume.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(config, resume=Resume(str(harmed), STEP)))
    )
    done = run(
        "-m", "trainer.checkpoint.examine", "--path", str(harmed), "--job-id", JOB, "--step", str(STEP),
        "--epoch", "1", "--out", str(tmp_path / "verdict.json"), "--config", str(tmp_path / "one.json"),
    )  # fmt: skip
    assert not canary.exists(), "an examination ran it"
    assert done.returncode == 0, done.stderr[-2000:]
    verdict = msgspec.json.decode((tmp_path / "verdict.json").read_bytes())
    assert verdict["ok"] is False, verdict
    assert "it does not load" in verdict["detail"]
    done = run(
        "-m", "trainer.reference", "--config", str(tmp_path / "resume.json"), "--out", str(tmp_path / "losses.json")
    )
    assert not canary.exists(), "a reference run ran it"
    assert done.returncode != 0
    assert not (tmp_path / "losses.json").exists()


def test_what_the_trainer_writes_itself_passes_its_own_list(checkpoint: Path, tmp_path: Path) -> None:
    own = copy_of(checkpoint, tmp_path)
    mark(own)
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(config_of(tmp_path)))
    run(
        "-m", "trainer.checkpoint.examine", "--path", str(own), "--job-id", JOB, "--step", str(STEP),
        "--epoch", "1", "--out", str(tmp_path / "verdict.json"), "--config", str(tmp_path / "one.json"),
    )  # fmt: skip
    assert msgspec.json.decode((tmp_path / "verdict.json").read_bytes())["loaded"] is True


class ByName:
    """A member of an enumeration, as Python before 3.11.4 writes it. It can be called, as what is `reached` may be."""

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.distributed.checkpoint.planner import WriteItemType

        return getattr, (WriteItemType, "TENSOR")

    def __call__(self) -> None:
        """Never, here."""


class Reached:
    """Calls what it has reached by a name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ByName(), ()


def test_a_member_of_an_enumeration_is_read_as_any_python_writes_it_and_nothing_is_reached_by_its_name(
    checkpoint: Path,
) -> None:
    from trainer.checkpoint import metadata
    from trainer.errors import CheckpointFault

    found = pickle.loads((checkpoint / ".metadata").read_bytes())
    found.planner_data = ByName()
    assert metadata.parse(pickle.dumps(found)).storage_data == found.storage_data
    found.planner_data = Reached()
    with pytest.raises(CheckpointFault, match="'getattr' object is not callable"):
        metadata.parse(pickle.dumps(found))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "a/b", "", ".", ".."])
def test_metadata_cannot_name_a_file_outside_of_the_checkpoint(name: str, checkpoint: Path) -> None:
    from trainer.checkpoint import metadata
    from trainer.errors import CheckpointFault

    found = pickle.loads((checkpoint / ".metadata").read_bytes())
    next(iter(found.storage_data.values())).relative_path = name
    with pytest.raises(CheckpointFault, match="none of the checkpoint's own"):
        metadata.parse(pickle.dumps(found))


def test_a_checkpoint_without_a_marker_or_that_differs_from_it_is_not_parsed(checkpoint: Path, tmp_path: Path) -> None:
    from trainer.checkpoint.reading import METADATA, Marked
    from trainer.errors import CheckpointFault

    own = copy_of(checkpoint, tmp_path)
    mark(own)
    in_metadata(own, tmp_path / "canary")
    with pytest.raises(CheckpointFault, match=r"bytes|content differs"):
        Marked(own).read(METADATA, limit=1 << 20)
    with pytest.raises(CheckpointFault, match="the most that is read"):
        Marked(own).read(METADATA, limit=10)
    (own / manifest.MARKER).unlink()
    with pytest.raises(CheckpointFault, match="absent"):
        Marked(own)
