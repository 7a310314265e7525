"""The history of the replicas of a job of 512 ranks before the real web process: one canvas, in words and by the
keyboard, against the rows."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.jobs.models import Job, Replica
from controlplane.jobs.services import submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import JobState
from controlplane.recovery.models import Incident
from controlplane.runtime.clock import now
from tests.e2e.browser import Target, axe_violations, drawn_to_scale
from tests.e2e.test_page_large_job import OUT, REPLICAS, made
from tests.e2e.test_pages_real import DESK, look_at_it_narrow, look_in_the_dark, opened, picture, quiet
from tests.integration.api.conftest import SPEC
from tests.integration.api.test_mesh import large_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
REPLACED = 9
"""The slot that has its third incarnation."""


def with_a_past(job: Job) -> None:
    """An hour of it: slot 9 was evicted twice, slot 12 catches up, and an incident is open."""
    began, attempt = now() - timedelta(hours=1), job.attempts.get()
    Job.objects.filter(pk=job.pk).update(created_at=began)
    Replica.objects.filter(attempt=attempt).update(created_at=began, state_since=began + timedelta(minutes=2))
    Replica.objects.filter(attempt=attempt, index=OUT).update(state_since=began + timedelta(minutes=50))
    Replica.objects.filter(attempt=attempt, index=12).update(state="catching_up", state_since=now())
    Replica.objects.filter(attempt=attempt, index=REPLACED).update(
        state="evicted", contributing=False, state_since=began + timedelta(minutes=20)
    )
    for incarnation, state, minute in ((2, "evicted", 21), (3, "active", 41)):
        row = Replica.objects.create(attempt=attempt, index=REPLACED, incarnation=incarnation, state=state)
        created = began + timedelta(minutes=minute)
        Replica.objects.filter(pk=row.pk).update(created_at=created, state_since=created + timedelta(minutes=15))
    Incident.objects.create(id="inc_open", job=job, title="Rank 5 hangs", opened_at=now() - timedelta(minutes=10))


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """Of an administrator; it does not complain."""
    with quiet(chromium, real) as shown:
        yield shown


def test_it_says_what_the_rows_say_and_is_read_by_the_keyboard(page: Page, real: Target) -> None:
    job = made()
    with_a_past(job)
    rows = Replica.objects.filter(attempt__job=job)
    evicted = rows.filter(state="evicted").count()
    page.goto(f"{real.url}/jobs/{job.id}")
    history = page.get_by_role("region", name="History of the replicas")
    expect(history.get_by_role("status")).to_have_text(
        f"{REPLICAS} replicas, {rows.count()} incarnations; {evicted} evicted; 1 without a running incarnation;"
        " 1 incident is open"
    )
    chart = page.get_by_role("application", name=re.compile("^History of the replicas"))
    heard = history.locator(".bigmap-said")
    assert drawn_to_scale(chart.locator("canvas"))
    for _ in range(REPLACED + 1):
        chart.press("ArrowDown")
    expect(heard).to_contain_text(f"Replica {REPLACED}, incarnation 3 of attempt 1")
    chart.press("ArrowLeft")
    expect(heard).to_contain_text(f"Replica {REPLACED}, incarnation 2 of attempt 1")
    expect(heard).to_contain_text("over: evicted")
    chart.press("ArrowUp")
    expect(heard).to_contain_text(f"Replica {REPLACED - 1}, incarnation 1")
    chart.press("Enter")
    expect(page.get_by_role("region", name=f"Replica {REPLACED - 1}", exact=True)).to_be_visible()
    history.get_by_role("button", name="10 m").click()
    expect(page).to_have_url(re.compile("range=10m"))
    history.get_by_role("button", name="all").click()
    page.goto(f"{real.url}/jobs/{job.id}")
    expect(history.get_by_role("status")).to_contain_text(f"{REPLICAS} replicas")
    history.scroll_into_view_if_needed()
    picture(page, f"replica-history-{DESK}")
    assert axe_violations(page) == []
    look_in_the_dark(page, f"replica-history-{DESK}")
    look_at_it_narrow(page, "replica-history")


def test_frozen_it_shows_who_was_there_then_and_nobody_of_later(page: Page, real: Target) -> None:
    job = made()
    with_a_past(job)
    began = Job.objects.get(pk=job.pk).created_at
    page.goto(f"{real.url}/jobs/{job.id}?at={(began + timedelta(minutes=30)).isoformat().replace('+00:00', 'Z')}")
    history = page.get_by_role("region", name="History of the replicas")
    expect(history.get_by_role("status")).to_have_text(f"{REPLICAS} replicas, {REPLICAS + 1} incarnations; 1 evicted")
    expect(page.get_by_role("region", name="Loss and step time")).to_contain_text("No step is kept for this time")
    chart, heard = page.get_by_role("application", name=re.compile("^History")), history.locator(".bigmap-said")
    for _ in range(OUT + 1):
        chart.press("ArrowDown")
    expect(heard).to_contain_text(f"Replica {OUT}, incarnation 1 of attempt 1 state not kept")
    picture(page, "replica-history-frozen")


def test_a_thousand_replicas_take_no_more_room_and_no_rank_is_read_for_them(page: Page, real: Target) -> None:
    job = large_job(1_000)
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING)
    answers: list[str] = []
    page.on("response", lambda answer: answers.append(answer.text()) if "/replicas?" in answer.url else None)
    page.goto(f"{real.url}/jobs/{job.id}")
    history = page.get_by_role("region", name="History of the replicas")
    expect(history.get_by_role("status")).to_have_text("1,000 replicas, 1,000 incarnations")
    assert history.locator("canvas").evaluate("canvas => canvas.clientHeight") <= 430
    assert page.locator(".lifeline").count() == 0
    assert answers and not any('"ranks"' in answer for answer in answers)
    page.wait_for_load_state("networkidle")
    history.scroll_into_view_if_needed()
    picture(page, "replica-history-thousand", whole=False)


def test_one_that_fails_to_be_read_leaves_the_rest_of_the_page(real: Target, chromium: Browser) -> None:
    job = made()
    with opened(chromium, real, DESK) as page:
        page.route(
            re.compile("/replicas\\?fields="),
            lambda route: route.fulfill(status=404, content_type="application/problem+json", body='{"title":"Gone"}'),
        )
        page.goto(f"{real.url}/jobs/{job.id}")
        history = page.get_by_role("region", name="History of the replicas")
        expect(history.get_by_role("alert")).to_contain_text("Gone")
        expect(page.get_by_role("region", name="Replicas and ranks").get_by_role("status")).to_contain_text("512 ranks")
        picture(page, "replica-history-error")


def test_a_large_job_that_has_not_begun_says_so(page: Page, real: Target) -> None:
    spec = lint(SPEC).spec
    assert spec is not None
    job = submit_job(spec, owner="ada", actor="user:ada")
    large = {"tp": 8, "pp": 8, "cp": 1, "ep": 1, "replica_dp": 1}
    job.attempts.create(number=1, layout=large, replicas=64, checkpoint_dir="/x")
    page.goto(f"{real.url}/jobs/{job.id}")
    history = page.get_by_role("region", name="History of the replicas")
    expect(history).to_contain_text("No replica has been started yet")
    picture(page, "replica-history-empty")
