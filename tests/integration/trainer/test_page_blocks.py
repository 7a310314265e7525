"""Blocks of the pages about data and workloads, run as they are written, in a folder of their own."""

import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from tests.forks import command
from tests.house.blocks import Block, blocks_of
from tests.house.tree import ROOT
from tests.integration.trainer.blocks_run import DATA, PLAIN_RUN, SECRETS

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]


def block_named(name: str) -> Block:
    page = ROOT / name.partition(": ")[0]
    return next(block for block in blocks_of(page) if block.first == name)


def run(name: str, folder: Path, **replaced: str) -> str:
    """Its output; a command that fails ends it. `replaced`: a path of the page by one of this machine."""
    text = block_named(name).text
    for documented, here in replaced.items():
        text = text.replace(f"/{documented}", here)
    programs = folder.with_name(f"{folder.name}-programs")
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    (programs / "python").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -eu -o pipefail\n{text}"], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_dataset_is_built_shown_verified_and_adopted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be, or not to be.\nThat is the question.\n" * 40)
    (tmp_path / "b.txt").write_text("All the world's a stage.\n" * 40)
    data = tmp_path / "data"
    data.mkdir()
    made = IndexedDatasetBuilder(str(data / "other.bin"))
    made.add_document(torch.arange(50, dtype=torch.int32), [50])
    made.finalize(str(data / "other.idx"))
    run(DATA, tmp_path, data=str(data))
    assert {"set.bin", "set.idx", "set.json", "other.json"} <= {file.name for file in data.iterdir()}


@pytest.mark.skipif(os.geteuid() != 0, reason="it gives files to the ids of the image, as root")
def test_secrets_are_made_and_belong_to_who_reads_them(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    run(SECRETS, tmp_path)
    found = {file.name: (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) for file in tmp_path.iterdir()}
    assert found == {
        "tls.key": (101, 0o400), "store_key": (10001, 0o400), "join_token": (10001, 0o400), "tls.crt": (0, 0o444)
    }  # fmt: skip


def test_a_plain_run_of_the_workload_trains_and_its_reward_rises(tmp_path: Path) -> None:
    assert run(PLAIN_RUN, tmp_path)
