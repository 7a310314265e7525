"""The traceback and the stacks, in a browser, from the real web process over rows that the agents'
own messages made (X5, X10, F-G-2). No agent runs: what one would answer is told in its place."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank
from controlplane.protocol import frames
from controlplane.protocol.states import Phase, Section
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import reconcile_job
from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in
from tests.integration.backend.builders import Fleet, join_all, live_ranks, make_fleet, ref_of, run_job

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
ROOT = 'Traceback (most recent call last):\n  File "train.py", line 7, in main\nValueError: sample 17 is empty\n'
CASCADE = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [127.0.0.1]:4410\n"
REDUCE = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
DATA = '  File "/site-packages/torch/utils/data/dataloader.py", line 7 in __next__\n'
Visit = Callable[[str], Page]


@pytest.fixture
def visit(real: Target, chromium: Browser) -> Iterator[Visit]:
    """visit("/jobs"): a page of the real web process, of an operator who is signed in."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, timezone_id="UTC")
    context.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    sign_in(context, real)
    page = context.new_page()
    complaints = Complaints(origin=real.url)
    complaints.watch(page)

    def open_page(path: str) -> Page:
        page.goto(real.url + path)
        return page

    yield open_page
    context.close()
    assert complaints.found == []


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no sentinel here, and a blind control plane believes no hang."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def crash(fleet: Fleet, rank: Rank, text: str) -> None:
    fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), 1, None, False, text, None))


def crashed() -> tuple[Fleet, Job, list[Rank]]:
    """Both ranks of replica 1 ended, rank 0 because it lost rank 1; the replica lives again."""
    fleet = make_fleet()
    job = run_job(fleet)
    ranks = [row for row in live_ranks(job) if row.replica.index == 1]
    crash(fleet, ranks[0], CASCADE)
    crash(fleet, ranks[1], "".join(f"step {n}\n" for n in range(100)) + ROOT)
    reconcile_job(job.id)
    join_all(fleet, job)
    return fleet, job, ranks


def test_the_traceback_of_the_rank_that_failed_first_stands_in_the_incident(visit: Visit) -> None:
    _, job, ranks = crashed()
    page = visit(f"/incidents/{Incident.objects.get(job=job).id}")
    panel = page.locator("#first-failure")
    expect(panel.get_by_role("heading")).to_have_text("Log of the rank that failed first")
    expect(panel.locator("b").first).to_have_text("ValueError: sample 17 is empty")
    expect(panel).to_contain_text(
        f"rank {ranks[1].rank} of replica 1, incarnation 1 on {ranks[1].node.name}, ended with code 1"
    )
    expect(panel).to_contain_text("2 ranks ended by themselves; the errors of 1 follow from another's end.")
    expect(panel).to_contain_text("Only the end is shown.")
    text = panel.locator("pre").inner_text()
    below = "e => e.scrollHeight > e.clientHeight && e.scrollTop + e.clientHeight >= e.scrollHeight - 2"
    assert panel.locator("pre").evaluate(below), "the end, which says why, is in sight"
    assert text.rstrip().endswith("ValueError: sample 17 is empty")
    assert "Connection closed by peer" not in text
    expect(panel.get_by_role("button", name="Copy")).to_be_visible()
    picture(page, "first-failure")
    assert axe_violations(page) == []


def test_each_life_of_a_rank_has_its_log_and_the_dialog_says_whose_it_is(visit: Visit) -> None:
    _, job, ranks = crashed()
    page = visit(f"/jobs/{job.id}")
    page.get_by_role("button", name=f"Log of rank {ranks[1].rank} of replica 1").click()
    dialog = page.get_by_role("dialog")
    newer = dialog.get_by_role("heading", name=f"Log: replica 1, incarnation 2, rank {ranks[1].rank}")
    expect(newer).to_be_visible()
    expect(dialog).to_contain_text("Nothing has been kept")
    expect(dialog).not_to_contain_text("sample 17 is empty")
    dialog.get_by_role("button", name="incarnation 1", exact=True).click()
    expect(dialog.get_by_role("heading", level=2)).to_have_text(f"Log: replica 1, incarnation 1, rank {ranks[1].rank}")
    expect(dialog).to_contain_text("As it ended.")
    expect(dialog.locator("pre")).to_contain_text("ValueError: sample 17 is empty")
    expect(dialog.get_by_role("button", name="Read it now")).to_have_count(0)
    picture(page, "log-of-an-earlier-life")
    assert axe_violations(page) == []
    dialog.get_by_role("button", name="incarnation 2 (runs)").click()
    expect(newer).to_be_visible()
    expect(dialog.locator("pre")).to_have_count(0)


def test_the_log_of_a_rank_that_runs_is_read_when_it_is_asked_for(visit: Visit) -> None:
    fleet, job, ranks = crashed()
    page = visit(f"/jobs/{job.id}")
    opener = page.get_by_role("button", name=f"Log of rank {ranks[1].rank} of replica 1")
    opener.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Read it now").click()
    expect(dialog).to_contain_text("Asked its agent; the answer appears here.")
    order = Command.objects.get(job=job, kind="collect_stacks", body__look="log")
    assert (order.body["replica"], order.body["incarnation"], order.body["rank"]) == (1, 2, ranks[1].rank)
    rank = next(r for r in live_ranks(job) if (r.replica.index, r.rank) == (1, ranks[1].rank))
    fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), "step 101 loss 3.2", "file", order.id, "log"))
    expect(dialog.locator("pre")).to_have_text("step 101 loss 3.2")
    expect(dialog).to_contain_text("As it ran at")
    picture(page, "log-of-a-living-rank")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


@pytest.mark.usefixtures("sees")
def test_the_stacks_of_the_whole_job_stand_in_groups_in_the_incident(visit: Visit) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    hung = next(row for row in live_ranks(job) if (row.replica.index, row.rank) == (1, 1))
    overdue = frames.RankOverdue(ref_of(hung), Section.STEP, Phase.COMPUTE, 2, 30.0, 5.0, 0.3)
    fleet.tell(hung.node.name, overdue)
    ranks = live_ranks(job)
    reconcile_job(job.id)
    for rank in ranks:
        orders = Command.objects.filter(job=job, kind="collect_stacks", node=rank.node)
        # The hung one has an order of its own, each node one for all the others.
        order = next(o for o in orders if o.body["replica"] == (rank.replica.index if rank.replica.index == 1 else -1))
        text, method = (DATA, "py-spy") if rank == hung else (REDUCE, "faulthandler")
        fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), text, method, order.id, "stacks"))
    page = visit(f"/incidents/{Incident.objects.get(job=job).id}")
    panel = page.locator(".panel", has=page.get_by_role("heading", name="Stacks and Flight Recorders"))
    expect(panel).to_contain_text(f"{len(ranks) - 1} in all_reduce, 1 in the data loader")
    expect(panel).to_contain_text(f"Taken from all {len(ranks)} ranks while they lived.")
    outlier = panel.locator("details", has_text="the data loader").first
    expect(outlier.locator("summary")).to_contain_text("1.1/1")
    outlier.locator("summary").click()
    expect(outlier.locator("pre")).to_contain_text("__next__")
    picture(page, "stacks-in-groups")
    assert axe_violations(page) == []
