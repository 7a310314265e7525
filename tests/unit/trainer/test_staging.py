"""What ranks leave behind on their way to an object store goes, and nothing else does."""

import os
import time
from pathlib import Path

import pytest

from controlplane.protocol.launch import RankRef
from trainer.checkpoint.staging import FORGOTTEN_S, claim, incoming, outgoing, sweep
from trainer.errors import ConfigInvalid

ME = RankRef("job_a-b", 2, 1, 3, 0)
STEP = "step_00000010-e1"
DIGEST = "0" * 32


def life(job: str, replica: int, incarnation: int, rank: int = 0) -> RankRef:
    return RankRef(job, 1, replica, incarnation, rank)


def staged(root: Path, of: RankRef) -> Path:
    path = outgoing(root, of)
    (path / STEP).mkdir(parents=True)
    (path / STEP / "__0_0.distcp").touch()
    return path


def forgotten(path: Path) -> Path:
    then = time.time() - FORGOTTEN_S - 60
    os.utime(path, (then, then))
    return path


def test_earlier_lives_of_a_replica_are_swept_and_nobody_elses(tmp_path: Path) -> None:
    dead = [staged(tmp_path, life("job_a-b", 1, incarnation, rank)) for incarnation, rank in ((1, 0), (2, 0), (2, 1))]
    others = [("job_a-b", 1, 3), ("job_a-b", 1, 4), ("job_a-b", 0, 1), ("job_a-b", 11, 1), ("job_b", 1, 1)]
    alive = [staged(tmp_path, life(*other)) for other in others]
    fetched = incoming(tmp_path, "job_a-b") / f"fetched-{DIGEST}"
    fetched.mkdir(parents=True)
    sweep(tmp_path, ME)
    assert [path.exists() for path in dead] == [False] * 3
    assert all((path / STEP / "__0_0.distcp").exists() for path in alive)
    assert fetched.exists()


def test_what_nobody_has_touched_for_a_day_is_swept_whosever_it_was(tmp_path: Path) -> None:
    left = [forgotten(staged(tmp_path, life("job_b", 0, 7)))]
    for name in (f"fetched-{DIGEST}", f"fetched-{DIGEST}.draft"):
        path = incoming(tmp_path, "job_c") / name
        path.mkdir(parents=True)
        left.append(forgotten(path))
    sweep(tmp_path, ME)
    assert [path.exists() for path in left] == [False] * 3


def test_what_is_not_ours_stays_however_old(tmp_path: Path) -> None:
    """The folder may be shared with others."""
    theirs = [tmp_path / "python-3.11.7" / "lib", tmp_path / "data" / "fetched-corpus", tmp_path / "notes"]
    for path in theirs:
        path.mkdir(parents=True)
        forgotten(path)
    forgotten(tmp_path / "python-3.11.7")
    sweep(tmp_path, ME)
    assert all(path.exists() for path in theirs)
    sweep(tmp_path / "absent", ME)


def test_a_place_that_others_can_foresee_is_ones_own_or_refused(tmp_path: Path) -> None:
    root = tmp_path / "staging" / "holdfast-0"
    claim(root)
    claim(root)
    assert root.stat().st_mode & 0o777 == 0o700
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigInvalid, match="HOLDFAST_STAGING_DIR"):
        claim(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(root, 61_001, 61_001)
        with pytest.raises(ConfigInvalid, match="another user"):
            claim(root)
