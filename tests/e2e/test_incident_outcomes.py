"""How an incident ended is seen at once, and what needs a person is red until one has it: before the real web
process, over a job that was lost, one whose recovery is under way, and a device that died under no job."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.rank import Phase, Section
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import health_gate
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from tests.e2e.browser import Target, axe_violations, picture, sign_in
from tests.e2e.rows import lost
from tests.integration.backend.builders import Fleet, kill_rank, live_ranks, make_fleet, ref_of, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000


@pytest.fixture
def page(chromium: Browser, real: Target) -> Iterator[Page]:
    """A page of an administrator who is signed in."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    sign_in(context, real)
    yield context.new_page()
    context.close()


def of_the_fleet(fleet: Fleet) -> tuple[Incident, str]:
    """A device that died where nothing runs, and the name of its node."""
    free = Node.objects.filter(devices__ranks=None, devices__reservation=None).latest("name").name
    fleet.tell(free, frames.XidSeen(XidEvent(index=1, xid=79)))
    reconcile_fleet()
    return Incident.objects.get(job=None), free


def test_the_overview_names_the_lost_job_and_the_dead_device(page: Page, real: Target) -> None:
    fleet = make_fleet(6)
    lost(fleet)
    _, name = of_the_fleet(fleet)
    page.goto(real.url)
    band = page.get_by_role("region", name="Needs attention")
    expect(band).to_contain_text("1 job failed, 1 incident needs hardware")
    expect(band).to_contain_text(f"XID 79 on device 1 of {name}")
    assert "tone-bad" in (band.get_attribute("class") or "")


def test_an_incident_that_is_being_handled_is_counted_apart(page: Page, real: Target) -> None:
    fleet = make_fleet(6)
    job = run_job(fleet)
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    page.goto(real.url)
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("1 incident is being handled")


def test_a_lost_job_has_no_green_and_no_recovery_time_and_can_be_acknowledged(page: Page, real: Target) -> None:
    incident = lost(make_fleet())
    page.goto(f"{real.url}/incidents/{incident.id}")
    head = page.locator("header", has=page.get_by_role("heading", level=1)).first
    expect(page.locator(".badge", has_text="lost").first).to_be_visible()
    expect(page.locator(".figures .badge.tone-ok")).to_have_count(0)
    expect(page.locator(".figures")).to_contain_text("the job failed")
    picture(page, "incident-lost")
    assert axe_violations(page) == []
    head.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("dialog")).to_contain_text("you have seen it")


def test_a_fault_of_the_fleet_is_shown_with_its_node_and_handed_over(page: Page, real: Target) -> None:
    incident, name = of_the_fleet(make_fleet(1))
    page.goto(f"{real.url}/incidents/{incident.id}")
    expect(page.locator(".badge", has_text="needs hardware").first).to_be_visible()
    expect(page.locator(".meta")).to_contain_text(name)
    expect(page.locator(".figures")).to_contain_text("no job was hit")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("dialog")).to_contain_text("yours from now on")


def test_two_replicas_that_stand_still_at_once_are_one_incident_that_says_so(
    page: Page, real: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(4)
    limits = {"max_attempt_restarts": 2, "restarts_per_attempt": 3, "program_restarts_per_window": 5}
    job = run_job(fleet, steps=3, resources={"nodes": 4, "gpus_per_node": 2}, resiliency={"budget": limits})
    for row in live_ranks(job):
        if row.replica.index in (1, 2):
            late = frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 3, 9.0, 5.0, 0.2)
            fleet.tell(row.node.name, late)
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    page.goto(f"{real.url}/incidents/{incident.id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 of 4 replicas are late in step at once")
    expect(page.locator("main")).to_contain_text("what they share (a switch, storage, the input) is the likelier cause")
    expect(page.locator("main")).to_contain_text("2 replicas continue without them; nothing of them is ended")
    picture(page, "incident-few-stalled")
    assert axe_violations(page) == []
    page.goto(f"{real.url}/jobs/{job.id}")
    spent = "0 of 2 of the whole job, 0 of 3 of replicas in this attempt, 0 of 5 after the program ended by itself"
    expect(page.locator("main")).to_contain_text(spent)
    picture(page, "job-few-stalled")
    assert axe_violations(page) == []
