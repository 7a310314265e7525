"""What a person does on the page: a spec that is written, faults with a value; and what a person reads:
whole lists, one step, a page that is held still. Orders are in test_page_orders."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.e2e.browser import Target, axe_violations, picture, sign_in

pytestmark = pytest.mark.e2e
WAIT_MS = 20_000
JOB = "job_" + "1".zfill(26)
Visit = Callable[..., Page]


@pytest.fixture
def visit(chromium: Browser, server: Target) -> Iterator[Visit]:
    """visit("/nodes", user="crowd"): a page of a fresh browser profile of that user."""
    if not server.mock:
        pytest.skip("needs the users of the mock server")
    made: list[BrowserContext] = []

    def open_page(path: str, user: str = "ana", *, clock: bool = False, width: int = 1440) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        made.append(context)
        sign_in(context, server, user)
        page = context.new_page()
        if clock:
            page.clock.install()
        page.goto(server.url + path)
        return page

    yield open_page
    for context in made:
        context.close()


def committed(page: Page) -> int:
    """The step in the job's header."""
    return int(page.locator(".progress-line b").inner_text().replace(",", ""))


def test_a_spec_that_is_being_written_is_kept_and_a_check_shows_each_fix(visit: Visit) -> None:
    page = visit("/jobs/new")
    text = page.get_by_role("textbox", name="Job spec")
    text.fill("metadata: {name: mine}\nspec:\n  parallelism: {tp: 3}\n")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".faults")).to_contain_text("use 1, 2 or 4")
    text.press("End")
    text.type(" ")
    expect(page.get_by_text("This is about the text before your last change.")).to_be_visible()
    picture(page, "submit-checked")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
    page.go_back()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("name: mine"))
    page.reload()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("name: mine"))
    page.get_by_role("button", name="Start again from the example").click()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("my-first-job"))


def test_a_slowed_rank_can_be_healed_with_the_value_zero(visit: Visit) -> None:
    page = visit("/")
    page.get_by_role("button", name="Inject a fault").click()
    page.get_by_role("button", name="Slow a rank down").click()
    page.get_by_label("Seconds more a micro-batch (0 heals)").fill("0")
    with page.expect_request(lambda request: request.url.endswith("/demo/faults") and request.method == "POST") as sent:
        page.get_by_role("button", name="Inject: Slow a rank down").click()
    body = json.loads(sent.value.post_data or "{}")
    assert (body["kind"], body["value"]) == ("slow_rank", 0)


def test_header_replicas_and_charts_show_one_step(visit: Visit) -> None:
    page = visit(f"/jobs/{JOB}")
    expect(page.locator(".u-legend").first).to_be_visible()
    first = committed(page)
    for more in (1, 2, 3):
        page.wait_for_function(
            "least => Number(document.querySelector('.progress-line b').textContent.replaceAll(',', '')) >= least",
            arg=first + more,
        )
        seen = page.evaluate(
            """() => {
              const number = text => Number(text.replaceAll(',', ''));
              const chips = [...document.querySelectorAll('.replica')]
                .filter(card => !card.textContent.includes('not contributing'))
                .map(card => [...card.querySelectorAll('.chip')].find(chip => chip.textContent.startsWith('step')))
                .map(chip => number(chip.querySelector('b').textContent));
              const all = selector => [...document.querySelectorAll(selector)];
              const legends = all('.u-legend tr:first-child .u-value').map(e => number(e.textContent));
              const losses = all('.figure').filter(e => e.querySelector('dt').textContent === 'Loss');
              const rows = [...document.querySelectorAll('.replica')]
                .filter(card => !card.textContent.includes('not contributing'))
                .flatMap(card => [...card.querySelectorAll('.ranks tbody td:nth-child(4)')])
                .map(cell => number(cell.textContent));
              return {rows, header: number(document.querySelector('.progress-line b').textContent), chips, legends,
                      loss: number(losses[0].querySelector('.figure-value').textContent),
                      drawn: number(document.querySelector('.u-legend tr:nth-child(2) .u-value').textContent)};
            }"""
        )
        assert seen["chips"] == [seen["header"]] * len(seen["chips"]) != []
        assert seen["legends"] == [seen["header"]] * 2
        assert min(seen["rows"]) >= seen["header"], "no rank behind the step it took part in"
        # The header has four decimals, the chart three.
        assert abs(seen["loss"] - seen["drawn"]) <= 0.001


def drawn(page: Page) -> bytes:
    """The first chart, once it is drawn: the same in two frames after each other."""
    before, now = b"", page.locator(".u-over").first.screenshot()
    while now != before:
        page.wait_for_timeout(200)
        before, now = now, page.locator(".u-over").first.screenshot()
    return now


def test_a_zoom_stays_while_steps_arrive_until_it_is_reset(visit: Visit) -> None:
    page = visit(f"/jobs/{JOB}")
    over = page.locator(".u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    expect(page.get_by_role("button", name="Reset the zoom of Loss by step")).to_have_count(0)
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=5)
    page.mouse.up()
    reset = page.get_by_role("button", name="Reset the zoom of Loss by step")
    expect(reset).to_be_visible()
    page.mouse.move(0, 0)
    left = drawn(page)
    first = committed(page)
    page.wait_for_function(
        "least => Number(document.querySelector('.progress-line b').textContent.replaceAll(',', '')) >= least",
        arg=first + 3,
    )
    expect(reset).to_be_visible()
    assert drawn(page) == left
    picture(page, "zoomed")
    reset.click()
    expect(reset).to_have_count(0)


