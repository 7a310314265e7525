"""One fault stops nobody else: loops over many, the writer's queue, what counts as an outage."""

import sqlite3

import pytest
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from controlplane.live.writer import MAX_WAITING_A_NODE, Item, Writer
from controlplane.protocol.frames import AgentEvent, DeviceLost
from controlplane.runtime.isolate import isolated
from controlplane.runtime.outages import is_outage
from controlplane.runtime.text import printable


class Coded(Exception):
    """A driver's error with the database's own code."""

    def __init__(self, *, sqlstate: str | None = None, sqlite_errorname: str | None = None) -> None:
        super().__init__(sqlstate or sqlite_errorname)
        self.sqlstate, self.sqlite_errorname = sqlstate, sqlite_errorname


def caused(cause: Exception) -> OperationalError:
    """As Django raises it."""
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("code", ["08006", "40P01", "40001", "53300", "53100", "55P03", "57P01", "58030"])
def test_postgresqls_codes_of_an_outage(code: str) -> None:
    assert is_outage(caused(Coded(sqlstate=code)))


@pytest.mark.parametrize("code", ["54000", "22003", "22021", "42601"])
def test_postgresqls_codes_of_bad_data(code: str) -> None:
    assert not is_outage(caused(Coded(sqlstate=code)))


@pytest.mark.parametrize(
    "name", ["SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR_READ"]
)
def test_sqlites_names_of_an_outage(name: str) -> None:
    assert is_outage(caused(Coded(sqlite_errorname=name)))


def test_a_table_that_is_missing_is_an_outage_and_other_errors_of_sqlite_are_not() -> None:
    database = sqlite3.connect(":memory:")
    for statement, expected in (("SELECT * FROM nowhere", True), ("SELECT FROM WHERE", False)):
        with pytest.raises(sqlite3.OperationalError) as caught:
            database.execute(statement)
        assert is_outage(caused(caught.value)) is expected
    database.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InterfaceError("connection already closed"), True),
        (ProgrammingError("relation does not exist"), True),
        (OperationalError("no code at all"), True),
        (DataError("out of range"), False),
        (IntegrityError("twice"), False),
        (ValueError("NUL"), False),
        (RecursionError(), False),
    ],
)
def test_kinds_of_errors(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected


def test_a_fault_of_one_is_contained_and_an_outage_goes_on() -> None:
    def broken() -> None:
        raise KeyError("a bug")

    def away() -> None:
        raise InterfaceError("away")

    assert isolated("test", "a", lambda: None)
    assert not isolated("test", "b", broken)
    with pytest.raises(InterfaceError):
        isolated("test", "c", away)


def test_one_nodes_events_do_not_fill_the_writers_queue() -> None:
    writer = Writer(lambda topic, message: None)

    def put(node: str) -> bool:
        event = AgentEvent(1, 0.0, DeviceLost(0, "GPU"))
        return writer.put(Item(node_id=node, session_id="s", callback=lambda *args: None, events=(event,)))

    assert sum(put("flood") for _ in range(3 * MAX_WAITING_A_NODE)) == MAX_WAITING_A_NODE
    assert put("good")
    close = Item(node_id="flood", session_id="s", callback=lambda *args: None)
    assert writer.put(close), "a session can always be closed"


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x00b\x1b[1m\nc", "a b [1m c"), ("\ud800x", "?x"), ("gr\u00fc\u00df", "gr\u00fc\u00df")]
)
def test_untrusted_text_becomes_one_printable_line(text: str, shown: str) -> None:
    assert printable(text) == shown
