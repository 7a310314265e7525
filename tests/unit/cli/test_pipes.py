"""A reader that has enough and closes the pipe (`holdfast ... | head -n 1`) is no failure of the command."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", [("job", "schema"), ("version",), ("config",)])
def test_a_closed_pipe_ends_a_command_with_0_and_without_a_word(command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        argv = [sys.executable, "-m", "controlplane.cli", *command]
        done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
