"""A database that cannot keep what a rank may write is refused before anything is in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.demo.private_postgres import MissingPostgres, find_binaries, private_cluster
from tests.house.tree import ROOT


def migrate(url: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "HOLDFAST_PROFILE": "embedded", "HOLDFAST_DATABASE_URL": url, "HOLDFAST_STATE_DIR": str(home),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "manage.py", "migrate", "runtime", "--no-input"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timeout(240)
def test_a_postgresql_database_of_another_encoding_is_refused_with_what_makes_the_right_one(tmp_path: Path) -> None:
    try:
        find_binaries()
    except MissingPostgres as missing:
        pytest.skip(str(missing))
    with private_cluster("holdfast", passwords=False) as cluster:
        made = {}
        for encoding in ("SQL_ASCII", "UTF8"):
            name = f"in_{encoding.lower()}"
            create = ["createdb", "-h", "127.0.0.1", "-p", str(cluster.port), "-U", "holdfast", "--encoding", encoding]
            create = [str(cluster.binaries / create[0]), *create[1:], "--template=template0", "--locale=C", name]
            subprocess.run(create, check=True, cwd=tmp_path)
            made[encoding] = migrate(f"postgresql://holdfast@127.0.0.1:{cluster.port}/{name}", tmp_path)
    refused = made["SQL_ASCII"]
    assert refused.returncode != 0
    assert "The database keeps text in SQL_ASCII; Holdfast needs UTF8." in refused.stderr
    assert "ENCODING 'UTF8' TEMPLATE template0" in refused.stderr
    assert made["UTF8"].returncode == 0, made["UTF8"].stderr
