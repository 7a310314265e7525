"""How the server reaches its database: pooled and bounded, or one durable file."""

from pathlib import Path

import pytest
from django.db import connection

from benchmarks import settings as of_benchmarks
from controlplane.config.env import Env, database


def given(tmp_path: Path, url: str, **changes: object) -> dict[str, object]:
    return database(Env(state_dir=tmp_path, database_url=url, **changes))


def test_postgres_gives_connections_from_a_pool_and_ends_what_takes_too_long(tmp_path: Path) -> None:
    made = given(tmp_path, "postgres://ada:p%40ss@db.example:5433/fleet?sslmode=require", pool_max=3)
    assert (made["CONN_MAX_AGE"], made["PASSWORD"], made["PORT"]) == (0, "p@ss", "5433")
    options = made["OPTIONS"]
    assert isinstance(options, dict)
    assert options["pool"] == {"min_size": 1, "max_size": 3, "timeout": 5}
    assert options["sslmode"] == "require"
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        assert f"-c {name}=" in options["options"]


def test_sqlite_is_one_durable_file_with_a_single_writer(tmp_path: Path) -> None:
    made = given(tmp_path, f"sqlite://{tmp_path}/x.sqlite3")
    options = made["OPTIONS"]
    assert isinstance(options, dict)
    assert (options["transaction_mode"], options["timeout"]) == ("IMMEDIATE", 20)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        assert pragma in options["init_command"]


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="about SQLite's file")
def test_the_suites_own_file_waits_for_no_disk_and_a_benchmarks_does(db: None) -> None:
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA synchronous").fetchone() == (0,)
        assert cursor.execute("PRAGMA secure_delete").fetchone() == (1,), "the rest is as it is in service"
    assert "synchronous=FULL" in of_benchmarks.DATABASES["default"]["OPTIONS"]["init_command"]


def test_any_other_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scheme 'mysql' is not sqlite or postgres"):
        given(tmp_path, "mysql://db/x")
