"""Every page renders in light, dark and on a narrow screen, without an error in the console,
without a request to another origin and without a WCAG A or AA violation."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in

pytestmark = pytest.mark.e2e

JOB = "job_" + "1".zfill(26)
WAIT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An address and the heading that proves it is drawn. `mock_only`: needs the fixtures' ids."""

    name: str
    path: str
    heading: str
    ready: str
    mock_only: bool = False


VIEWS = (
    View(name="overview", path="/", heading="Fleet overview", ready=".health, .problem"),
    View(name="jobs", path="/jobs", heading="Jobs", ready=".joblist, .empty"),
    View(name="submit", path="/jobs/new", heading="Submit a job", ready="textarea"),
    View(name="incidents", path="/incidents", heading="Incidents", ready="table, .empty"),
    View(name="nodes", path="/nodes", heading="Nodes", ready="table, .empty"),
    View(name="job", path=f"/jobs/{JOB}", heading="gpt-tiny-holdfast", ready=".uplot", mock_only=True),
    View(name="job-spec", path=f"/jobs/{JOB}?tab=spec", heading="gpt-tiny-holdfast", ready="pre.code", mock_only=True),
    View(name="job-pending", path="/jobs/job_" + "5".zfill(26), heading="", ready=".figures", mock_only=True),
    View(name="incident", path="/incidents/inc_" + "1".zfill(26), heading="killed", ready=".phases", mock_only=True),
    View(
        name="incident-open",
        path="/incidents/inc_" + "3".zfill(26),
        heading="overheating",
        ready=".phases",
        mock_only=True,
    ),
    View(
        name="incident-red", path="/incidents/inc_" + "4".zfill(26), heading="corrupt", ready=".checks", mock_only=True
    ),
    View(
        name="incident-fleet", path="/incidents/inc_" + "6".zfill(26), heading="XID 79", ready=".phases", mock_only=True
    ),
    View(
        name="incident-lost", path="/incidents/inc_" + "7".zfill(26), heading="code 70", ready=".phases", mock_only=True
    ),
    View(
        name="decision",
        path="/decisions/dec_" + "1".zfill(26),
        heading="evict replica",
        ready=".alternatives",
        mock_only=True,
    ),
    View(name="node", path="/nodes/node_" + "2".zfill(26), heading="node-b", ready=".uplot", mock_only=True),
    View(name="not-found", path="/nowhere", heading="Not found", ready=".empty"),
)
SCHEMES = ("light", "dark", "narrow")


@pytest.fixture(scope="module", params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """Light and dark on a wide screen; light on 320 px."""
    return str(request.param)


@pytest.fixture(scope="module")
def context(chromium: Browser, server: Target, scheme: str) -> Iterator[BrowserContext]:
    """A signed-in browser profile in the scheme."""
    size = {"width": 320, "height": 720} if scheme == "narrow" else {"width": 1440, "height": 900}
    made = chromium.new_context(
        viewport=size, color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce", timezone_id="UTC"
    )
    made.set_default_timeout(WAIT_MS)
    sign_in(made, server)
    yield made
    made.close()


def _open(context: BrowserContext, server: Target, view: View) -> tuple[Page, Complaints]:
    page = context.new_page()
    complaints = Complaints(origin=server.url)
    complaints.watch(page)
    page.goto(server.url + view.path)
    expect(page.get_by_role("heading", level=1)).to_contain_text(view.heading)
    page.locator(view.ready).first.wait_for()
    expect(page.locator(".skeleton")).to_have_count(0)
    return page, complaints


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_page_is_clean_and_accessible(context: BrowserContext, server: Target, scheme: str, view: View) -> None:
    if view.mock_only and not server.mock:
        pytest.skip("needs the fixtures of the mock server")
    page, complaints = _open(context, server, view)
    picture(page, f"{view.name}-{scheme}")
    assert axe_violations(page) == []
    assert complaints.found == []
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, f"the page scrolls sideways by {overflow} px"
    page.close()


def test_the_rank_tables_show_their_last_column_on_every_desk(context: BrowserContext, server: Target) -> None:
    if not server.mock:
        pytest.skip("needs the fixtures of the mock server")
    page, _ = _open(context, server, next(view for view in VIEWS if view.name == "job"))
    for width in (1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        hidden = page.locator(".replica .table-wrap").evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
        assert hidden == [0] * len(hidden) != [], f"at {width} px"
    page.close()


def test_a_node_that_fails_its_checks_says_that_nothing_is_started_there(
    context: BrowserContext, server: Target
) -> None:
    if not server.mock:
        pytest.skip("needs the fixtures of the mock server")
    page, complaints = _open(context, server, next(view for view in VIEWS if view.name == "node"))
    said = page.locator(".why").first
    expect(said).to_contain_text("nothing is started here until they pass: driver: device 0 has driver 535")
    expect(page.get_by_text("Receives work.")).to_have_count(0)
    assert complaints.found == []
    page.close()


def test_page_says_live_and_as_of_when(context: BrowserContext, server: Target) -> None:
    page, complaints = _open(context, server, VIEWS[0])
    expect(page.locator(".link-state")).to_contain_text("live")
    expect(page.locator(".link-state")).to_contain_text("as of")
    assert complaints.found == []
    page.close()


def test_fault_sheet_is_clean_and_accessible(context: BrowserContext, server: Target, scheme: str) -> None:
    page, complaints = _open(context, server, VIEWS[0])
    page.get_by_role("button", name="Inject a fault").click()
    page.locator(".fault-head").first.click()
    expect(page.locator(".inject .button")).to_be_enabled()
    picture(page, f"chaos-{scheme}")
    assert axe_violations(page) == []
    assert complaints.found == []
    page.close()
