"""The page of a job of 512 ranks: one canvas, who is slowest, and one replica as a table, against the rows."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.jobs.models import Job, Rank, RankSpeed, Replica
from controlplane.protocol.states import JobState
from controlplane.runtime.clock import now
from tests.e2e.browser import Target, axe_violations, drawn_to_scale
from tests.e2e.test_pages_real import DESK, look_at_it_narrow, look_in_the_dark, picture, quiet
from tests.integration.api.test_mesh import PARTS, WINDOW, large_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
REPLICAS, TP, PP = 64, 4, 2
SLOW, OUT = (17, 5), 40
"""The replica and rank that is slow; the replica that was evicted."""


def made() -> Job:
    """A job of 64 replicas of eight ranks: one rank slow, one replica evicted with all of its ranks, one rank hung."""
    job = large_job(REPLICAS, tp=TP, pp=PP)
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, committed_step=120)
    Replica.objects.filter(attempt__job=job, index=OUT).update(state="evicted", contributing=False)
    Rank.objects.filter(replica__attempt__job=job, replica__index=OUT).update(state="exited", exit_signal=9)
    Rank.objects.filter(replica__attempt__job=job, replica__index=3, rank=2).update(state="hung")
    for rank in Rank.objects.filter(replica__attempt__job=job).select_related("replica"):
        median_s = (
            3.0 if (rank.replica.index, rank.rank) == SLOW else 1.0 + rank.rank / 100 + rank.replica.index / 10_000
        )
        told = dict.fromkeys(PARTS, WINDOW) | {"step": WINDOW | {"median_s": median_s}}
        RankSpeed.objects.create(rank=rank, told=told, reported_at=now())
    return job


@pytest.fixture
def page(real: Target, chromium: Browser) -> Iterator[Page]:
    """The job's page, drawn."""
    job = made()
    with quiet(chromium, real) as shown:
        shown.goto(f"{real.url}/jobs/{job.id}")
        expect(shown.get_by_role("region", name="Replicas and ranks").get_by_role("status")).to_contain_text(
            "512 ranks"
        )
        yield shown


def test_what_it_says_is_what_the_rows_say(page: Page) -> None:
    said = page.get_by_role("region", name="Replicas and ranks").get_by_role("status")
    ended = Rank.objects.filter(state="exited").count()
    hung = Rank.objects.filter(state="hung").count()
    working = Rank.objects.filter(state="training").count()
    assert ended + hung + working == REPLICAS * TP * PP
    expect(said).to_have_text(
        f"512 ranks in 64 replicas; 1 not contributing; {hung} hung; {working} not reported; {ended} ended"
    )
    assert page.locator(".replica").count() == 0, "no table of 512 ranks"


def test_the_slowest_ten_are_the_slowest_and_lead_to_their_replica(page: Page) -> None:
    slowest = page.get_by_role("region", name="Slowest")
    rows = slowest.locator("tbody tr")
    expect(rows).to_have_count(10)
    speeds = sorted(
        ((-each.told["step"]["median_s"], each.rank.replica.index, each.rank.rank))
        for each in RankSpeed.objects.exclude(rank__state="exited").select_related("rank__replica")
    )
    shown = [(row.locator("td").nth(0).inner_text(), row.locator("td").nth(1).inner_text()) for row in rows.all()]
    assert shown == [(f"replica {replica}", str(rank)) for _, replica, rank in speeds[:10]]
    assert shown[0] == ("replica 17", "5")
    rows.first.get_by_role("button", name="replica 17").click()
    table = page.get_by_role("region", name="Replica 17")
    expect(table.locator("table.ranks tbody tr")).to_have_count(TP * PP)
    expect(page).to_have_url(re.compile("replica=17"))
    page.reload()
    expect(table.locator("table.ranks tbody tr")).to_have_count(TP * PP)
    table.get_by_role("button", name="Close").click()
    expect(table).to_have_count(0)


def test_arrow_keys_read_ranks_and_enter_opens_the_replica(page: Page) -> None:
    chart = page.get_by_role("application", name=re.compile("Ranks of the job: 512 ranks"))
    assert drawn_to_scale(chart.locator("canvas"))
    heard = page.get_by_role("region", name="Replicas and ranks").locator(".bigmap-said")
    chart.press("ArrowDown")
    chart.press("ArrowRight")
    expect(heard).to_contain_text("Replica 0, rank 1")
    expect(heard).to_contain_text("pp 0, tp 1")
    chart.press("ArrowDown")
    expect(heard).to_contain_text("Replica 1, rank 1")
    node = Rank.objects.get(replica__index=1, rank=1).node.name
    expect(heard).to_contain_text(f"{node} gpu")
    chart.press("Enter")
    expect(page.get_by_role("region", name="Replica 1", exact=True)).to_be_visible()


@pytest.mark.parametrize("show", ["state", "step time", "heartbeat"])
def test_it_is_accessible_and_readable_in_both_colours_and_narrow(page: Page, show: str) -> None:
    page.get_by_role("group", name="What the squares show").get_by_role("button", name=show).click()
    name = f"large-job-{show.replace(' ', '-')}"
    picture(page, f"{name}-{DESK}")
    assert axe_violations(page) == []
    look_in_the_dark(page, f"{name}-{DESK}")
    page.emulate_media(color_scheme="light")
    look_at_it_narrow(page, name)
