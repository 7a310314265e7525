"""A node that waits for an administrator since it enrolled: seen in the list, admitted on its page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.access.models import AuditEntry
from tests.e2e.browser import Target, axe_violations, picture, sign_in
from tests.integration.backend.held import held_node

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """A page of an administrator who is signed in."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(context, real)
    yield context.new_page()
    context.close()


def test_a_held_node_says_for_whom_it_waits_and_is_admitted_with_a_reason(page: Page, real: Target) -> None:
    row = held_node("gpu-1")
    page.goto(f"{real.url}/nodes")
    expect(page.get_by_role("row", name="gpu-1")).to_contain_text("waits for an administrator")
    page.get_by_role("link", name="gpu-1").click()
    expect(page.get_by_role("cell", name="not admitted")).to_have_count(2)
    expect(page.get_by_role("button", name="Uncordon")).to_be_disabled()
    picture(page, "node-held")
    assert axe_violations(page) == []
    page.get_by_role("button", name="Admit").click()
    page.keyboard.type("serial number checked")
    page.get_by_role("button", name="Admit", exact=True).last.click()
    expect(page.get_by_text("gpu-1 may take work.")).to_be_visible()
    row.refresh_from_db()
    assert (row.state, row.held) == ("ready", False)
    assert AuditEntry.objects.get(action="node.confirm").reason == "serial number checked"
