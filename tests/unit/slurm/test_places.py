"""Folders of an allocation: this user's alone, removed at its end or by the next one; and what is kept of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.slurm import node, places
from controlplane.slurm.environment import Allocation
from tests.house.tree import ROOT

MINE = f"hf-{os.geteuid()}"


def test_a_folder_is_this_users_own(tmp_path: Path) -> None:
    made = places.local("7", "0", root=tmp_path)
    assert made == tmp_path / MINE / "7.0" and made.is_dir()
    assert places.local("7", "0", root=tmp_path) == made, "an agent that is started again finds its own"
    other = places.local("8", "0", root=tmp_path)
    places.forget(made)
    assert not made.exists() and other.exists()
    places.forget(other)
    assert not other.parent.exists()


def test_where_somebody_else_made_the_first_folder_another_name_is_taken_and_stays_this_allocations(
    tmp_path: Path,
) -> None:
    (tmp_path / MINE).symlink_to(tmp_path)
    (tmp_path / f"{MINE}.1").touch()
    made = places.local("7", "0", root=tmp_path)
    assert made == tmp_path / f"{MINE}.2" / "7.0" and made.stat().st_mode & 0o066 == 0
    (tmp_path / MINE).unlink()
    assert places.local("7", "0", root=tmp_path) == made, "the first name is free now"
    assert places.local("8", "0", root=tmp_path) == tmp_path / MINE / "8.0"


def test_where_all_names_are_taken_that_is_said(tmp_path: Path) -> None:
    for home in places._homes(tmp_path):
        home.touch()
    with pytest.raises(places.PlaceError, match="not a directory of yours"):
        places.local("7", "0", root=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_somebody_else_made_first_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "hf-0").mkdir()
    os.chown(tmp_path / "hf-0", 1, 1)
    assert places.local("7", "0", root=tmp_path) == tmp_path / "hf-0.1" / "7.0"


def test_a_mode_that_cannot_be_set_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chmod(path: Path, mode: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises(places.PlaceError, match=r"cannot be made: Read-only file system\. Free it"):
        places.own(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o775, 0o1777])
def test_a_directory_to_which_others_may_write_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    runs = tmp_path / "runs"
    assert places.yours(runs).stat().st_mode & 0o777 == 0o700, "made for this user alone"
    runs.chmod(0o755)
    assert places.yours(runs).stat().st_mode & 0o777 == 0o755, "others may read its list; it stays as it is"
    runs.chmod(mode)
    with pytest.raises(places.PlaceError) as refused:
        places.yours(runs)
    assert str(runs) in refused.value.what and f"mode {mode:o}" in refused.value.what
    assert refused.value.fix == f"chmod go-w {runs}, or name another with --directory"


def test_a_directory_that_is_a_link_or_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(places.PlaceError, match="is a link") as refused:
        places.yours(tmp_path / "link")
    assert refused.value.fix == f"name what it leads to: --directory {tmp_path}/there"
    (tmp_path / "file").touch()
    with pytest.raises(places.PlaceError, match="cannot be made: File exists"):
        places.yours(tmp_path / "file")
    if os.geteuid() == 0:
        os.chown(tmp_path / "there", 1, 1)
        with pytest.raises(places.PlaceError, match="belongs to user 1, who could change what is run as you"):
            places.yours(tmp_path / "there")


def test_a_directory_that_is_gone_is_not_made_on_a_node(tmp_path: Path) -> None:
    with pytest.raises(places.PlaceError, match="cannot be used: No such file"):
        places.trusted(tmp_path / "runs")
    assert not (tmp_path / "runs").exists(), "its file system is not here"


def left(root: Path, name: str) -> Path:
    """As an allocation that was killed leaves it."""
    folder = root / MINE / name
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "key").write_text("secret")
    return folder


def test_what_a_killed_allocation_left_is_removed_by_the_next_one_and_nothing_else(tmp_path: Path) -> None:
    held, descriptor = places.hold("5", "0", root=tmp_path)
    gone = [left(tmp_path, name) for name in ("4.0", "4.c")]
    kept = [held, *(left(tmp_path, name) for name in ("7.c", "7", "x.0", "4.0.d"))]
    (tmp_path / MINE / "3.0").symlink_to(kept[-1])
    assert places.sweep("7", root=tmp_path) == gone
    assert not any(folder.exists() for folder in gone) and all(folder.exists() for folder in kept)
    os.close(descriptor)
    assert places.sweep("7", root=tmp_path) == [held], "its process has ended"


def test_a_folder_is_held_until_its_process_ends_however_it_ends(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from controlplane.slurm import places\n"
        "places.hold('5', '0', root=Path(sys.argv[1])); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen((sys.executable, "-c", program, str(tmp_path)), stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
        assert places.sweep("7", root=tmp_path) == []
        holder.kill()
        holder.wait()
    assert places.sweep("7", root=tmp_path) == [tmp_path / MINE / "5.0"]


def test_who_comes_to_a_folder_that_is_being_removed_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding it and locking it."""
    left(tmp_path, "5.0")
    opened = places._opened

    def swept_meanwhile(folder: Path) -> int:
        descriptor = opened(folder)
        monkeypatch.setattr(places, "_opened", opened)
        assert places.sweep("7", root=tmp_path) == [folder]
        return descriptor

    monkeypatch.setattr(places, "_opened", swept_meanwhile)
    folder, descriptor = places.hold("5", "0", root=tmp_path)
    assert folder.is_dir() and not list(folder.iterdir()) and places.sweep("7", root=tmp_path) == []
    os.close(descriptor)


