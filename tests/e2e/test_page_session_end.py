"""A session that ends under a page costs nothing that was typed: the password is asked for over what is there."""

import re
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Browser, Page, expect

from controlplane.access.models import AuditEntry
from controlplane.policies import selectors
from tests.e2e.browser import Target, axe_violations, picture
from tests.e2e.test_page_policies import confirm
from tests.e2e.test_pages_real import DESK, opened
from tests.integration.backend.builders import make_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
POLL_MS = 60_000
TEXT = "max_acts: 9\n"


def ended(page: Page) -> Any:
    """The question, once a read of the background finds that the session is over."""
    Session.objects.all().delete()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible(timeout=POLL_MS)
    return dialog


def sign_in_again(page: Page, dialog: Any) -> None:
    dialog.get_by_label("Password or one-time password").fill("correct horse battery staple")
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog).to_have_count(0)


def test_an_edited_policy_stays_and_is_stored_after_signing_in_again(real: Target, chromium: Browser) -> None:
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/policies?tab=yaml")
        page.get_by_label("Policy document").fill(TEXT)
        dialog = ended(page)
        expect(dialog).to_contain_text("the page continues where you are")
        picture(page, "session-end-policy")
        assert axe_violations(page) == []
        expect(page.get_by_label("Policy document")).to_have_value(TEXT)
        sign_in_again(page, dialog)
        expect(page.get_by_label("Policy document")).to_have_value(TEXT)
        page.get_by_role("button", name="Put in force").click()
        confirm(page, "Put in force", "fewer at night")
        expect(page.get_by_text("fewer at night")).to_be_visible()
    assert selectors.of_fleet().max_acts == 9


def test_a_reason_that_is_being_typed_stays_also_for_who_signs_in_later_and_an_idle_page_leaves(
    real: Target, chromium: Browser
) -> None:
    node = make_fleet(1).nodes["n1"]
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/nodes/{node.id}")
        page.get_by_role("button", name="Cordon", exact=True).click()
        page.get_by_label("Reason (recorded with your name)").fill("rack 7 maintenance")
        ended(page)
        page.keyboard.press("Escape")
        expect(page.get_by_label("Reason (recorded with your name)")).to_have_value("rack 7 maintenance")
        page.get_by_role("dialog").get_by_role("button", name="Cordon", exact=True).click()
        sign_in_again(page, page.get_by_role("dialog", name="Your session has ended"))
        expect(page.get_by_text("n1 takes no new work.")).to_be_visible()
        assert AuditEntry.objects.get(action="node.cordon").reason == "rack 7 maintenance"
        page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
        Session.objects.all().delete()
        expect(page).to_have_url(re.compile(r"/login\?next="), timeout=POLL_MS)
