"""The overview of a fleet of a thousand nodes: one canvas, its table, and what both say, against the rows."""

import re
from collections.abc import Iterator

import pytest
from django.db.models import Count, Q
from playwright.sync_api import Browser, Locator, Page, expect

from controlplane.fleet.models import Device, Node
from controlplane.fleet.services import cordon, mark_device_lost, set_device_health, set_device_risk
from tests.e2e.browser import Complaints, Target, axe_violations, drawn_to_scale
from tests.e2e.rows import crowd
from tests.e2e.test_pages_real import DESK, look_at_it_narrow, look_in_the_dark, opened, picture

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
SEGMENTS = 5
SOON_MS = 15_000
"""A change is drawn within a second or so; on a machine that does other things."""


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """The overview of a thousand nodes in five segments, of which a few are not well."""
    crowd()
    for segment in range(SEGMENTS):
        Node.objects.filter(name__regex=f"[{2 * segment}{2 * segment + 1}]$").update(segment=f"rack-{segment}")
    for index in (0, 1):
        mark_device_lost(Device.objects.get(node__name="gpu-0500", index=index), "off the bus")
    set_device_health(Device.objects.get(node__name="gpu-0017", index=3), healthy=False, reason="XID 79")
    set_device_risk(Device.objects.get(node__name="gpu-0900", index=5), 0.93)
    for name in ("gpu-0332", "gpu-0333", "gpu-0353"):
        cordon(Node.objects.get(name=name).id, reason="new fans", actor="ana")
    complaints = Complaints(origin=real.url)
    with opened(chromium, real, DESK) as made:
        complaints.watch(made)
        made.goto(real.url)
        expect(said(made)).to_contain_text("1,000 nodes, 8,000 devices")
        yield made
    assert complaints.found == []


def said(page: Page) -> Locator:
    """What the map says of itself in words."""
    return page.get_by_role("region", name="Nodes and devices").get_by_role("status")


def test_what_it_says_is_what_the_rows_say_and_a_fault_is_drawn_without_a_reload(page: Page) -> None:
    lost = Device.objects.filter(present=False).count()
    out = Device.objects.filter(present=True, healthy=False).count()
    at_risk = Device.objects.filter(present=True, healthy=True, risk__gte=0.5).count()
    assert (lost, out, at_risk) == (2, 1, 1)
    expect(said(page)).to_have_text(
        "1,000 nodes, 8,000 devices; 2 off the bus; 1 out of service; 1 at risk; 3 nodes receive no work"
    )
    set_device_health(Device.objects.get(node__name="gpu-0801", index=0), healthy=False, reason="XID 48")
    expect(said(page)).to_contain_text("2 out of service", timeout=SOON_MS)


def test_arrow_keys_read_a_node_aloud_and_enter_opens_it(page: Page) -> None:
    chart = page.get_by_role("application", name=re.compile("Map of the fleet: 1,000 nodes"))
    chart.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        chart.press(key)
    heard = page.locator(".bigmap-said")
    expect(heard).to_contain_text("8 devices: 0 busy, highest risk")
    name = heard.locator("b").inner_text()
    chart.press("Enter")
    expect(page).to_have_url(re.compile("/nodes/node_"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)


def test_the_block_under_the_cursor_is_the_one_that_is_read_and_opened(page: Page) -> None:
    canvas = page.locator(".bigmap canvas")
    assert drawn_to_scale(canvas)
    canvas.hover(position={"x": 30, "y": 40})
    name = page.locator(".bigmap-said b").inner_text()
    assert Node.objects.filter(name=name, segment="rack-0").exists()
    canvas.click(position={"x": 30, "y": 40})
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)


def test_the_table_has_the_worst_first_and_all_of_them(page: Page) -> None:
    panel = page.get_by_role("region", name="Nodes and devices")
    panel.get_by_role("button", name="table").click()
    names = panel.locator("tbody tr td:first-child")
    expect(names.first).to_have_text("gpu-0500")
    assert names.all_inner_texts()[:5] == ["gpu-0500", "gpu-0017", "gpu-0332", "gpu-0333", "gpu-0353"]
    counted = Node.objects.annotate(lost=Count("devices", filter=Q(devices__present=False))).get(name="gpu-0500")
    assert panel.locator("tbody tr").first.locator("td").nth(5).inner_text() == str(counted.lost)
    expect(panel.get_by_text("Showing 100 of 1,000 nodes, the worst first; 6 are not well.")).to_be_visible()
    panel.get_by_role("button", name="Show more").click()
    expect(panel.locator("tbody tr")).to_have_count(200)
    panel.get_by_role("link", name="gpu-0017").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gpu-0017")


def test_the_segment_with_the_most_that_is_not_well_can_come_first(page: Page) -> None:
    chart = page.get_by_role("application", name=re.compile("Map of the fleet"))
    heard = page.locator(".bigmap-said")
    for order, first in (("by name", "rack-0"), ("worst first", worst_segment())):
        page.get_by_role("button", name=order).click()
        chart.press("Home")
        expect(heard).to_contain_text(first)


def worst_segment() -> str:
    """By the rows: of nodes with a device that is lost, out of service or at risk, or that take no work."""
    sick = Q(devices__present=False) | Q(devices__healthy=False) | Q(devices__risk__gte=0.5) | ~Q(state="ready")
    names = [node.segment for node in Node.objects.filter(sick).distinct()]
    return max(set(names), key=names.count)


def test_a_segment_and_a_name_narrow_it_and_stand_in_the_address(page: Page) -> None:
    page.get_by_role("combobox", name="Segment").select_option("rack-1")
    expect(said(page)).to_contain_text(f"{Node.objects.filter(segment='rack-1').count()} of 1,000 nodes")
    page.get_by_label("Find nodes").fill("GPU-033")
    wanted = Node.objects.filter(segment="rack-1", name__contains="gpu-033").count()
    expect(said(page)).to_contain_text(f"{wanted} of 1,000 nodes")
    expect(page).to_have_url(re.compile("segment=rack-1.*find=GPU-033"))
    page.reload()
    expect(said(page)).to_contain_text(f"{wanted} of 1,000 nodes")
    page.get_by_label("Find nodes").fill("nothing-like-it")
    expect(page.get_by_text("No node is both there and named so")).to_be_visible()


@pytest.mark.parametrize("show", ["health", "use", "risk"])
def test_it_is_accessible_and_readable_in_both_colours_and_narrow(page: Page, show: str) -> None:
    page.get_by_role("group", name="What the map shows").get_by_role("button", name=show).click()
    picture(page, f"large-{show}-{DESK}")
    assert axe_violations(page) == []
    look_in_the_dark(page, f"large-{show}-{DESK}")
    page.emulate_media(color_scheme="light")
    look_at_it_narrow(page, f"large-{show}")
