"""Orders of a person on the page, before the real web process: each button is enabled where the server allows the
act and says in its tooltip why not where it does not (N15), asks for a reason, and sends what was asked."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Browser, Locator, Page, expect

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job
from controlplane.protocol.states import JobState, NodeState
from controlplane.recovery.models import Incident
from tests.e2e.browser import Target, axe_violations, picture, sign_in
from tests.integration.backend.builders import job_that_lost_a_rank, make_fleet, run_job
from tests.integration.backend.held import held_node

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000
SCHEMES = {"light": (1440, 900), "dark": (1440, 900), "narrow": (390, 844)}
Visit = Callable[..., Page]


@pytest.fixture
def visit(real: Target, chromium: Browser) -> Iterator[Visit]:
    """visit("/nodes"): a page of an administrator who is signed in."""
    made = []

    def open_page(path: str) -> Page:
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        made.append(context)
        sign_in(context, real)
        page = context.new_page()
        page.goto(real.url + path)
        return page

    yield open_page
    for context in made:
        context.close()


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def refused(page: Page, name: str, why: str) -> None:
    """It cannot be pressed, and says why."""
    expect(button(page, name)).to_be_disabled()
    expect(button(page, name)).to_have_attribute("title", why)


def looks_well(page: Page, name: str) -> None:
    """In light, dark and on a phone: accessible, and no wider than its frame."""
    for scheme, (width, height) in SCHEMES.items():
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": height})
        picture(page, f"{name}-{scheme}")
        assert axe_violations(page) == [], scheme
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), scheme
    page.set_viewport_size({"width": 1440, "height": 900})


def test_the_reason_takes_spaces_and_the_focus_goes_back_to_the_button(visit: Visit) -> None:
    page = visit(f"/nodes/{make_fleet(1).nodes['n1'].id}")
    opener = button(page, "Cordon")
    for leave in ("Escape", "Enter on Keep as it is"):
        opener.click()
        reason = page.get_by_label("Reason (recorded with your name)")
        expect(reason).to_be_focused()
        page.keyboard.type("planned reboot of the rack")
        expect(reason).to_have_value("planned reboot of the rack")
        expect(page.get_by_role("dialog")).to_be_visible()
        if leave == "Escape":
            page.keyboard.press("Escape")
        else:
            page.get_by_role("button", name="Keep as it is").press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(opener).to_be_focused()


def test_every_order_of_a_job_asks_for_its_reason_first(visit: Visit) -> None:
    page = visit(f"/jobs/{run_job(make_fleet()).id}")
    for name in ("Checkpoint now", "Cancel job", "Evict replica 0"):
        button(page, name).click()
        expect(page.get_by_label("Reason (recorded with your name)")).to_be_focused()
        page.keyboard.type("a b")
        expect(page.get_by_label("Reason (recorded with your name)")).to_have_value("a b")
        page.keyboard.press("Escape")
        expect(button(page, name)).to_be_focused()


def test_an_order_after_the_session_ended_asks_to_sign_in_and_is_then_sent(visit: Visit) -> None:
    node = make_fleet(1).nodes["n1"]
    page = visit(f"/nodes/{node.id}")
    button(page, "Cordon").click()
    page.keyboard.type("rack 7 maintenance")
    Session.objects.all().delete()
    button(page, "Cordon").last.click()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog.get_by_label("Password or one-time password")).to_be_focused()
    expect(dialog.get_by_label("User name")).to_have_value("ana")
    picture(page, "sign-in-again")
    assert axe_violations(page) == []
    page.keyboard.type("correct horse battery staple")
    page.keyboard.press("Enter")
    expect(page.get_by_text("n1 takes no new work.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/nodes/node_"))
    assert AuditEntry.objects.get(action="node.cordon").reason == "rack 7 maintenance"


def test_the_buttons_of_a_job_are_what_may_be_done(visit: Visit) -> None:
    job = run_job(make_fleet())
    path = f"/jobs/{job.id}"
    page = visit(path)
    for name in ("Checkpoint now", "Cancel job", "Evict replica 0"):
        expect(button(page, name)).to_be_enabled()
    assert button(page, "Checkpoint now").get_attribute("title") is None
    for state in (JobState.STARTING, JobState.SUCCEEDED):
        Job.objects.update(state=state)
        page.reload()
        refused(page, "Checkpoint now", f"job 'demo' is {state}: only a running job can save")
        refused(page, "Evict replica 0", f"replica 0 of job 'demo' does not run: the job is {state}")
    refused(page, "Cancel job", "job 'demo' has ended: succeeded")
    looks_well(page, "orders-job")


def test_the_buttons_of_a_node_are_what_may_be_done(visit: Visit) -> None:
    node = make_fleet(1).nodes["n1"]
    page = visit(f"/nodes/{node.id}")
    expect(button(page, "Cordon")).to_be_enabled()
    refused(page, "Uncordon", "node 'n1' is ready: it takes work already, and so do its devices")
    expect(button(page, "Confirm")).to_have_count(0)
    Device.objects.filter(index=0).update(healthy=False)
    page.reload()
    expect(button(page, "Uncordon")).to_be_enabled()
    Node.objects.update(state=NodeState.CORDONED)
    page.reload()
    refused(page, "Cordon", "node 'n1' is cordoned: it takes no new work already")
    expect(button(page, "Uncordon")).to_be_enabled()
    Node.objects.update(state=NodeState.QUARANTINED, doubt="two have its key")
    page.reload()
    why = "it is in doubt which machine node 'n1' is (two have its key): `holdfast node confirm n1`"
    refused(page, "Uncordon", why)
    expect(button(page, "Confirm")).to_be_enabled()
    looks_well(page, "orders-node")


def test_a_node_is_cordoned_and_its_buttons_change_places(visit: Visit) -> None:
    page = visit(f"/nodes/{make_fleet(1).nodes['n1'].id}")
    button(page, "Cordon").click()
    page.keyboard.type("its fan is changed")
    button(page, "Cordon").last.click()
    page.get_by_role("button", name="Close").last.click()
    refused(page, "Cordon", "node 'n1' is cordoned: it takes no new work already")
    expect(button(page, "Uncordon")).to_be_enabled()


def test_one_that_waits_for_an_administrator_is_admitted_and_not_uncordoned(visit: Visit) -> None:
    page = visit(f"/nodes/{held_node('gpu-1').id}")
    expect(button(page, "Admit")).to_be_enabled()
    why = "node 'gpu-1' enrolled with a token that holds, and an administrator admits it: `holdfast node confirm gpu-1`"
    refused(page, "Uncordon", why)


def test_an_incident_is_acknowledged_where_it_waits_for_a_person(visit: Visit) -> None:
    _, job = job_that_lost_a_rank()
    incident = Incident.objects.get(job=job)
    page = visit(f"/incidents/{incident.id}")
    expect(button(page, "Acknowledge")).to_be_enabled()
    Incident.objects.update(state="resolved", outcome="recovered")
    page.reload()
    refused(page, "Acknowledge", "the incident is over, and nothing of it waits for a person")
    looks_well(page, "orders-incident")
    Incident.objects.update(outcome="lost")
    page.reload()
    button(page, "Acknowledge").click()
    page.keyboard.type("seen")
    button(page, "Acknowledge").last.click()
    page.get_by_role("button", name="Close").last.click()
    refused(page, "Acknowledge", "user:ana has acknowledged it already: seen")
