"""`manage.py print_config` in a process of its own: every key, its source, and no secret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.config.env import Env
from tests.forks import command
from tests.house.tree import ROOT

SECRETS = {
    "HOLDFAST_SECRET_KEY": "kPq7-a-key-that-nobody-may-read-0123456789-abcdefghijklmnop",
    "HOLDFAST_SECRET_KEY_FALLBACKS": "an-earlier-key-that-nobody-may-read-either",
    "HOLDFAST_DATABASE_URL": "postgres://holdfast:pw-of-the-database@db.example:5433/fleet?sslpassword=pw-of-the-file",
    "HOLDFAST_REDIS_URL": "redis://:pw-of-redis@cache.example:6380/2",
}
NEVER = ("kPq7", "an-earlier-key", "pw-of-the-database", "pw-of-the-file", "pw-of-redis")


def printed(state_dir: Path, **environment: str) -> dict[str, tuple[str, str]]:
    """Key to (value, source), as the command says it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "DJANGO_"))}
    argv = (str(ROOT / "manage.py"), "print_config")
    # The interpreter itself reads PYTHONWARNINGS, when it starts.
    own = "PYTHONWARNINGS" in environment
    done = subprocess.run(
        [sys.executable, *argv] if own else command(*argv, kind="server"), cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=60.0,
        env=kept | {"HOLDFAST_PROFILE": "embedded", "HOLDFAST_STATE_DIR": str(state_dir), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stdout + done.stderr for word in NEVER)
    told = {}
    for line in done.stdout.splitlines():
        key, _, rest = line.partition("=")
        value, _, source = rest.rpartition("  # ")
        told[key] = (value, source)
    return told


def test_every_key_of_the_server_is_printed_once_with_its_value_and_where_that_is_from(tmp_path: Path) -> None:
    told = printed(tmp_path, HOLDFAST_CHUNK_S="300", HOLDFAST_BIND="127.0.0.1:9000", **SECRETS)
    assert list(told) == [f"HOLDFAST_{name.upper()}" for name in Env.model_fields]
    assert told["HOLDFAST_CHUNK_S"] == ("300.0", "environment")
    assert told["HOLDFAST_BIND"] == ("127.0.0.1:9000", "environment")
    assert told["HOLDFAST_RETENTION_DAYS"] == ("30.0", "default")
    assert told["HOLDFAST_CHECKPOINT_ROOT"] == (str(tmp_path / "checkpoints"), "computed")


def test_of_a_secret_only_that_it_is_set_is_printed_and_of_an_address_only_where_it_leads(tmp_path: Path) -> None:
    told = printed(tmp_path, **SECRETS)
    assert told["HOLDFAST_SECRET_KEY"] == ("(set, hidden)", "environment")
    assert told["HOLDFAST_SECRET_KEY_FALLBACKS"] == ("(set, hidden)", "environment")
    assert told["HOLDFAST_DATABASE_URL"] == ("postgres://db.example:5433/fleet", "environment")
    assert told["HOLDFAST_REDIS_URL"] == ("redis://cache.example:6380/2", "environment")


def test_what_the_server_works_out_itself_is_printed_as_it_is_in_effect(tmp_path: Path) -> None:
    told = printed(tmp_path)
    assert told["HOLDFAST_DATABASE_URL"] == (f"sqlite://{tmp_path}/holdfast.sqlite3", "computed")
    assert told["HOLDFAST_SECRET_KEY"] == ("(set, hidden)", "computed"), "the embedded profile made one"
    assert told["HOLDFAST_ALLOWED_HOSTS"] == ("127.0.0.1,localhost,[::1]", "computed")
    assert told["HOLDFAST_SECRET_KEY_FALLBACKS"] == ("(not set)", "default")


@pytest.mark.parametrize("key", ["HOLDFAST_CHUNKS", "HOLDFAST_RETENTON_DAYS"])
def test_a_key_that_nobody_reads_is_warned_about_and_not_printed_as_if_it_counted(tmp_path: Path, key: str) -> None:
    with pytest.raises(AssertionError, match=f"{key} is no setting of Holdfast"):
        printed(tmp_path, PYTHONWARNINGS="error", **{key: "1"})
    assert key not in printed(tmp_path, **{key: "1"})
