"""SQLite for several processes that write often: who waits to write gets its turn soon.

SQLite lets one writer in at a time. Its own way to wait sleeps longer and longer, up to
0.1 s between looks, so that a writer that came late can wait ten times as long as the
transaction before it takes. Here a transaction that finds the file taken looks again every
`LOOK_S`, until the connection's timeout (seconds, "timeout" of OPTIONS) is over.
"""

import sqlite3
import time
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

LOOK_S = 0.001
TIMEOUT_S = 5.0
"""As sqlite3.connect's own."""


class DatabaseWrapper(base.DatabaseWrapper):
    """`BEGIN` by looking again and again; everything else as in Django."""

    def _start_transaction_under_autocommit(self) -> None:
        timeout_s = float(self.settings_dict["OPTIONS"].get("timeout", TIMEOUT_S))
        until_s = time.monotonic() + timeout_s
        self._wait_inside(0.0)
        try:
            while True:
                try:
                    super()._start_transaction_under_autocommit()
                    return
                except OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= until_s:
                        raise
                time.sleep(LOOK_S)
        finally:
            self._wait_inside(timeout_s)

    def _wait_inside(self, timeout_s: float) -> None:
        """How long SQLite itself waits for a lock, from now on."""
        connection: Any = self.connection
        connection.execute(f"PRAGMA busy_timeout = {int(timeout_s * 1000)}")


def _is_busy(error: OperationalError) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode == sqlite3.SQLITE_BUSY
