"""What moves on the page while a job trains: steps and charts that agree, a zoom that stays, a page that is held
still, a node that falls silent. One fleet lives for all of these tests."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from controlplane.fleet.models import Node
from tests.e2e.browser import Complaints, axe_violations, picture, sign_in
from tests.e2e.lively import Lively

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
WAIT_MS = 30_000
Visit = Callable[..., Page]
# Before its first steps are there a chart has nothing to zoom into, and what comes above it moves it.
CHARTED = """least => Number(document.querySelector('.u-legend .u-value').textContent.replaceAll(',', '')) >= least"""
REACHED = """least => Number(document.querySelector('.progress-line b').textContent.replaceAll(',', '')) >= least"""


@pytest.fixture
def visit(chromium: Browser, lively: Lively) -> Iterator[Visit]:
    """visit("/nodes"): a page of a fresh browser profile of an administrator."""
    made: list[BrowserContext] = []

    def open_page(path: str, *, clock: bool = False, width: int = 1440) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        made.append(context)
        sign_in(context, lively.target)
        page = context.new_page()
        if clock:
            page.clock.install()
        page.goto(lively.target.url + path)
        return page

    yield open_page
    for context in made:
        context.close()


def committed(page: Page) -> int:
    """The step in the job's header."""
    return int(page.locator(".progress-line b").inner_text().replace(",", ""))


def test_header_replicas_and_charts_show_one_step(visit: Visit, lively: Lively) -> None:
    page = visit(f"/jobs/{lively.job.id}")
    expect(page.locator(".u-legend").first).to_be_visible()
    expect(page.locator(".replica", has_text="not contributing")).to_have_count(0)
    first = committed(page)
    for more in (1, 2, 3):
        page.wait_for_function(REACHED, arg=first + more)
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


def spanned(page: Page) -> list[int]:
    """The steps nearest to both ends of the first chart, as its legend tells them under the cursor."""
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    steps = []
    for share in (0.01, 0.99):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 40)
        steps.append(int(page.locator(".u-legend tr:first-child .u-value").first.inner_text().replace(",", "")))
    page.mouse.move(0, 0)
    return steps


def test_a_zoom_stays_while_steps_arrive_until_it_is_reset(visit: Visit, lively: Lively) -> None:
    page = visit(f"/jobs/{lively.job.id}")
    expect(page.locator(".u-legend").first).to_be_visible()
    page.wait_for_function(CHARTED, arg=3)
    page.wait_for_load_state("networkidle")
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
    left = spanned(page)
    first = committed(page)
    assert left[1] < first, "not all of it"
    page.wait_for_function(REACHED, arg=first + 3)
    expect(reset).to_be_visible()
    assert spanned(page) == left
    picture(page, "zoomed")
    reset.click()
    expect(reset).to_have_count(0)
    assert spanned(page)[1] >= first + 3


def test_a_paused_page_asks_nothing_and_shows_one_moment(visit: Visit, lively: Lively) -> None:
    page = visit(f"/jobs/{lively.job.id}", clock=True)
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
    page.wait_for_function(REACHED, arg=step + 1)


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


def test_the_page_says_that_it_is_live_and_as_of_when(visit: Visit) -> None:
    page = visit("/")
    complaints = Complaints(origin=page.url)
    complaints.watch(page)
    expect(page.locator(".link-state")).to_contain_text("live")
    expect(page.locator(".link-state")).to_contain_text("as of")
    assert complaints.found == []


@pytest.fixture
def silent(lively: Lively) -> Iterator[Node]:
    """A node whose agent stays connected and says nothing, while the other nodes' ranks report steps."""
    agent = lively.busy_agent()
    agent.muted = True
    yield Node.objects.get(name=agent.name)
    agent.muted = False


def test_a_node_that_is_not_heard_says_so_everywhere(visit: Visit, lively: Lively, silent: Node) -> None:
    for width in (1440, 390):
        page = visit("/", width=width)
        _names_the_silent_one_everywhere(page, silent.name, lively.job.id, width)


def _names_the_silent_one_everywhere(page: Page, name: str, job_id: str, width: int) -> None:
    card = page.locator(".node-card", has=page.get_by_role("link", name=name, exact=True))
    expect(card).to_contain_text(re.compile(r"not heard \d+ (s|m)"))
    expect(card).to_have_class(re.compile("node-stale"))
    expect(page.locator(".node-card.node-stale")).to_have_count(1)
    picture(page, f"silent-map-{width}")
    page.get_by_role("group", name="Form").get_by_role("button", name="table").click()
    rows = page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))
    expect(rows.first).to_contain_text(re.compile(r"not heard \d+ (s|m)"))
    expect(page.locator("tbody tr.stale-row")).to_have_count(rows.count())
    picture(page, f"silent-table-{width}")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs").click()
    job = page.locator(".jobrow", has=page.locator(f"a[href='/jobs/{job_id}']"))
    expect(job).to_contain_text(re.compile(name + r" not heard \d+(\.0)? (s|m), still commits"))
    picture(page, f"silent-jobs-{width}")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()
    row = page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))
    expect(row).to_contain_text("not heard")
    expect(row).to_contain_text("still commits")
    row.get_by_role("link", name=name).click()
    expect(page.get_by_text(f"{name} is not heard for")).to_be_visible()
    expect(page.get_by_text("Receives work.")).to_have_count(0)
    expect(page.locator(".stale-values")).to_have_count(1)
    picture(page, f"silent-node-{width}")
    assert axe_violations(page) == []
