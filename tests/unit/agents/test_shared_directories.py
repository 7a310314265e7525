"""Agents of several nodes make a job's directory on storage that they share, at the same moment."""

import os
import threading
import time
from pathlib import Path

import pytest

from agents.errors import LaunchError
from agents.ranks import files
from agents.ranks.files import make_below
from agents.ranks.users import RunAs

SOMEBODY = 61234


def user(uid: int) -> RunAs:
    return RunAs(name="somebody", uid=uid, gid=uid, groups=())


def test_what_another_agent_has_made_since_it_was_looked_for_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def second(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        mkdir(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(files.os, "mkdir", second)
    make_below(str(tmp_path), f"{tmp_path}/team/job", user(os.geteuid()))
    assert (tmp_path / "team" / "job").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_one_that_is_still_the_agents_is_the_users_in_a_moment_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "job"
    made.mkdir(mode=0o700)
    monkeypatch.setattr(files, "MADE_WITHIN_S", 0.2)
    with pytest.raises(LaunchError, match="belongs to user 0"):
        make_below(str(tmp_path), str(made), user(SOMEBODY))
    monkeypatch.setattr(files, "MADE_WITHIN_S", 60.0)

    def given() -> None:
        time.sleep(0.05)
        os.chown(made, SOMEBODY, SOMEBODY)

    other = threading.Thread(target=given)
    other.start()
    make_below(str(tmp_path), str(made), user(SOMEBODY))
    other.join()
    assert made.stat().st_uid == SOMEBODY
