"""An administrator changes a policy on the page, sees what it would have changed, and brings it back (E57)."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.access.project_models import Project
from controlplane.policies import selectors
from controlplane.policies.whose import Whose
from controlplane.policy.document import DEFAULT
from tests.e2e.browser import Complaints, Target, axe_violations, sign_in
from tests.e2e.test_page_orders import looks_well

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """The page of the fleet's policy; a refused document is no complaint."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    complaints = Complaints(origin=real.url, allowed_statuses=(422,))
    sign_in(context, real)
    opened = context.new_page()
    complaints.watch(opened)
    opened.goto(f"{real.url}/policies")
    yield opened
    context.close()
    assert complaints.found == []


def confirm(page: Page, button: str, reason: str) -> None:
    page.get_by_label("Reason (recorded with your name)").fill(reason)
    page.get_by_role("dialog").get_by_role("button", name=button).click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Close").last.click()


def test_a_policy_is_changed_in_the_form_and_brought_back_in_one_click(page: Page) -> None:
    expect(page.get_by_text("Nobody has changed this policy")).to_be_visible()
    page.get_by_label("straggler").select_option("observe")
    page.get_by_role("tab", name="YAML").click()
    expect(page.get_by_label("Policy document")).to_have_value("rule_modes:\n  straggler: observe\n")
    page.get_by_role("button", name="Put in force").click()
    confirm(page, "Put in force", "only watch stragglers")
    expect(page.get_by_text("only watch stragglers")).to_be_visible()
    assert dict(selectors.of_fleet().rule_modes) == {"straggler": "observe"}
    assert axe_violations(page) == []
    page.get_by_role("button", name="Bring back").click()
    expect(page.get_by_role("dialog").get_by_text("rule_modes.straggler")).to_be_visible()
    confirm(page, "Bring version 0 back", "as it was")
    expect(page.get_by_text("brought back version 0")).to_be_visible()
    assert selectors.of_fleet() == DEFAULT


def test_actions_for_xids_are_set_and_reset_in_the_form(page: Page) -> None:
    page.get_by_text("Actions for XIDs").click()
    page.get_by_label("Set an action for another XID").select_option("79")
    action = page.get_by_label("Action for XID 79", exact=True)
    expect(action).to_have_value("fatal")
    action.select_option("reset")
    page.get_by_label("Set an action for another XID").select_option("63")
    looks_well(page, "policies-xids")
    page.get_by_role("button", name="Reset XID 63 to its default").click()
    page.get_by_role("button", name="Put in force").click()
    confirm(page, "Put in force", "ours come back after a reset")
    expect(page.get_by_text("ours come back after a reset")).to_be_visible()
    assert dict(selectors.of_fleet().xid_overrides) == {79: "reset"}


def test_what_each_source_says_of_an_xid_stands_side_by_side(page: Page) -> None:
    table = page.get_by_role("region", name="XIDs: who says what")
    expect(table.get_by_role("row", name="63 ")).to_contain_text("gpud disagrees")
    cells = [row.inner_text() for row in table.locator("tbody tr").all()]
    assert {64, 68, 121} <= {int(text.split()[0]) for text in cells} and len(cells) < 20
    expect(table.get_by_role("row", name="64 ")).to_contain_text("NVIDIA: RESET_GPU, AWS: ISOLATE")
    expect(table.get_by_role("row", name="68 ")).to_contain_text("NVIDIA: RESTART_APP, gpud: fatal")
    expect(table).to_contain_text("awslabs/awsome-distributed-ai")
    looks_well(page, "policies-sources")
    page.get_by_role("tab", name="YAML").click()
    page.get_by_label("Policy document").fill("xid_overrides:\n  79: reset\n")
    page.get_by_role("button", name="Put in force").click()
    confirm(page, "Put in force", "ours come back after a reset")
    table.get_by_role("button", name="set here").click()
    expect(table.locator("tbody tr")).to_have_count(1)
    expect(table.get_by_role("row", name="79 ")).to_contain_text("the site's word; else fatal")
    table.get_by_role("button", name="all").click()
    table.get_by_label("Search XIDs").fill("off the bus")
    expect(table.locator("tbody tr")).to_have_count(1)
    page.reload()
    expect(table.locator("tbody tr")).to_have_count(1)


def test_a_document_that_makes_no_sense_is_refused_with_each_fault_before_it_is_stored(page: Page) -> None:
    page.get_by_role("tab", name="YAML").click()
    page.get_by_label("Policy document").fill("max_acts: 0\nleese_s: 3\n")
    page.get_by_role("button", name="Dry run: last day").click()
    expect(page.get_by_text("a cap of zero")).to_be_visible()
    expect(page.get_by_text("no such field of a policy")).to_be_visible()
    page.get_by_label("Policy document").fill("max_acts: 9\n")
    expect(page.get_by_text("This result is for the text before your last change.")).to_be_visible()
    page.get_by_role("button", name="Last week").click()
    expect(page.get_by_text("No recorded decision would be different")).to_be_visible()
    assert selectors.of_fleet() == DEFAULT


def test_a_project_is_chosen_narrows_the_fleets_policy_and_is_reached_from_its_page(page: Page) -> None:
    page.get_by_label("Policy of").select_option("project default")
    expect(page.get_by_text("it may only narrow the fleet's")).to_be_visible()
    page.get_by_role("tab", name="YAML").click()
    page.get_by_label("Policy document").fill("lease_s: 5\n")
    page.get_by_role("button", name="Dry run: last day").click()
    expect(page.get_by_text("a project's policy may only narrow: 5 is below the fleet's 10")).to_be_visible()
    page.get_by_label("Policy document").fill("lease_s: 20\n")
    page.get_by_role("button", name="Put in force").click()
    confirm(page, "Put in force", "slow steps")
    expect(page.get_by_text("slow steps")).to_be_visible()
    project = Whose(project=Project.objects.get(name="default"))
    assert selectors.of(project).lease_s == 20.0 and selectors.of_fleet() == DEFAULT
    page.get_by_role("link", name="default").click()
    page.get_by_role("link", name="Policy", exact=True).click()
    expect(page).to_have_url(re.compile(r"/policies\?project=default$"))
    expect(page.get_by_text("slow steps")).to_be_visible()
    assert axe_violations(page) == []