def test_the_next_allocation_on_a_node_sweeps_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    gone = left(tmp_path, "4.0")
    folder, descriptor = node.enter(Allocation(job="7", node="n1", index="0", segment=""), "0")
    assert folder == tmp_path / MINE / "7.0" and not gone.exists()
    assert f"removed {gone}, which an allocation that was killed has left" in capsys.readouterr().err
    os.close(descriptor)


def test_keys_and_journal_go_before_logs_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left(tmp_path, "7.0")
    for jobs in (folder / "a" / "jobs", folder / "a-jobs"):
        (jobs / "logs" / "j").mkdir(parents=True)
        (jobs / "logs" / "j" / "rank.log").write_text("step 1")
        (jobs / "0123" / "host").mkdir(parents=True)
    (folder / "a" / "journal").symlink_to(folder)
    copied: list[set[str]] = []
    keep_logs = places.keep_logs

    def watched(logs: Path, kept: Path) -> None:
        copied.append({str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()})
        keep_logs(logs, kept)

    monkeypatch.setattr(places, "keep_logs", watched)
    node.leave(folder, tmp_path / "kept")
    assert copied[0] == {"a/jobs/logs/j/rank.log", "a-jobs/logs/j/rank.log"}
    assert not folder.exists() and (tmp_path / "kept" / "j" / "rank.log").read_text() == "step 1"


def test_logs_are_kept_and_neither_links_nor_pipes_are_followed(tmp_path: Path) -> None:
    logs, kept = tmp_path / "logs", tmp_path / "kept"
    (logs / "job").mkdir(parents=True)
    (logs / "job" / "rank.log").write_text("step 1")
    (logs / "job" / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(logs / "job" / "pipe.log")
    places.keep_logs(logs, kept)
    assert [str(path.relative_to(kept)) for path in kept.rglob("*.log")] == ["job/rank.log"]
    assert (kept / "job" / "rank.log").stat().st_mode & 0o077 == 0
    places.keep_logs(tmp_path / "none", kept)


def test_of_long_logs_the_end_is_kept_and_of_many_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_LOG_BYTES", 10)
    monkeypatch.setattr(places, "MAX_LOGS_BYTES", 16)
    logs, kept = tmp_path / "logs", tmp_path / "kept"
    logs.mkdir()
    for number, text in enumerate(("the first", "the second: 0123456789", "abcdef")):
        (logs / f"{number}.log").write_text(text)
        os.utime(logs / f"{number}.log", (number, number))
    places.keep_logs(logs, kept)
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"1.log": "0123456789", "2.log": "abcdef"}
