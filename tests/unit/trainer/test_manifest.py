"""A checkpoint is what its marker says, byte for byte, or it is none."""

import hashlib
import json
import threading
from pathlib import Path

import pytest

from controlplane.protocol.keeping import KeptSave
from trainer.checkpoint import fence as fencing
from trainer.checkpoint import manifest
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.resume import fetch
from trainer.checkpoint.retention import (
    PIN,
    Found,
    Held,
    Plan,
    carry_out,
    held,
    hold,
    let_go,
    plan,
    prune,
    survey,
)
from trainer.checkpoint.storage import LocalStorage, Place, storage_at
from trainer.errors import CheckpointFault


def checkpoint(root: Path, step: int, epoch: int = 1, *, commit: bool = True) -> Path:
    path = root / manifest.directory_name(step, epoch)
    (path / "sub").mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"shard" * 100)
    (path / "sub" / "common.pt").write_bytes(b"common")
    if commit:
        seal(path, step, epoch)
    return path


def seal(path: Place, step: int, epoch: int = 1) -> None:
    content = manifest.Manifest(
        job_id="job",
        attempt=1,
        epoch=epoch,
        step=step,
        kind="interval",
        layout=manifest.Layout(1, 2, 3),
        consumed_samples=step * 12,
        files=manifest.describe_files(path),
    )
    manifest.write_marker(path, content)


