"""What a person does on the page beside requests (test_page_orders): a spec that is written, a fault with a value, a
job that ended long ago, what a figure rests on, the skip link. Before the real web process."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from pytest_django.fixtures import Settings

from controlplane.jobs.maturity import FEATURES
from controlplane.jobs.models import Job, JobPace
from controlplane.runtime.clock import now
from tests.e2e.browser import Target, picture, sign_in
from tests.e2e.rows import lost
from tests.e2e.test_page_orders import looks_well
from tests.integration.backend.builders import make_fleet, run_job
from tests.integration.backend.test_effective_time import Told

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000
Visit = Callable[..., Page]


@pytest.fixture
def visit(chromium: Browser, real: Target) -> Iterator[Visit]:
    """visit("/nodes"): a page of a fresh browser profile of an administrator."""
    made: list[BrowserContext] = []

    def open_page(path: str, *, clock: bool = False) -> Page:
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC"
        )
        context.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)
        made.append(context)
        sign_in(context, real)
        page = context.new_page()
        if clock:
            page.clock.install()
        page.goto(real.url + path)
        return page

    yield open_page
    for context in made:
        context.close()


def test_a_spec_that_is_being_written_is_kept_and_a_check_shows_each_fix(visit: Visit) -> None:
    page = visit("/jobs/new")
    text = page.get_by_role("textbox", name="Job spec")
    text.fill("metadata: {name: mine}\nspec:\n  parallelism: {tp: 3}\n")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".faults")).to_contain_text("make heads a multiple of 3, or change tp")
    text.press("End")
    text.type(" ")
    expect(page.get_by_text("This result is for the text before your last change.")).to_be_visible()
    picture(page, "submit-checked")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Nodes").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
    page.go_back()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("name: mine"))
    page.reload()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("name: mine"))
    page.get_by_role("button", name="Start again from the example").click()
    expect(page.get_by_role("textbox", name="Job spec")).to_have_value(re.compile("my-first-job"))


def test_who_may_only_read_sees_every_button_and_why_not(visit: Visit, real: Target) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    User.objects.get(username=real.username).groups.set([Group.objects.get_or_create(name="read")[0]])
    page = visit(f"/jobs/{job.id}")
    of_job = f"This needs the scope operate in the project {job.project}; you have read."
    for name in ("Checkpoint now", "Preempt", "Cancel job", "Evict replica 0"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
        expect(page.get_by_role("button", name=name)).to_have_attribute("title", of_job)
    page.goto(f"{real.url}/nodes/{fleet.nodes['n1'].id}")
    for name in ("Drain", "Maintain", "Cordon", "Uncordon"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name="Drain")).to_have_attribute(
        "title", "This needs the scope operate; you have read."
    )
    User.objects.get(username=real.username).groups.set([Group.objects.get_or_create(name="operate")[0]])
    page.reload()
    expect(page.get_by_role("button", name="Drain")).to_be_enabled()


def test_beside_the_spec_of_a_job_stands_how_mature_each_feature_is(visit: Visit) -> None:
    page = visit(f"/jobs/{run_job(make_fleet()).id}?tab=spec")
    table = page.get_by_role("region", name="How mature each feature is").first
    expect(table.locator("tbody tr")).to_have_count(len(FEATURES))
    for each in FEATURES:
        row = table.locator("tbody tr", has_text=each.title)
        expect(row).to_contain_text(each.label)
        expect(row).to_contain_text(each.why)
    expect(table).to_contain_text("resiliency.mode: enforce")
    looks_well(page, "maturity")


def test_a_slowed_rank_can_be_healed_with_the_value_zero(visit: Visit, settings: Settings) -> None:
    settings.HOLDFAST_DEMO = True
    run_job(make_fleet())
    page = visit("/")
    page.get_by_role("button", name="Inject a fault").click()
    page.get_by_role("button", name="Slow a rank down").click()
    page.get_by_label("Seconds more a micro-batch (0 heals)").fill("0")
    with page.expect_request(lambda request: request.url.endswith("/demo/faults") and request.method == "POST") as sent:
        page.get_by_role("button", name="Inject: Slow a rank down").click()
    body = json.loads(sent.value.post_data or "{}")
    assert (body["kind"], body["value"]) == ("slow_rank", 0)
    expect(page.locator(".inject .answer")).to_be_visible()


def test_a_job_that_ended_long_ago_is_not_asked_about_again(visit: Visit) -> None:
    ended = lost(make_fleet()).job
    assert ended is not None
    Job.objects.update(finished_at=now() - timedelta(hours=1))
    page = visit(f"/jobs/{ended.pk}", clock=True)
    expect(page.locator(".figures").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.clock.run_for(120_000)
    page.wait_for_function("fetch('/api/v1/version').then(() => true)")
    assert [request.url for request in asked if ended.pk in request.url] == []
    figures = " ".join(page.locator(".figures").all_inner_texts())
    assert "not reported" not in figures
    assert "Work at risk" not in figures
    picture(page, "job-ended")


def test_an_effective_time_says_what_it_rests_on_and_why_there_is_none(visit: Visit) -> None:
    told = Told(age_s=120.0)
    told.new_view(contributors=2)
    told.steps(60, 1.5)
    page = visit(f"/jobs/{told.job.pk}")
    figure = page.locator(".figure", has_text="Effective time (ETTR)")
    expect(figure).to_contain_text(re.compile(r"%\s*estimated, undisturbed step (1.0 s|\d+ ms)"))
    picture(page, "job-estimated")
    page.goto(page.url.rsplit("/jobs/", 1)[0] + "/jobs")
    expect(page.get_by_role("row", name=re.compile("demo"))).to_contain_text(re.compile(r"% estimated"))
    page.goto(page.url.removesuffix("jobs"))
    expect(page.locator(".figure", has_text="Goodput, 24 h")).to_contain_text("estimated, kept steps")
    JobPace.objects.all().delete()
    Job.objects.update(state="succeeded", finished_at=now())
    page = visit(f"/jobs/{told.job.pk}")
    expect(page.locator(".figure", has_text="Effective time (ETTR)")).to_contain_text("not counted")
    expect(page.locator(".figure", has_text="Productivity")).to_contain_text("the job has ended")


def test_the_skip_link_shows_the_heading(visit: Visit) -> None:
    make_fleet(40)
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
