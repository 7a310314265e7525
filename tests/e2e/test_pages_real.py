"""Every page of the real web process, over rows that the agents' own messages made: on a desk in light and
dark and on a phone, empty, with what is not there, and at 1,000 rows. Each renders without an error in
the console, a request elsewhere, a WCAG A or AA violation, or a page that scrolls sideways."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.fixtures import Settings

from controlplane.recovery import ledger_pass
from controlplane.runtime.clock import now_s
from tests.e2e.browser import COLOURS, LAID_OUT, LAYOUT, Complaints, Target, axe_violations, picture, sign_in
from tests.e2e.rows import crowd, lived, unanswered
from tests.integration.backend.builders import make_fleet, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
DESK, PHONE = "desk", "phone"
PLACES: dict[str, dict[str, Any]] = {
    DESK: {"viewport": {"width": 1440, "height": 900}},
    PHONE: {"viewport": {"width": 320, "height": 720}},
}
WAIT_MS = 20_000
FLEET = 16


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Where a page is looked at."""
    return str(request.param)


@contextmanager
def opened(chromium: Browser, where: Target, place: str) -> Iterator[Page]:
    """A page of an operator who is signed in, in light."""
    context = chromium.new_context(**PLACES[place], color_scheme="light", reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(context, where)
    yield context.new_page()
    context.close()


@contextmanager
def quiet(chromium: Browser, where: Target) -> Iterator[Page]:
    """On a desk; it must not complain."""
    complaints = Complaints(origin=where.url)
    with opened(chromium, where, DESK) as shown:
        complaints.watch(shown)
        yield shown
    assert complaints.found == []


@pytest.fixture
def page(real: Target, chromium: Browser, place: str) -> Iterator[Page]:
    """One where the test looks."""
    with opened(chromium, real, place) as made:
        yield made


FIXED = {
    "overview": "/", "overview-table": "/?map=table", "overview-job": "/?colour=job", "jobs": "/jobs",
    "submit": "/jobs/new", "incidents": "/incidents", "nodes": "/nodes", "not-found": "/nowhere",
    "queue": "/queue", "access": "/access", "access-tokens": "/access?tab=tokens",
    "access-agents": "/access?tab=agents", "access-settings": "/access?tab=settings",
    "ledger": "/ledger", "ledger-job": "/ledger?by=job&window=1h", "projects": "/projects",
    "project": "/projects/default", "jobs-of-project": "/jobs?project=default",
}  # fmt: skip
# What a reader must find there, and what would be untrue.
SAID = {
    "projects": ("GPUs by project, as the queue counts them now.", "default", "no limit"),
    "project": ("GPUs of its own", "No members"),
    "jobs-of-project": ("default / ",),
    "queue": ("The nodes that take work could not hold it if every job ended", "none named", "Nobody yields devices"),
    "ledger": ("Every second of every device, once", "free, and no job took it"),
    "job-spec": ("apiVersion", "allow_faults"),
    "incident-lost": ("the job failed", "The job failed, so there is no recovery to certify."),
    "incident-red": ("accepted from an old incarnation",),
    "not-found": ("Not found",),
    "node": ("nothing is started here until they pass: driver: version 535.104 is older than 570",),
    "overview": ("1 incident needs hardware", "1 out of service"),
    "job-pending": ("40 replicas of 2 need 80 devices, ", "none placed yet"),
    "incident-fleet": ("XID 79: GPU has fallen off the bus", "no job was hit", "since the fault"),
}
UNSAID = {
    "node": ("Receives work.",),
    "job": ("priority", "Priority"),
    "jobs": ("Priority", "0 / 0"),
    "job-pending": ("not reported", "attempt 0"),
    "incident-fleet": ("since the last progress",),
    "incident-lost": ("not yet", "no step yet", "after a job has recovered"),
    "decision": ("grace s",),
}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNREADABLE_IN_THE_DARK = """addEventListener("DOMContentLoaded", () => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync("@media (prefers-color-scheme: dark) { h1, p, td, th { color: #222 !important; } }");
    document.adoptedStyleSheets = [sheet];
});"""
LOST = {"job-missing": "/jobs/nothing", "node-missing": "/nodes/nothing", "incident-missing": "/incidents/nothing"}


def narrowest(page: Page) -> float:
    """Pixels of the narrowest sentence in a table."""
    return float(page.locator("td.words").evaluate_all("all => Math.min(Infinity, ...all.map(e => e.clientWidth))"))


def look(page: Page, where: Target, path: str, name: str, *, refused: tuple[int, ...] = (), whole: bool = True) -> None:
    """Open it, wait until it is drawn, and hold it against what every page must hold. Of a large
    one (`whole` false) what is in sight is pictured; 8,000 cells like one another are not judged one by one."""
    complaints = Complaints(origin=where.url, allowed_statuses=refused)
    complaints.watch(page)
    page.goto(where.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.locator(".skeleton")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    picture(page, name, whole=whole)
    assert not whole or axe_violations(page) == [], name
    if whole and name.endswith(DESK):
        look_in_the_dark(page, name)
    overflow = page.evaluate(OVERFLOW)
    assert overflow <= 0, f"{name} scrolls sideways by {overflow} px"
    assert complaints.found == [], name
    assert narrowest(page) >= 150, f"{name} has one word a line"


def look_at_it_narrow(page: Page, name: str) -> None:
    """The page that is open, in a window as wide as a phone: all that differs is where things are."""
    page.set_viewport_size(PLACES[PHONE]["viewport"])
    page.evaluate(LAID_OUT)
    picture(page, f"{name}-{PHONE}")
    assert axe_violations(page, rules=LAYOUT) == [], f"{name} on a phone"
    overflow = page.evaluate(OVERFLOW)
    assert overflow <= 0, f"{name} scrolls sideways by {overflow} px on a phone"
    assert narrowest(page) >= 150, f"{name} has one word a line on a phone"
    page.set_viewport_size(PLACES[DESK]["viewport"])


def look_in_the_dark(page: Page, name: str) -> None:
    """The page that is open, where the desk turns dark: all that may differ are its colours."""
    page.emulate_media(color_scheme="dark")
    picture(page, f"{name}-dark")
    assert axe_violations(page, rules=COLOURS) == [], f"{name} in the dark"
    page.emulate_media(color_scheme="light")


def test_every_page_of_a_fleet_that_has_seen_something(real: Target, chromium: Browser) -> None:
    addresses = FIXED | lived(make_fleet(FLEET))
    lived_s = now_s()
    while ledger_pass.build() < lived_s:  # The newest seconds are judged once they have settled.
        time.sleep(0.2)
    with opened(chromium, real, DESK) as page:
        for name, path in addresses.items():
            look(page, real, path, f"real-{name}-{DESK}")
            for said in SAID.get(name, ()):
                expect(page.locator("main")).to_contain_text(said)
            for untrue in UNSAID.get(name, ()):
                expect(page.locator("main")).not_to_contain_text(untrue)
            look_at_it_narrow(page, f"real-{name}")


@pytest.mark.parametrize("place", [DESK], indirect=True)
def test_every_page_of_a_new_installation(page: Page, real: Target, place: str) -> None:
    for name, path in FIXED.items():
        look(page, real, path, f"empty-{name}-{place}")
        look_at_it_narrow(page, f"empty-{name}")


def test_what_is_not_there_is_said_under_its_own_heading(page: Page, real: Target, place: str) -> None:
    for name, path in LOST.items():
        look(page, real, path, f"{name}-{place}", refused=(404,))
        expect(page.locator(".problem")).to_be_visible()
        expect(page.get_by_role("navigation", name="Breadcrumb")).to_be_visible()
        # Of the letters of a request's id some are twice as wide as others.
        page.locator(".problem .muted").evaluate("line => { line.textContent = 'request req_' + 'W'.repeat(26); }")
        assert page.evaluate(OVERFLOW) <= 0, f"{name}-{place}: its problem does not fit"


@pytest.mark.parametrize("place", [DESK], indirect=True)
def test_the_rank_tables_show_their_last_column_on_every_desk(page: Page, real: Target, place: str) -> None:
    job = run_job(make_fleet())
    page.goto(f"{real.url}/jobs/{job.id}")
    page.locator(".replica .table-wrap").first.wait_for()
    for width in (1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        hidden = page.locator(".replica .table-wrap").evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
        assert hidden == [0] * len(hidden) != [], f"at {width} px"


@pytest.mark.parametrize("demo", [False, True], ids=["production", "demo"])
@pytest.mark.parametrize("place", [DESK], indirect=True)
def test_the_bar_at_the_top_is_one_line_on_every_desk_also_while_incidents_are_open(
    page: Page, real: Target, place: str, settings: Settings, demo: bool
) -> None:
    settings.HOLDFAST_DEMO = demo
    unanswered(make_fleet())
    page.goto(f"{real.url}/jobs")
    expect(page.locator(".nav-count")).to_be_visible()
    expect(page.get_by_role("button", name="Inject a fault")).to_have_count(int(demo))
    for width in (1280, 1410, 1440, 1601, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        picture(page, f"bar-{width}{'-demo' * demo}", whole=False)
        assert page.locator(".topbar").evaluate("bar => bar.clientHeight") < 60, f"at {width} px"


ROWS_OF_FIGURES = """all => all.map(group => Object.values(Object.groupBy(
    [...group.querySelectorAll(".figure")], figure => figure.getBoundingClientRect().top)).map(row => row.length))"""


@pytest.mark.parametrize("place", [DESK], indirect=True)
def test_the_figures_of_a_job_are_a_row_for_each_group_on_a_desk_and_pairs_on_a_phone(
    page: Page, real: Target, place: str
) -> None:
    job = run_job(make_fleet(), steps=30)
    page.goto(f"{real.url}/jobs/{job.id}")
    page.locator(".replica .table-wrap").first.wait_for()
    for width in (1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        now, since = page.locator(".figures-job").evaluate_all(ROWS_OF_FIGURES)
        assert (len(now), len(since)) == (1, 1) and now[0] + since[0] >= 9, f"at {width} px"
    page.set_viewport_size({"width": 390, "height": 800})
    for rows in page.locator(".figures-job").evaluate_all(ROWS_OF_FIGURES):
        assert rows[:-1] == [2] * (len(rows) - 1) and rows[-1] in (1, 2)
    picture(page, "job-figures-phone")
    assert page.evaluate(OVERFLOW) <= 0


def test_the_sheet_of_faults_is_clean_and_accessible(page: Page, real: Target, place: str, settings: Settings) -> None:
    settings.HOLDFAST_DEMO = True
    run_job(make_fleet())
    complaints = Complaints(origin=real.url)
    complaints.watch(page)
    page.goto(real.url)
    page.get_by_role("button", name="Inject a fault").click()
    page.locator(".fault-head").first.click()
    expect(page.locator(".inject .button")).to_be_enabled()
    picture(page, f"chaos-{place}")
    assert axe_violations(page) == []
    if place == DESK:
        look_in_the_dark(page, f"chaos-{place}")
    assert complaints.found == []


@pytest.mark.parametrize("place", [DESK], indirect=True)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("console.error('said at load')", "said at load"),
        ("fetch('http://127.0.0.1:9/').catch(() => 0)", "127.0.0.1:9"),
        (UNREADABLE_IN_THE_DARK, "faulty-desk in the dark"),
    ],
)
def test_what_goes_wrong_while_a_page_loads_is_seen(
    page: Page, real: Target, place: str, fault: str, said: str
) -> None:
    page.add_init_script(fault)
    with pytest.raises(AssertionError, match=said):
        look(page, real, FIXED["jobs"], f"faulty-{place}")


def test_a_thousand_rows_of_everything(real: Target, chromium: Browser) -> None:
    crowd()
    for place in PLACES:
        with opened(chromium, real, place) as page:
            for name in ("overview", "jobs", "incidents", "nodes"):
                look(page, real, FIXED[name], f"thousand-{name}-{place}", whole=False)
                if name == "overview":
                    expect(page.get_by_role("status").filter(has_text="1,000 nodes, 8,000 devices")).to_be_visible()
                    assert page.locator(".node-card").count() == 0, "so many are drawn on a canvas"


@pytest.mark.parametrize("place", [DESK], indirect=True)
def test_a_thousand_rows_are_reached_to_the_last_and_searched_whole(page: Page, real: Target, place: str) -> None:
    crowd()
    page.goto(f"{real.url}/incidents")
    for shown in (200, 400, 600, 800):
        expect(page.get_by_text(f"Showing {shown} of 1,000 incidents.")).to_be_visible()
        page.get_by_role("button", name="Show more").click()
    expect(page.locator("tbody tr")).to_have_count(1_000)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    page.goto(f"{real.url}/nodes")
    expect(page.get_by_text("200 of 1,000 nodes").first).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("tbody tr")).to_have_count(400)
    page.get_by_label("Search nodes").fill("GPU-0977")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=GPU-0977"))
    page.reload()
    expect(page.get_by_role("link", name="gpu-0977")).to_be_visible()
    page.get_by_label("Search nodes").fill("nothing-like-it")
    expect(page.get_by_text('No node has "nothing-like-it" in its name')).to_be_visible()