def fails_when_read(path: Path) -> None:
    """As on a bad sector: it is there, it opens, and reading it is an input/output error, as
    nothing lies at a process's address 0."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def test_an_unharmed_checkpoint_verifies(tmp_path: Path) -> None:
    verdict = manifest.verify(checkpoint(tmp_path, 10))
    assert verdict.ok
    assert verdict.manifest is not None
    assert verdict.manifest.total_bytes == 506


def test_no_marker_no_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10, commit=False)
    assert not manifest.verify(path).ok
    assert manifest.newest_complete(tmp_path) is None


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda p: (p / "__0_0.distcp").write_bytes(b"shard" * 99), "495 bytes, not 500"),
        (lambda p: (p / "__0_0.distcp").write_bytes(b"sharD" * 100), "content differs"),
        (lambda p: (p / "sub" / "common.pt").unlink(), "No such file"),
    ],
)
def test_harm_is_found_and_named(tmp_path: Path, harm: object, said: str) -> None:
    path = checkpoint(tmp_path, 10)
    harm(path)
    verdict = manifest.verify(path)
    assert not verdict.ok
    assert said in verdict.faults[0]


def test_a_marker_of_format_1_is_compared_by_its_blake2b(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10)
    content = json.loads((path / manifest.MARKER).read_text()) | {"format": 1}
    for entry in content["files"]:
        del entry["digest"]
        entry["blake2b"] = hashlib.blake2b((path / entry["name"]).read_bytes(), digest_size=16).hexdigest()
    (path / manifest.MARKER).write_text(json.dumps(content))
    assert manifest.verify(path).ok
    (path / "__0_0.distcp").write_bytes(b"sharD" * 100)
    assert manifest.verify(path).faults == ("__0_0.distcp: content differs",)


def test_a_disk_that_does_not_answer_says_nothing_of_the_checkpoint(tmp_path: Path) -> None:
    """Missing and differing are faults of the checkpoint; any other error is none."""
    path = checkpoint(tmp_path, 10, commit=False)
    (path / "empty").touch()
    seal(path, 10)
    assert manifest.verify(path).ok
    fails_when_read(path / "empty")
    with pytest.raises(OSError, match="Input/output error"):
        manifest.verify(path)
    (path / "empty").unlink()
    assert manifest.verify(path).faults == ("empty: No such file",)
    fails_when_read(path / manifest.MARKER)
    for look in (manifest.read_marker, manifest.verify):
        with pytest.raises(OSError, match="Input/output error"):
            look(path)
    with pytest.raises(OSError):
        manifest.newest_complete(tmp_path)


def test_retention_takes_nothing_for_a_torso_whose_marker_cannot_be_looked_at(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    marker = tmp_path / "step_00000010-e1" / manifest.MARKER
    marker.unlink()
    marker.symlink_to(marker)
    with pytest.raises(OSError, match="symbolic links"):
        prune(tmp_path, keep=3, epoch=2)
    assert len(list(tmp_path.glob("step_*"))) == 3
    marker.unlink()
    prune(tmp_path, keep=3, epoch=2)
    assert len(list(tmp_path.glob("step_*"))) == 2


def test_a_torn_marker_is_no_marker(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10)
    marker = path / manifest.MARKER
    marker.write_bytes(marker.read_bytes()[:-20])
    assert manifest.read_marker(path) is None


def test_a_marker_may_not_point_outside(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10)
    (tmp_path / "secret").write_bytes(b"x")
    found = manifest.read_marker(path)
    assert found is not None
    entry = manifest.FileEntry("../secret", 1, "00")
    content = manifest.Manifest(**{f: getattr(found, f) for f in found.__struct_fields__} | {"files": (entry,)})
    manifest.write_marker(path, content)
    assert manifest.verify(path).faults == ("../secret: outside the checkpoint",)
    with pytest.raises(CheckpointFault, match=r"\.\./secret: outside the checkpoint"):
        fetch(str(path), tmp_path / "staging", life=1)
    assert not (tmp_path / "staging").exists(), "nothing was fetched"


def test_newest_is_by_step_then_epoch(tmp_path: Path) -> None:
    for step, epoch in ((10, 1), (20, 1), (20, 3), (9, 4)):
        checkpoint(tmp_path, step, epoch)
    checkpoint(tmp_path, 30, 5, commit=False)
    assert [(m.step, m.epoch) for _, m in manifest.list_complete(tmp_path)] == [(20, 3), (20, 1), (10, 1), (9, 4)]


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    one, other = (manifest.read_marker(checkpoint(tmp_path, step)) for step in (10, 11))
    assert one is not None
    assert other is not None
    assert one.digest != other.digest
    assert manifest.read_marker(tmp_path / "step_00000010-e1") == one


def test_names_are_parsed_strictly() -> None:
    assert manifest.parse_name("step_00000120-e7") == (120, 7)
    assert [manifest.parse_name(name) for name in ("step_1-e7", "FENCE", "step_00000001-e7.old")] == [None] * 3


def test_retention_keeps_the_newest_and_never_the_last_to_go() -> None:
    found = [Found(str(step), step, 1, complete=True) for step in (10, 20, 30)]
    assert plan(found, keep=2, epoch=1) == Plan(("10",), (1, 20))
    assert plan(found[:1], keep=0, epoch=1) == Plan((), (1, 10))


def test_those_that_are_held_stay_beyond_their_time_and_no_longer(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        checkpoint(tmp_path, step)
    assert not hold(tmp_path, Held("cmd_1", (KeptSave("step_00000010-e1"), KeptSave("step_00000020-e1"))))
    assert prune(tmp_path, keep=1, epoch=1) == Plan(("step_00000030-e1",), (1, 40), held=((1, 10), (1, 20)))
    assert hold(tmp_path, Held("cmd_3", (KeptSave("step_00000020-e1"),)))
    assert not hold(tmp_path, Held("cmd_2", (KeptSave("step_00000010-e1"),))), "an older order"
    assert prune(tmp_path, keep=1, epoch=1).held == ((1, 20),)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step_00000020-e1", "step_00000040-e1"]
    assert hold(tmp_path, Held("cmd_4"))
    prune(tmp_path, keep=1, epoch=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000040-e1"]


def test_behind_the_last_save_only_who_computes_again_holds_one(tmp_path: Path) -> None:
    first, second, third = (f"step_000000{step}-e1" for step in (10, 20, 30))
    hold(tmp_path, Held("cmd_1", (KeptSave(first, ((0, 1), (2, 1))), KeptSave(second), KeptSave(third, ((0, 1),)))))
    assert not let_go(tmp_path, (0, 2)), "another life"
    assert let_go(tmp_path, None), "the last save takes what nobody computes from"
    assert held(storage_at(tmp_path)).names == {first, third}
    assert let_go(tmp_path, (0, 1))
    assert held(storage_at(tmp_path)).saves == (KeptSave(first, ((2, 1),)),)
    assert let_go(tmp_path, (2, 1))
    assert not (tmp_path / PIN).exists()


def test_what_is_held_after_a_pruning_was_planned_stays_all_the_same(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint(tmp_path, step)
    planned = survey(tmp_path, keep=1, epoch=1)
    hold(tmp_path, Held("cmd_1", (KeptSave("step_00000010-e1"),)))
    carry_out(tmp_path, planned)
    assert manifest.verify(tmp_path / "step_00000010-e1").ok


def test_a_file_that_is_none_of_ours_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / PIN).write_text("step_00000010-e1")
    assert held(storage_at(tmp_path)) == Held()


def test_what_a_restart_has_passed_over_does_not_push_out_what_it_saves() -> None:
    found = [Found("saved", 40, 1, True), Found("passed over", 60, 1, True), Found("since", 50, 2, True)]
    assert plan(found, keep=1, epoch=2) == Plan(("passed over", "saved"), (2, 50))
    assert plan(found, keep=2, epoch=2) == Plan(("saved",), (1, 60))


def test_retention_takes_partial_files_of_earlier_epochs_only() -> None:
    found = [
        Found("torso", 10, 1, complete=False),
        Found("running", 15, 2, complete=False),
        Found("newest", 20, 2, complete=True),
    ]
    assert plan(found, keep=3, epoch=2).going == ("torso",)
    assert plan(found[:2], keep=3, epoch=2) == Plan((), (0, 0))


def test_pruning_leaves_what_it_keeps_whole(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    prune(tmp_path, keep=1, epoch=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000030-e1"]
    assert manifest.verify(tmp_path / "step_00000030-e1").ok


def test_a_pruning_that_is_broken_off_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    monkeypatch.setattr(LocalStorage, "remove_all", lambda self: None)
    prune(tmp_path, keep=1, epoch=1)
    assert [found.step for _, found in manifest.list_complete(tmp_path)] == [30]


def test_the_fence_refuses_older_epochs_and_attempts(tmp_path: Path) -> None:
    fence = Fence(tmp_path)
    assert fence.allows(1, 1)
    fence.raise_to(1, 5)
    fence.wait_raised()
    assert [fence.allows(1, 4), fence.allows(1, 5), fence.allows(2, 1)] == [False, True, True]


def test_a_late_writer_cannot_lower_the_fence(tmp_path: Path) -> None:
    fence = Fence(tmp_path)
    for attempt, epoch in ((2, 9), (2, 3), (1, 99)):
        fence.raise_to(attempt, epoch)
        fence.wait_raised()
    assert fence.current() == (2, 9)


def test_a_hung_disk_holds_up_the_wait_for_the_fence_and_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, hung = Fence(tmp_path), threading.Event()
    monkeypatch.setattr(fencing, "RAISE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(fence, "raise_now", lambda attempt, epoch: hung.wait())
    fence.raise_to(1, 5)
    fence.wait_raised()
    assert fence.current() == (0, 0)
    hung.set()
