"""One browser for all page tests, and the two real servers they look at."""

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="the page tests need playwright")

from django.core.management import call_command
from playwright.sync_api import Browser, sync_playwright
from pytest_django import DjangoDbBlocker

from tests.e2e import browser as tools
from tests.e2e.lively import Lively, living
from tests.emptied import default_project
from tests.integration.backend.servers import RedisServer


@pytest.fixture(scope="session", autouse=True)
def _rows_beside_the_browser() -> Iterator[None]:
    """The browser's driver leaves an event loop in the test's thread, where Django would refuse to
    touch rows. It runs only while the test waits for the browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser process for the session."""
    if not tools.AXE.is_file():
        pytest.skip("run `npm ci --ignore-scripts` in frontend/ first")
    with sync_playwright() as playwright:
        found = tools.launch(playwright)
        yield found
        found.close()


@pytest.fixture
def real(transactional_db: None) -> Iterator[tools.Target]:
    """The real web process over the test's own database, and an operator who may sign in to it.
    No agent, worker, sentinel or Redis runs: rows are made by what agents would have said."""
    from django.contrib.auth.models import Group, User

    from tests.integration.api.server import running_whole

    where = {"username": "ana", "password": "correct horse battery staple"}
    user = User.objects.create_user(**where)
    user.groups.add(Group.objects.get_or_create(name="admin")[0])
    with running_whole() as url:
        yield tools.Target(url=url, **where)


@pytest.fixture(scope="module")
def db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Rows that the tests of one module share. By this name pytest-django knows that a database is needed."""
    with django_db_blocker.unblock():
        yield
        call_command("flush", verbosity=0, interactive=False)
        default_project()


@pytest.fixture(scope="module")
def lively(db: None, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lively]:
    """A fleet that lives, for the tests of one module, none of which may ask for a database of its own."""
    with living(tmp_path_factory.mktemp("lively"), redis_server.url) as made:
        yield made
