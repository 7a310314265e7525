"""One server and one browser for all page tests."""

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="the page tests need playwright")

from playwright.sync_api import Browser, sync_playwright

from tests.e2e import browser as tools


@pytest.fixture(scope="session", autouse=True)
def _rows_beside_the_browser() -> Iterator[None]:
    """The browser's driver leaves an event loop in the test's thread, where Django would refuse to
    touch rows. It runs only while the test waits for the browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[tools.Target]:
    """The mock server, or the demo named by HOLDFAST_E2E_URL."""
    if not tools.AXE.is_file():
        pytest.skip("run `npm ci --ignore-scripts` in frontend/ first")
    with tools.target() as where:
        yield where


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser process for the session."""
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
        yield tools.Target(url=url, mock=False, **where)
