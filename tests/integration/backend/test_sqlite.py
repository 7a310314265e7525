"""Writers of one SQLite file take turns soon after one another."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.db.utils import ConnectionHandler

TIMEOUT_S = 5.0


@pytest.fixture(autouse=True)
def _files_of_its_own(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


@contextmanager
def connection_to(path: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Any]:
    """One of this thread's own."""
    options = {"timeout": timeout_s, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}
    settings = {"ENGINE": "controlplane.runtime.sqlite", "NAME": str(path), "OPTIONS": options}
    connection = ConnectionHandler({"default": settings})["default"]
    try:
        yield connection
    finally:
        connection.close()


def begin(connection: Any) -> None:
    connection.ensure_connection()
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)


def busy_timeout_ms(connection: Any) -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])


def test_who_waits_begins_once_the_other_has_committed(tmp_path: Path) -> None:
    told: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with connection_to(tmp_path / "db") as connection:
            connection.ensure_connection()
            waits.set()
            begin(connection)
            told.append("second began")
            connection.rollback()

    with connection_to(tmp_path / "db") as connection:
        begin(connection)
        thread = threading.Thread(target=second)
        thread.start()
        waits.wait()
        told.append("first ends")
        connection.commit()
        thread.join()
    assert told == ["first ends", "second began"]


def test_a_wait_ends_with_sqlites_own_error_when_its_time_is_up(tmp_path: Path) -> None:
    with connection_to(tmp_path / "db") as first, connection_to(tmp_path / "db", timeout_s=0.02) as second:
        begin(first)
        with pytest.raises(OperationalError, match="database is locked"):
            begin(second)


def test_other_statements_wait_as_sqlite_does_before_and_after_a_transaction(tmp_path: Path) -> None:
    with connection_to(tmp_path / "db") as connection:
        connection.ensure_connection()
        before = busy_timeout_ms(connection)
        begin(connection)
        connection.rollback()
        connection.set_autocommit(True)
        assert busy_timeout_ms(connection) == before == TIMEOUT_S * 1000