def test_a_paused_page_asks_nothing_and_shows_one_moment(visit: Visit) -> None:
    page = visit(f"/jobs/{JOB}", clock=True)
    expect(page.locator(".u-legend").first).to_be_visible()
    expect(page.locator(".link-state")).to_contain_text("live")
    page.locator(".link-state").click()
    expect(page.locator(".link-state")).to_contain_text("paused")
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    shown = page.locator("body").inner_text()
    page.clock.run_for(40_000)
    page.wait_for_function("fetch('/api/v1/version').then(() => true)")
    assert page.locator("body").inner_text() == shown
    assert [url for url in asked if not url.endswith("/version")] == []
    step = committed(page)
    page.locator(".link-state").click()
    page.clock.run_for(2_000)
    page.wait_for_function(
        "least => Number(document.querySelector('.progress-line b').textContent.replaceAll(',', '')) > least", arg=step
    )


def test_a_job_that_ended_long_ago_is_not_asked_about_again(visit: Visit, server: Target) -> None:
    page = visit("/", clock=True)
    ended = page.evaluate("fetch('/api/v1/jobs?state=failed&limit=1').then(r => r.json()).then(p => p.items[0].id)")
    page.goto(f"{server.url}/jobs/{ended}")
    expect(page.locator(".figures")).to_be_visible()
    page.wait_for_load_state("networkidle")
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.clock.run_for(120_000)
    page.wait_for_function("fetch('/api/v1/version').then(() => true)")
    assert [request.url for request in asked if ended in request.url] == []
    figures = page.locator(".figures").inner_text()
    assert "not reported" not in figures
    assert "Work at risk" not in figures
    picture(page, "job-ended")


def test_a_fleet_of_a_thousand_nodes_is_shown_and_searched_whole(visit: Visit) -> None:
    page = visit("/nodes", user="crowd")
    expect(page.get_by_text("200 of 1,000 nodes").first).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("tbody tr")).to_have_count(400)
    picture(page, "nodes-thousand")
    page.get_by_label("Search nodes").fill("GPU-0977")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=GPU-0977"))
    page.reload()
    expect(page.get_by_role("link", name="gpu-0977")).to_be_visible()
    page.get_by_label("Search nodes").fill("nothing-like-it")
    expect(page.get_by_text('No node has "nothing-like-it" in its name')).to_be_visible()


def test_the_map_of_a_thousand_nodes_leaves_none_out(visit: Visit) -> None:
    page = visit("/", user="crowd")
    expect(page.locator(".node-card")).to_have_count(1_000)
    assert page.locator(".cell").count() == 8_000
    picture(page, "map-thousand")


def test_the_map_has_the_colours_of_the_theme_also_after_a_switch(visit: Visit) -> None:
    page = visit("/")
    brightest = """all => Math.max(...all.map(e => {
      const [r, g, b] = getComputedStyle(e).backgroundColor.match(/[0-9.]+/g).map(Number);
      return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    }))"""
    cells = page.locator(".cell[class*=heat-]")
    expect(cells.first).to_be_visible()
    page.get_by_role("button", name="light theme").click()
    assert cells.evaluate_all(brightest) > 0.6
    page.get_by_role("button", name="dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert cells.evaluate_all(brightest) < 0.4, "no white block in a dark page"
    picture(page, "map-dark")
    assert axe_violations(page) == []


def test_incidents_are_reached_to_the_last(visit: Visit) -> None:
    page = visit("/incidents", user="crowd")
    expect(page.get_by_text("Showing 200 of 431 incidents.")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("Showing 400 of 431 incidents.")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("tbody tr")).to_have_count(431)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_node_that_is_not_heard_says_so_everywhere(visit: Visit, width: int) -> None:
    page = visit("/", user="silent", width=width)
    card = page.locator(".node-card", has=page.get_by_role("link", name="node-b", exact=True))
    expect(card).to_contain_text(re.compile(r"not heard \d+ (s|m)"))
    expect(card).to_have_class(re.compile("node-stale"))
    expect(page.locator(".node-card.node-stale")).to_have_count(1)
    picture(page, f"silent-map-{width}")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs").click()
    job = page.locator(".jobrow", has=page.locator(f"a[href='/jobs/{JOB}']"))
    expect(job).to_contain_text(re.compile(r"node-b not heard \d+(\.0)? (s|m), still commits"))
    picture(page, f"silent-jobs-{width}")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()
    row = page.locator("tbody tr", has=page.get_by_role("link", name="node-b", exact=True))
    expect(row).to_contain_text("not heard")
    expect(row).to_contain_text("still commits")
    row.get_by_role("link", name="node-b").click()
    expect(page.get_by_text("node-b is not heard for")).to_be_visible()
    expect(page.get_by_text("Receives work.")).to_have_count(0)
    expect(page.locator(".stale-values")).to_have_count(1)
    picture(page, f"silent-node-{width}")
    assert axe_violations(page) == []


def test_the_skip_link_shows_the_heading(visit: Visit) -> None:
    page = visit("/")
    expect(page.locator(".node-card").first).to_be_visible()
    page.evaluate("window.scrollTo(0, 400)")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    bar = page.locator(".topbar").bounding_box()
    heading = page.get_by_role("heading", level=1).bounding_box()
    assert bar is not None and heading is not None
    assert heading["y"] >= bar["y"] + bar["height"]
