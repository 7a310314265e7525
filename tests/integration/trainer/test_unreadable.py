"""A storage that cannot be read says nothing of what lies there: no checkpoint is condemned for it."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import StackSummary
from typing import Any, cast

import msgspec
import pytest
from torch.distributed.checkpoint.api import CheckpointException

from controlplane.protocol.launch import RankRef, Resume
from tests.integration.trainer.cluster import tiny_config
from tests.integration.trainer.object_store import BUCKET, NEW
from tests.unit.trainer.test_manifest import checkpoint, fails_when_read
from trainer.checkpoint import state
from trainer.checkpoint.commit import Committer
from trainer.checkpoint.examine import Task, examine
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.manifest import MARKER
from trainer.checkpoint.resume import resume
from trainer.config import RankSettings
from trainer.errors import ResumeFailed, StorageAway

pytestmark = pytest.mark.trainer


class Alone:
    """The votes of a replica of one rank."""

    size = 1

    def counts(self, mine: Sequence[bool]) -> list[int]:
        return [int(flag) for flag in mine]


def start_from(path: str, folder: Path) -> int:
    config = msgspec.structs.replace(tiny_config(folder), resume=Resume(path, 10))
    settings = RankSettings(
        ref=RankRef("job", 1, 0, 1, 0), world_size=1, device_index=0, agent_socket="", config=config
    )
    return resume(cast(Any, "no engine is needed to look"), settings, cast(Any, Alone()), None)


def down(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """An object store whose server does not answer."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", NEW)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HOLDFAST_STAGING_DIR", str(folder / "staging"))
    return f"s3://{BUCKET}/job/step_00000010-e1"


def bad_sector(_monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    path = checkpoint(folder, 10)
    fails_when_read(path / MARKER)
    return str(path)


def unmounted(_monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    return str(folder / "job" / "step_00000010-e1")


@pytest.mark.parametrize("outage", [down, bad_sector, unmounted])
def test_an_outage_ends_the_rank_with_75_and_is_no_verdict(
    outage: Callable[[pytest.MonkeyPatch, Path], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = outage(monkeypatch, tmp_path)
    with pytest.raises(StorageAway, match=f"{path} cannot be read") as left:
        start_from(path, tmp_path)
    assert left.value.exit_code == 75
    assert examine(Task(path=path, job_id="job", step=10, epoch=1)).ok is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: (path / MARKER).unlink(), "absent or no marker"),
        (lambda path: (path / MARKER).write_bytes(b"{}"), "absent or no marker"),
        (lambda path: (path / "__0_0.distcp").unlink(), "No such file"),
        (lambda path: (path / "__0_0.distcp").write_bytes(b"sharD" * 100), "content differs"),
    ],
)
def test_what_is_missing_or_differs_ends_it_with_74_and_is_one(
    harm: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, 10)
    harm(path)
    with pytest.raises(ResumeFailed, match=said) as left:
        start_from(str(path), tmp_path)
    assert left.value.exit_code == 74
    assert examine(Task(path=str(path), job_id="job", step=10, epoch=1)).ok is False


def test_what_the_storage_says_while_a_checkpoint_is_loaded_is_found_in_what_torch_raises() -> None:
    """The error of whichever rank; a missing file is the checkpoint's own."""
    away, missing = OSError(errno.ESTALE, "Stale file handle"), FileNotFoundError(errno.ENOENT, "gone")
    for raised, said in (
        (away, away),
        (CheckpointException("load", {1: (away, StackSummary())}), away),
        (CheckpointException("load", {0: (missing, StackSummary())}), None),
        (RuntimeError("a shape that differs"), None),
    ):
        assert state._of_the_storage(raised) is said


def test_a_failed_save_takes_nothing_away_that_may_be_committed(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10)
    committer = Committer(RankRef("job", 1, 0, 1, 0), tiny_config(tmp_path), fence=Fence(tmp_path))
    fails_when_read(path / MARKER)
    committer.discard(str(path))
    assert (path / "__0_0.distcp").exists()
    (path / MARKER).unlink()
    committer.discard(str(path))
    assert not path.exists()
