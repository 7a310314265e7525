"""The command palette before the real web process: what is found is found on the server, the keyboard alone is enough,
and an act opens the dialog of its own page, for those who may order it."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Browser, Locator, Page, Request, expect

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Node
from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in
from tests.e2e.rows import crowd
from tests.integration.backend.builders import make_fleet, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000
SCHEMES = {"light": (1440, 900), "dark": (1440, 900), "narrow": (320, 720)}
Visit = Callable[..., Page]


@pytest.fixture
def visit(real: Target, chromium: Browser) -> Iterator[Visit]:
    """visit("/nodes"): a page of an administrator, or of `username`, who is signed in. No page may complain."""
    made, complaints = [], Complaints(origin=real.url, allowed_statuses=(503,))

    def open_page(path: str, username: str | None = None) -> Page:
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        made.append(context)
        sign_in(context, real, username)
        page = context.new_page()
        complaints.watch(page)
        page.goto(real.url + path)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        return page

    yield open_page
    for context in made:
        context.close()
    assert complaints.found == []


def field_of(page: Page) -> Locator:
    """Where it is typed."""
    return page.get_by_role("combobox", name=re.compile("^Search jobs, nodes and incidents"))


def palette(page: Page) -> None:
    """It is open, and takes what is typed."""
    page.keyboard.press("Control+k")
    expect(field_of(page)).to_be_focused()


def active(page: Page) -> Locator:
    """The option that Enter takes, once all is answered: the field names it, and no other is selected."""
    expect(page.get_by_role("listbox", name="What is found")).to_have_attribute("aria-busy", "false")
    chosen = page.get_by_role("listbox", name="What is found").get_by_role("option", selected=True)
    expect(chosen).to_have_count(1)
    assert field_of(page).get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    return chosen


def looks_well(page: Page, name: str) -> None:
    """In light, dark and on a phone: accessible, and no wider than its frame."""
    for scheme, (width, height) in SCHEMES.items():
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": height})
        picture(page, f"palette-{name}-{scheme}", whole=False)
        assert axe_violations(page) == [], scheme
        box = page.get_by_role("dialog").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["y"] >= 0 and box["y"] + box["height"] <= height
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})


def test_one_of_a_thousand_nodes_is_opened_by_the_keyboard_alone_and_the_fleet_is_never_read(visit: Visit) -> None:
    crowd()
    page = visit("/queue")
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    palette(page)
    page.keyboard.type("gpu-097")
    expect(page.get_by_role("group", name="Nodes").get_by_role("option")).to_have_count(7)
    expect(page.get_by_role("option", name='All 10 nodes with "gpu-097"')).to_be_visible()
    looks_well(page, "thousand")
    page.keyboard.type("7")
    expect(active(page)).to_have_text("gpu-0977ready")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes/node_0977$"))
    expect(page.get_by_role("heading", name="gpu-0977", level=1)).to_be_visible()
    found = [each.url for each in asked if "/api/v1/nodes" in each.url and "/node_0977" not in each.url]
    assert found and all("limit=6" in url for url in found), found


def test_enter_before_the_answer_has_come_takes_what_comes_first_then(visit: Visit) -> None:
    crowd()
    page = visit("/queue")
    palette(page)
    page.keyboard.type("gpu-097")
    expect(page.get_by_role("option", name='All 10 nodes with "gpu-097"')).to_be_visible()
    # Of the six incidents that are there one holds this too; the node that is meant is not there yet.
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes/node_0977$"))


def test_a_click_on_its_button_opens_it_and_escape_gives_the_focus_back(visit: Visit) -> None:
    page = visit("/jobs")
    opener = page.get_by_role("button", name="Search and act")
    opener.click()
    expect(field_of(page)).to_be_focused()
    expect(active(page)).to_have_text("Overview")
    page.keyboard.press("ArrowUp")
    expect(active(page)).to_have_text("Keyboard shortcuts")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(active(page)).to_have_text("Jobs")
    looks_well(page, "empty")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()
    search = page.get_by_label("Search jobs", exact=True)
    search.fill("some")
    palette(page)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(search).to_be_focused()


def test_a_page_is_gone_to_by_the_beginning_of_its_name(visit: Visit) -> None:
    page = visit("/")
    palette(page)
    page.keyboard.type("led")
    expect(active(page)).to_have_text("Ledger")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/ledger$"))
    expect(page.get_by_role("heading", name="Where the GPU time went", level=1)).to_be_visible()


def test_an_act_that_is_typed_opens_the_dialog_of_its_page_and_is_recorded(visit: Visit) -> None:
    node = make_fleet(3).nodes["n2"]
    page = visit("/queue")
    palette(page)
    page.keyboard.type(f"cordon {node.name}")
    expect(active(page)).to_have_text(f"Cordon {node.name}")
    page.keyboard.press("Enter")
    reason = page.get_by_label("Reason (recorded with your name)")
    expect(reason).to_be_focused()
    expect(page.get_by_role("heading", name=f"Cordon {node.name}")).to_be_visible()
    picture(page, "palette-cordon", whole=False)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_have_count(1)
    page.keyboard.type("new fans")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_be_visible()
    page.get_by_role("dialog").locator(".dialog-actions button").click()
    node.refresh_from_db()
    assert (node.state, AuditEntry.objects.get(action="node.cordon").reason) == ("cordoned", "new fans")
    palette(page)
    page.keyboard.type(f"cordon {node.name}")
    expect(page.get_by_role("group", name="Nodes").get_by_role("option")).to_have_text([f"{node.name}cordoned"])
    expect(page.get_by_role("option", name=f"Cordon {node.name}", exact=True)).to_have_count(0)


def test_the_acts_of_the_open_page_come_first_then_what_was_opened_last(visit: Visit) -> None:
    job = run_job(make_fleet())
    page = visit(f"/nodes/{Node.objects.get(name='n1').id}")
    expect(page.get_by_role("heading", name="n1", level=1)).to_be_visible()
    page.goto(page.url.split("/nodes")[0] + f"/jobs/{job.id}")
    expect(page.get_by_role("heading", name=job.name, level=1)).to_be_visible()
    palette(page)
    expect(active(page)).to_have_text(f"Checkpoint {job.name} now")
    expect(page.get_by_role("group", name="Recent").get_by_role("option")).to_have_text(["n1"])
    looks_well(page, "on-a-job")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Checkpoint now")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_a_reader_may_not_order_is_not_offered_and_where_it_is_typed_says_why(visit: Visit) -> None:
    job = run_job(make_fleet())
    reader = User.objects.create_user(username="rita", password="correct horse battery staple")
    reader.groups.add(Group.objects.get_or_create(name="read")[0])
    page = visit(f"/jobs/{job.id}", "rita")
    palette(page)
    for typed in ("", "n1", "cordon n1", f"cancel {job.name}", job.name):
        field_of(page).fill(typed)
        expect(page.get_by_role("option").first).to_be_visible()
        expect(page.locator(".palette-list")).to_have_attribute("aria-busy", "false")
        offered = page.locator("[role=option]:not([aria-disabled])").all_inner_texts()
        wrong = [text for text in offered if re.match("(Cordon|Drain|Set a m|Checkpoint|Cancel|Preempt|Acknow)", text)]
        assert wrong == [], typed
    field_of(page).fill("cordon n1")
    refused = page.get_by_role("option", name="Cordon n1")
    expect(refused).to_contain_text("This needs the scope operate; you have read.")
    field_of(page).press("Enter")
    expect(page.get_by_role("dialog", name="Cordon n1")).to_have_count(0)
    assert axe_violations(page) == []


def test_nothing_found_and_nothing_heard_are_said_apart(visit: Visit) -> None:
    make_fleet(2)
    page = visit("/jobs")
    palette(page)
    page.keyboard.type("no-such-thing")
    expect(page.get_by_role("status").filter(has_text='Nothing is found for "no-such-thing"')).to_be_visible()
    looks_well(page, "nothing")
    page.route(
        re.compile("/api/v1/nodes\\?"),
        lambda route: route.fulfill(status=503, content_type="application/problem+json", body='{"title":"Away"}'),
    )
    field_of(page).fill("queue n")
    failed = page.get_by_role("alert").filter(has_text="Nodes could not be searched: Away")
    expect(failed).to_be_visible()
    field_of(page).fill("queu")
    expect(active(page)).to_have_text("Queue")
    expect(failed).to_be_visible()
    looks_well(page, "error")


def test_incidents_are_searched_on_their_own_page_too(visit: Visit) -> None:
    crowd()
    page = visit("/incidents")
    page.get_by_label("Search incidents").fill("GPU-0977")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=GPU-0977"))
    palette(page)
    page.keyboard.type("rank 977 of")
    expect(active(page)).to_contain_text("Rank 977 of replica 1 on gpu-0977")
