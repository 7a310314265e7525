"""The page goes on while the web process is away, frozen or replaced: nothing on it vanishes, a
click shows something, and everything comes back by itself."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.e2e.browser import picture, sign_in
from tests.e2e.lively import Lively

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
WAIT_MS = 30_000
ALL_LOADED = """() => ['JobsPage', 'SubmitPage', 'JobPage', 'IncidentsPage', 'NodesPage', 'NodePage', 'ChaosSheet']
  .every(name => performance.getEntriesByType('resource')
    .some(entry => entry.name.includes(name) && entry.responseEnd > 0))"""


@pytest.fixture
def context(chromium: Browser, lively: Lively) -> Iterator[BrowserContext]:
    made = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    made.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(made, lively.target)
    yield made
    made.close()


def _overview(context: BrowserContext, lively: Lively) -> Page:
    page = context.new_page()
    page.goto(lively.target.url)
    expect(page.locator(".link-state")).to_contain_text("live")
    return page


def _go(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Main").get_by_role("link", name=name).click()


def test_a_click_while_the_web_is_dead_opens_the_page_inside_its_frame(context: BrowserContext, lively: Lively) -> None:
    page = _overview(context, lively)
    page.wait_for_function(ALL_LOADED)
    lively.stack.web.kill()
    expect(page.locator(".stale-banner")).to_be_visible()
    for name in ("Jobs", "Incidents", "Nodes"):
        _go(page, name)
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    picture(page, "web-dead")
    lively.web_starts_again()
    expect(page.locator(".link-state")).to_contain_text("live")
    expect(page.locator("table tbody tr").first).to_be_visible()


def test_a_part_that_fails_to_load_is_asked_for_again(context: BrowserContext, lively: Lively) -> None:
    failures: list[str] = []

    def fail(route: Route) -> None:
        if len(failures) >= 4:
            return route.continue_()
        failures.append(route.request.url)
        route.abort()

    page = context.new_page()
    page.route("**/NodesPage*.js", fail)
    page.goto(lively.target.url)
    _go(page, "Nodes")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
    assert failures


def test_a_part_that_is_gone_fails_inside_the_frame_and_reloads_once(context: BrowserContext, lively: Lively) -> None:
    page = context.new_page()
    page.route("**/NodesPage*.js", lambda route: route.abort())
    page.goto(lively.target.url)
    _go(page, "Nodes")
    expect(page.locator(".opening")).to_be_attached()
    expect(page.get_by_role("heading", name="This page has not loaded yet")).to_be_visible()
    page.wait_for_function("sessionStorage.getItem('holdfast.reloaded') !== null")
    expect(page).to_have_url(re.compile("/nodes$"))
    expect(page.get_by_role("heading", name="This page has not loaded yet")).to_be_visible()
    picture(page, "part-missing")
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    expect(page.locator(".link-state")).to_contain_text("live")
    _go(page, "Jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_a_click_while_the_web_is_frozen_says_what_it_waits_for(context: BrowserContext, lively: Lively) -> None:
    page = _overview(context, lively)
    page.wait_for_function(ALL_LOADED)
    lively.stack.web.pause()
    _go(page, "Incidents")
    expect(page.get_by_role("heading", level=1)).to_have_text("Incidents")
    expect(page.locator(".skeleton").first).to_be_visible()
    expect(page.locator(".slow-note")).to_be_visible()
    picture(page, "web-frozen")
    lively.stack.web.resume()
    expect(page.locator("table tbody tr").first).to_be_visible()
    expect(page.locator(".slow-note")).to_have_count(0)


def test_silence_is_grey_and_not_red_while_this_page_hears_nothing(context: BrowserContext, lively: Lively) -> None:
    page = context.new_page()
    page.goto(f"{lively.target.url}/jobs/{lively.job.id}")
    expect(page.locator(".ranks tbody tr").first).to_be_visible()
    expect(page.locator(".link-state")).to_contain_text("live")
    lively.stack.web.pause()
    expect(page.locator(".link-state")).to_contain_text("stale")
    beats = page.locator(".ranks td:nth-child(5)")
    expect(beats.first).to_have_class(re.compile("muted"))
    picture(page, "link-stale")
    assert page.locator(".ranks td:nth-child(5).text-bad").count() == 0
    assert page.locator(".ranks td:nth-child(5).text-warn").count() == 0
    lively.stack.web.resume()


def test_a_newer_bundle_is_offered_after_the_server_came_back(context: BrowserContext, lively: Lively) -> None:
    page = _overview(context, lively)
    expect(page.get_by_role("button", name="New version: reload")).to_have_count(0)

    def newer(route: Route) -> None:
        body = route.fetch().text()
        route.fulfill(body=re.sub(r'(<script type="module"[^>]*src=")[^"]+', r"\1/static/ui/assets/index-new.js", body))

    page.route(lively.target.url + "/", newer)
    lively.stack.web.kill()
    lively.web_starts_again()
    expect(page.get_by_role("button", name="New version: reload")).to_be_visible(timeout=WAIT_MS)
    picture(page, "new-version")
    page.unroute(lively.target.url + "/")
    page.get_by_role("button", name="New version: reload").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet overview")
    expect(page.get_by_role("button", name="New version: reload")).to_have_count(0)
