"""A decision that was only recommended, on its page: what it would touch, who said what, how long until it is done."""

import pytest
from playwright.sync_api import Browser, expect

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Node
from controlplane.protocol import spec as specs
from controlplane.protocol.states import Mode
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from tests.e2e.browser import Complaints, Target, axe_violations, picture
from tests.e2e.test_readings_around import SCHEMES, opened
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job
from tests.integration.backend.test_consent import dead_device

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


def recommended(*, act_after_s: float = 0.0) -> Decision:
    """Of a job whose policy only recommends and that lost a rank."""
    fleet = make_fleet(4)
    job = run_job(fleet, steps=5, resiliency=specs.Resiliency(mode=Mode.RECOMMEND, act_after_s=act_after_s))
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    return Decision.objects.get(job=job, mode="recommend")


def test_a_person_sees_what_it_would_do_and_approves_it(real: Target, chromium: Browser) -> None:
    row = recommended()
    with opened(chromium, real, "light") as page:
        complaints = Complaints(origin=real.url)
        complaints.watch(page)
        page.goto(f"{real.url}/decisions/{row.id}")
        panel = page.get_by_role("region", name="Recommended, not carried out")
        expect(panel).to_contain_text("It waits for the approval of a person.")
        expect(panel).to_contain_text("start replica")
        expect(panel).to_contain_text("is expected to cost")
        panel.get_by_role("button", name="Approve").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("still recommends it")
        picture(page, "consent-dialog")
        dialog.get_by_label("Reason").fill("the rank is gone")
        dialog.get_by_role("button", name="Approve").click()
        expect(dialog).to_contain_text("Approved: the next pass carries it out")
        dialog.get_by_text("Close", exact=True).click()
        reconcile_job(row.job_id or "")
        expect(panel).to_contain_text("It was carried out")
        expect(panel).to_contain_text("approved")
        expect(panel.get_by_role("button", name="Approve")).to_be_disabled()
        panel.get_by_role("link", name="see what became of it").click()
        expect(page.locator(".why")).to_contain_text("Approved by")
        assert complaints.found == []
    assert AuditEntry.objects.filter(action="decision.approve", subject=row.id, reason="the rank is gone").exists()


def test_a_countdown_runs_and_a_hold_ends_it(real: Target, chromium: Browser) -> None:
    row = recommended(act_after_s=3600.0)
    for scheme in SCHEMES:
        with opened(chromium, real, scheme) as page:
            page.goto(f"{real.url}/decisions/{row.id}")
            timer = page.get_by_role("timer")
            expect(timer).to_contain_text("unless somebody holds or rejects it")
            picture(page, f"consent-{scheme}")
            assert axe_violations(page) == []
    with opened(chromium, real, "light") as page:
        page.goto(f"{real.url}/decisions/{row.id}")
        page.get_by_role("button", name="Hold").click()
        page.get_by_role("dialog").get_by_label("Reason").fill("I look first")
        page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        expect(page.get_by_role("region", name="Recommended, not carried out")).to_contain_text("It is held.")
    assert Decision.objects.get(pk=row.pk).verdict == "held"


def test_a_recommendation_of_the_fleet_is_approved_there_and_the_next_pass_carries_it_out(
    real: Target, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sentinel runs here, and who does not see the fleet takes nothing out of it."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)
    row = dead_device()
    node = Node.objects.earliest("id")
    with opened(chromium, real, "light") as page:
        page.goto(f"{real.url}/decisions/{row.id}")
        panel = page.get_by_role("region", name="Recommended, not carried out")
        expect(panel).to_contain_text(f"make node {node.name} cordoned")
        panel.get_by_role("button", name="Approve").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("swap it")
        dialog.get_by_role("button", name="Approve").click()
        expect(dialog).to_contain_text("Approved: the next pass carries it out")
        dialog.get_by_text("Close", exact=True).click()
        assert Node.objects.get(pk=node.pk).state == "ready", "a word carries nothing out"
        reconcile_fleet()
        expect(panel).to_contain_text("It was carried out")
        panel.get_by_role("link", name="see what became of it").click()
        expect(page.locator(".why")).to_contain_text("Approved by")
    assert Node.objects.get(pk=node.pk).state == "cordoned"
    assert AuditEntry.objects.filter(action="decision.approve", subject=row.id, reason="swap it").exists()
