"""The directory of jobs is the agent's, but what else lies there may be anybody's."""

from pathlib import Path

import pytest

from agents.ranks.places import Places


def test_what_jobs_left_is_removed_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    places = Places(tmp_path / "scratch")
    places.open()
    for job in ("job_1", "job_2"):
        places.prepare(job, None)
    foreign = places.root / "datasets" / "imagenet"
    foreign.mkdir(parents=True)
    (places.logs / "job_3").mkdir()
    places.forget_all_but({"job_1"})
    assert places.known("job_1") is not None and places.known("job_2") is None
    assert foreign.is_dir() and (places.logs / "job_3").is_dir()


@pytest.mark.parametrize(("mode", "refused"), [(0o1777, True), (0o777, False), (0o755, False)])
def test_a_directory_that_everybody_shares_is_refused_and_left_as_it_is(
    tmp_path: Path, mode: int, refused: bool
) -> None:
    root = tmp_path / "tmp"
    root.mkdir()
    root.chmod(mode)
    if refused:
        with pytest.raises(PermissionError, match="shared by everybody: name a directory below it"):
            Places(root).open()
        assert root.stat().st_mode & 0o7777 == mode and list(root.iterdir()) == []
    else:
        Places(root).open()
        assert root.stat().st_mode & 0o022 == 0
