"""One suite, both databases: SQLite in a directory of its own unless HOLDFAST_DATABASE_URL
names a PostgreSQL server; the same tests run on either.
"""

import gc
import os
import sys

import hypothesis
import pytest
from django.conf import settings

# Everything here talks to this machine alone. torch asks for a name with each connection to a
# store; where a name server drops one question in fifty, that cost whoever connected 5 s.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
# Machines are noisy: no example is a failure because it was slow.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
YOUNG = 10_000
"""Objects that are made between two looks of the cycle collector; Python's own is 700."""


def pytest_report_header(config: pytest.Config) -> str:
    """One line at the top of the run."""
    return f"database: {settings.DATABASES['default']['ENGINE'].rsplit('.', 1)[-1]}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests and modules are no garbage: the cycle collector, a tenth of the time of the backend's tests, looks through
    what a test makes, more of it at a time, and not through them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run took of a core, by itself and by the processes that it waited for."""
    took = os.times()
    own_s, others_s = took.user + took.system, took.children_user + took.children_system
    terminalreporter.section("processor time")
    terminalreporter.line(f"{own_s:.0f} s of a core by itself, {others_s:.0f} s by its processes")


@pytest.fixture(scope="session")
def django_db_modify_db_settings():  # type: ignore[no-untyped-def]
    """See `tests.migrated`; pytest-django asks for this before it makes the database."""
    from django.db.backends.sqlite3.creation import DatabaseCreation

    from tests.migrated import create_test_db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseCreation, "create_test_db", create_test_db)
        yield


@pytest.fixture(autouse=True, scope="session")
def _only_what_was_written_is_emptied():  # type: ignore[no-untyped-def]
    """See `tests.emptied`."""
    from django.test import TransactionTestCase

    from tests.emptied import empty

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty)
        yield


@pytest.fixture(autouse=True)
def _nodes_of_another_database_are_not_remembered():  # type: ignore[no-untyped-def]
    """A web process keeps what it read of the nodes while no event names one; a test's rows come without events."""
    followed = sys.modules.get("controlplane.fleet.followed")
    if followed is not None:
        followed.nodes.forget()
    yield


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A real Redis of this session's own; see `tests.integration.backend.servers`."""
    from tests.integration.backend.servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()
