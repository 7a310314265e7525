"""Which database errors are an outage: the same work may succeed later, unchanged.

Asked by whoever must tell "wait and repeat" from "this will never work". Decides by the
database's own error code, never by the text of a message where there is a code.

An outage is: no connection, a lock or deadlock, no space or memory, a server that stops,
and tables that are not what this program expects (a migration that has not run yet).
Anything else comes from the data or from a fault of ours, and repeating it changes nothing.
"""

from django.db import Error, InterfaceError, InternalError, OperationalError, ProgrammingError

# Classes of PostgreSQL's SQLSTATE: connection, rollback (deadlock, serialization), resources,
# object not in the state (lock not available), operator intervention, system error.
SQLSTATE_CLASSES = frozenset({"08", "40", "53", "55", "57", "58"})
CUT_OFF = "25P03"
"""PostgreSQL ended a session that stood still in a transaction: it wrote nothing."""
SQLITE_NAMES = (
    "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY",
    "SQLITE_NOMEM", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT", "SQLITE_SCHEMA", "SQLITE_CORRUPT", "SQLITE_NOTADB",
)  # fmt: skip
MISSING = ("no such table", "no such column", "has no column")


def is_outage(error: BaseException) -> bool:
    """True: wait and repeat the work as it is. False: it fails again, whatever is waited."""
    if isinstance(error, InterfaceError | ProgrammingError):
        return True
    if isinstance(error, InternalError):
        return getattr(error.__cause__, "sqlstate", None) == CUT_OFF
    if not isinstance(error, OperationalError):
        return False
    cause = error.__cause__
    sqlstate = getattr(cause, "sqlstate", None)
    if sqlstate:
        return sqlstate[:2] in SQLSTATE_CLASSES
    name = getattr(cause, "sqlite_errorname", None)
    if name:
        return name.startswith(SQLITE_NAMES) or any(words in str(error) for words in MISSING)
    # No code: the connection broke before the server could give one.
    return True


def raise_if_outage(error: Exception) -> None:
    """Let an outage go on to whoever waits for its end; everything else stays with the caller."""
    if isinstance(error, Error) and is_outage(error):
        raise error
