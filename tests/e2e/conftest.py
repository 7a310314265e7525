"""One server and one browser for all page tests."""

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="the page tests need playwright")

from playwright.sync_api import Browser, sync_playwright

from tests.e2e import browser as tools


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
