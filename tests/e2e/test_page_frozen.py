"""A page that is frozen at a moment of its address, before the real web process: what it shows is what was so then, and
what is not kept for that moment is said to be so."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from controlplane.fleet.models import Device, Node
from controlplane.fleet.services import cordon, set_device_health
from controlplane.jobs.models import Job
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import iso, now
from tests.e2e.browser import Target, axe_violations
from tests.e2e.rows import history
from tests.e2e.test_pages_real import DESK, look_at_it_narrow, look_in_the_dark, picture, quiet
from tests.integration.backend.builders import commit_step, join_all, kill_rank, live_ranks, make_fleet, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
STEPS = 12


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """Of an administrator; it does not complain."""
    with quiet(chromium, real) as shown:
        yield shown


@pytest.fixture
def lost(real: Target) -> tuple[Job, str]:
    """A job that trained, and then lost a rank and continued; and a moment between the two."""
    fleet = make_fleet()
    job = run_job(fleet, steps=STEPS)
    time.sleep(0.05)
    between = iso(now())
    assert between is not None
    time.sleep(0.05)
    kill_rank(fleet, next(row for row in live_ranks(job) if row.replica.index == 1))
    reconcile_job(job.id)
    join_all(fleet, job)
    for step in range(STEPS, STEPS + 4):
        commit_step(fleet, job, step)
    job.refresh_from_db()
    return job, between


def figure(page: Page, name: str) -> Locator:
    """The value of one key figure."""
    return page.locator(".figure").filter(has=page.get_by_text(name, exact=True)).locator(".figure-value")


def looks_well(page: Page, name: str) -> None:
    """In light, dark and on a phone."""
    page.wait_for_load_state("networkidle")
    picture(page, f"{name}-{DESK}")
    assert axe_violations(page) == []
    look_in_the_dark(page, f"{name}-{DESK}")
    look_at_it_narrow(page, name)


def test_a_job_is_shown_as_it_was_and_back_to_live_as_it_is(page: Page, real: Target, lost: tuple[Job, str]) -> None:
    job, between = lost
    incident = Incident.objects.get(job=job)
    page.goto(f"{real.url}/jobs/{job.id}?at={between}")
    main = page.locator("main")
    expect(page.get_by_role("status").filter(has_text="Frozen at")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^frozen at"))).to_be_visible()
    expect(main).to_contain_text(f"step {STEPS} of")
    expect(figure(page, "Restarts / evictions")).to_have_text("0 / 0")
    expect(figure(page, "Replicas")).to_have_text("3 / 3")
    lifeline = page.get_by_role("group", name=re.compile("^Lifeline: 3 replica slots, 3 incarnations, 0 incidents"))
    expect(lifeline).to_be_visible()
    page.get_by_role("tab", name="Incidents").click()
    expect(page.get_by_text("No incident is known until then")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Cancel job|Checkpoint now|Evict"))).to_have_count(0)
    expect(main).not_to_contain_text(incident.title)
    expect(page.get_by_role("img", name="Loss by step")).to_be_visible()
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_role("tabpanel").locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("tabpanel")).not_to_contain_text("signal 9")
    looks_well(page, "frozen-job")
    page.get_by_role("button", name="Back to live").click()
    expect(page).not_to_have_url(re.compile("at="))
    expect(main).to_contain_text(f"step {STEPS + 4} of")
    expect(figure(page, "Restarts / evictions")).to_have_text("0 / 1")


def test_an_event_leads_to_its_moment_and_links_stay_in_it(page: Page, real: Target, lost: tuple[Job, str]) -> None:
    job, _ = lost
    page.goto(f"{real.url}/jobs/{job.id}")
    event = page.get_by_role("tabpanel").locator("tbody tr").filter(has_text="signal 9").last
    event.get_by_role("button").first.click()
    expect(page).to_have_url(re.compile("at=20"))
    expect(page.get_by_role("status").filter(has_text="Frozen at")).to_be_visible()
    expect(page.get_by_role("tabpanel").locator("tbody tr").first).to_contain_text("signal 9")
    page.get_by_role("button", name="1 m earlier").click()
    expect(page.get_by_text("This job did not exist at that time")).to_be_visible()


def test_a_node_is_shown_as_it_was(page: Page, real: Target) -> None:
    fleet = make_fleet(2)
    node = fleet.nodes["n1"]
    history(node)
    time.sleep(0.05)
    between = iso(now())
    time.sleep(0.05)
    cordon(node.id, reason="new fans", actor="ana")
    set_device_health(Device.objects.get(node=node, index=1), healthy=False, reason="XID 79")
    page.goto(f"{real.url}/nodes/{node.id}")
    expect(page.locator("h1 + .badge")).to_have_text("cordoned")
    page.goto(f"{real.url}/nodes/{node.id}?at={between}")
    expect(page.locator("h1 + .badge")).to_have_text(Node.objects.get(name="n2").state)
    devices = page.get_by_role("region", name="Devices").locator("tbody tr")
    expect(devices).to_have_count(2)
    expect(devices.nth(1)).to_contain_text("healthy")
    expect(devices.nth(1)).not_to_contain_text("unhealthy")
    expect(page.locator("main")).not_to_contain_text("new fans")
    expect(page.locator("main")).not_to_contain_text("XID 79")
    expect(page.get_by_role("img", name="Temperature").first).to_be_visible()
    looks_well(page, "frozen-node")


def test_a_moment_of_which_nothing_is_kept_shows_nothing_of_today(page: Page, real: Target) -> None:
    node = make_fleet(1).nodes["n1"]
    before = iso(now() - timedelta(days=400))
    page.goto(f"{real.url}/nodes/{node.id}?at={before}")
    expect(page.get_by_text("state not kept for this time")).to_be_visible()
    expect(page.get_by_text("No reading is kept for this time")).to_be_visible()
    expect(page.get_by_text("No event is kept for this time")).to_be_visible()
    expect(page.get_by_text("Nothing of its devices is kept for this time")).to_be_visible()
    looks_well(page, "frozen-nothing")


@pytest.mark.parametrize("text", ["yesterday", "2099-01-01T00:00:00Z", "2026-11-29T13:59:00"])
def test_what_is_no_past_instant_is_said_and_is_no_live_page(page: Page, real: Target, text: str) -> None:
    node = make_fleet(1).nodes["n1"]
    page.goto(f"{real.url}/nodes/{node.id}?at={quote(text)}")
    expect(page.get_by_text("This page cannot be shown as of that time")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("Receives work")
    page.get_by_role("button", name="Back to live").click()
    expect(page.locator("main")).to_contain_text("Receives work")


def test_the_button_freezes_at_now_and_pause_is_as_it_was(page: Page, real: Target) -> None:
    node = make_fleet(1).nodes["n1"]
    page.goto(f"{real.url}/nodes/{node.id}")
    page.get_by_role("button", name="Freeze").click()
    expect(page).to_have_url(re.compile(r"at=20\d\d-"))
    page.get_by_role("button", name=re.compile("^frozen at")).click()
    expect(page.locator("main")).to_contain_text("Receives work")
    page.get_by_role("button", name=re.compile("^live")).click()
    expect(page.get_by_role("button", name=re.compile("^paused"))).to_be_visible()
