"""A demo never takes another one's directory, nor one that holds somebody's files."""

import os
from pathlib import Path

import pytest

from controlplane.demo.directory import DirectoryError, take


def test_while_one_runs_a_second_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    home = tmp_path / "var" / "demo"
    running = take(home, keep=False)
    (home / "database").write_text("rows")
    with pytest.raises(DirectoryError, match=r"another demo runs in .*demo, or is still stopping\. .* --dir"):
        take(home, keep=False)
    assert (home / "database").read_text() == "rows"
    os.close(running)
    os.close(take(home, keep=False))


def test_the_files_of_the_last_one_go_unless_they_are_to_be_kept(tmp_path: Path) -> None:
    os.close(take(tmp_path / "demo", keep=False))
    (tmp_path / "demo" / "database").write_text("rows")
    os.close(take(tmp_path / "demo", keep=True))
    assert (tmp_path / "demo" / "database").exists()
    os.close(take(tmp_path / "demo", keep=False))
    assert not (tmp_path / "demo" / "database").exists()


@pytest.mark.parametrize("keep", [False, True])
def test_a_directory_that_no_demo_made_is_left_as_it_is(tmp_path: Path, keep: bool) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("years")
    with pytest.raises(DirectoryError, match="no demo made it"):
        take(tmp_path / "home", keep=keep)
    assert (tmp_path / "home" / "thesis").read_text() == "years"
    (tmp_path / "file").write_text("a file")
    with pytest.raises(DirectoryError, match="no directory"):
        take(tmp_path / "file", keep=keep)


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.close(take(tmp_path / "empty", keep=False))
