"""How an incident ended is seen at once, and what needs a person is red until one has it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import Target, sign_in

pytestmark = pytest.mark.e2e
LOST, FLEET = "/incidents/inc_" + "7".zfill(26), "/incidents/inc_" + "6".zfill(26)


@pytest.fixture
def page(chromium: Browser, server: Target) -> Iterator[Page]:
    """Signed in at the mock, whose fixtures are known."""
    if not server.mock:
        pytest.skip("needs the fixtures of the mock server")
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, timezone_id="UTC")
    sign_in(context, server)
    yield context.new_page()
    context.close()


def test_the_overview_names_the_lost_job_and_the_dead_device(page: Page, server: Target) -> None:
    page.goto(server.url)
    band = page.get_by_role("region", name="Needs attention")
    expect(band).to_contain_text("1 job failed, 1 incident needs hardware, 2 incidents are being handled")
    expect(band).to_contain_text("XID 79 on device 1 of node-e")
    assert "tone-bad" in (band.get_attribute("class") or "")


def test_a_lost_job_has_no_green_and_no_recovery_time_and_can_be_acknowledged(page: Page, server: Target) -> None:
    page.goto(server.url + LOST)
    head = page.locator("header", has=page.get_by_role("heading", level=1)).first
    expect(page.locator(".badge", has_text="lost").first).to_be_visible()
    expect(page.locator(".figures .badge.tone-ok")).to_have_count(0)
    expect(page.locator(".figures")).to_contain_text("the job failed")
    head.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("dialog")).to_contain_text("you have seen it")


def test_a_fault_of_the_fleet_is_shown_with_its_node_and_handed_over(page: Page, server: Target) -> None:
    page.goto(server.url + FLEET)
    expect(page.locator(".badge", has_text="needs hardware").first).to_be_visible()
    expect(page.locator(".meta")).to_contain_text("node-e")
    expect(page.locator(".figures")).to_contain_text("no job was hit")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("dialog")).to_contain_text("yours from now on")
