"""The page of the queue and of capacity: its figures counted device by device, who yields to whom, an answer that does
not come, and 1,000 jobs that wait."""

from collections import Counter

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.fleet.models import Device
from controlplane.jobs.models import Rank
from controlplane.recovery.models import Request
from tests.e2e.browser import Target, picture
from tests.e2e.rows import long_queue, queued
from tests.e2e.test_pages_real import DESK, PLACES, look, opened
from tests.integration.backend.builders import make_fleet

SLOW_MS = 60_000
"""A thousand rows, on a machine that does other things."""
pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]


def figures(page: Page) -> dict[str, str]:
    """Of the head of the page, by their label."""
    return {
        entry.locator("dt").inner_text(): entry.locator(".figure-value").inner_text()
        for entry in page.locator(".figures .figure").all()
    }


def one_by_one() -> Counter[str]:
    """Each device by itself."""
    found: Counter[str] = Counter()
    for device in Device.objects.select_related("node"):
        if Rank.objects.filter(device=device, released_at=None).exists():
            found["In use"] += 1
        elif not device.node.connected or not device.healthy:
            found["Down"] += 1
        elif device.node.state != "ready":
            found[device.node.state.capitalize()] += 1
        else:
            found["Kept as spare" if device.node.devices.filter(reservation__isnull=False).exists() else "Free"] += 1
    return found


def test_the_page_says_who_waits_for_what_who_yields_and_what_each_device_is_for(
    real: Target, chromium: Browser
) -> None:
    urgent = queued(make_fleet(16))
    asked = Request.objects.filter(urgent=urgent)
    assert asked.exists(), "nobody yields"
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/queue", f"queue-{place}")
            shown = figures(page)
            assert {name: int(shown[name]) for name in shown if name != "Devices" and int(shown[name])} == one_by_one()
            rows = page.locator("section[aria-label='Waiting jobs'] tbody tr")
            expect(rows).to_have_count(3)
            expect(rows.nth(0)).to_contain_text("saves and yields to it")
            expect(rows.nth(1)).to_contain_text("urgent (priority 900) is ahead of it")
            expect(rows.nth(2)).to_contain_text("could not hold it if every job ended")
            yields = page.locator("section[aria-label='Who yields to whom'] tbody tr")
            expect(yields).to_have_count(asked.count())
            expect(yields.first).to_contain_text("urgent")
            expect(page.locator("section[aria-label='Expected ends'] tbody tr").first).to_contain_text("it leaves now")


def test_a_queue_that_cannot_be_read_says_so_and_is_asked_again(real: Target, chromium: Browser) -> None:
    with opened(chromium, real, DESK) as page:
        broken = '{"type": "about:blank", "title": "Not now", "status": 500, "detail": "The database is away."}'
        page.route(
            "**/api/v1/queue*",
            lambda route: route.fulfill(status=500, content_type="application/problem+json", body=broken),
        )
        page.goto(f"{real.url}/queue")
        waiting = page.locator("section[aria-label='Waiting jobs']")
        expect(waiting.get_by_role("alert")).to_contain_text("The database is away.")
        expect(page.locator("section[aria-label='Expected ends']")).to_be_visible()
        page.unroute("**/api/v1/queue*")
        waiting.get_by_role("button", name="Try again").click()
        expect(waiting).to_contain_text("No job waits")


def test_a_thousand_jobs_that_wait_are_reached_to_the_last(real: Target, chromium: Browser) -> None:
    queued(make_fleet(16))
    long_queue()
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/queue", f"thousand-queue-{place}", whole=False)
            waiting = page.locator("section[aria-label='Waiting jobs']")
            for shown in (200, 400, 600, 800, 1000):
                expect(page.get_by_text(f"Showing {shown:,} of 1,003 jobs.")).to_be_visible(timeout=SLOW_MS)
                waiting.get_by_role("button", name="Show more").click()
            expect(waiting.locator("tbody tr")).to_have_count(1_003)
            expect(waiting.get_by_role("button", name="Show more")).to_have_count(0)


def test_nodes_are_reserved_and_given_back_on_the_page(real: Target, chromium: Browser) -> None:
    fleet = make_fleet(3)
    kept = Device.objects.filter(node=fleet.nodes["n1"]).count()
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/queue")
        panel = page.locator("section[aria-label='Reserved nodes']")
        expect(panel).to_contain_text("No nodes are reserved")
        panel.get_by_role("button", name="Reserve nodes").click()
        dialog = page.get_by_role("dialog", name="Reserve nodes")
        dialog.get_by_label("Project").select_option("default")
        dialog.locator("select[multiple]").select_option(label="n1")
        dialog.get_by_label("Reason (recorded with your name)").fill("a deadline")
        picture(page, "reserve-nodes")
        dialog.get_by_role("button", name="Reserve", exact=True).click()
        dialog.get_by_role("button", name="Close").last.click()
        row = panel.locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("default")
        expect(row).to_contain_text("a deadline")
        page.reload()
        expect(page.locator(".figures")).to_contain_text("Reserved")
        assert int(figures(page)["Reserved"]) == kept == figures_of_rows()
        picture(page, "reserved-nodes")
        panel.get_by_role("link", name="n1").click()
        expect(page.get_by_text("Only its jobs start here then")).to_be_visible()
        picture(page, "reserved-node")
        page.go_back()
        panel.get_by_role("button", name="Cancel", exact=True).click()
        dialog = page.get_by_role("dialog", name="Cancel the reservation")
        dialog.get_by_label("Reason (recorded with your name)").fill("it is over")
        dialog.get_by_role("button", name="Cancel it").click()
        dialog.get_by_role("button", name="Close").last.click()
        expect(panel).to_contain_text("No nodes are reserved")


def figures_of_rows() -> int:
    """Free devices of reserved nodes, one by one."""
    held = Rank.objects.filter(released_at=None).values("device")
    return Device.objects.filter(node__reservations__over_at=None, node__reservations__isnull=False).exclude(
        pk__in=held
    ).count()  # fmt: skip
