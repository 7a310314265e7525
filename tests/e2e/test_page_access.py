"""The page of access: the audit log with its filter and what is known of its being whole, tokens that are revoked,
agents; and what somebody sees who is no administrator."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from playwright.sync_api import Browser, expect

from controlplane.access import join_tokens, sealing
from controlplane.access.audit import audit
from controlplane.access.models import ApiToken, AuditEntry
from controlplane.access.services import create_api_token
from controlplane.fleet.models import Node
from tests.e2e.browser import Target
from tests.e2e.test_pages_real import DESK, PLACES, look, opened
from tests.integration.backend.builders import make_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
ROWS = 1_000


def log(rows: int) -> None:
    """So many acts, sealed and verified."""
    for number in range(rows):
        actor, act = ("user:ada", "job.cancel") if number % 4 else ("policy", "decision.made")
        states = {"before": {"state": "running"}, "after": {"state": "cancelled"}}
        audit(actor, act, f"job_{number:04d}", reason="the data set was wrong", origin="192.0.2.7", **states)
    sealing.seal_all()


def test_the_log_is_read_filtered_and_says_up_to_which_row_it_was_verified(
    real: Target, chromium: Browser, settings: Any, tmp_path: Path
) -> None:
    log(12)
    settings.STATE_DIR = tmp_path
    call_command("verify_audit", stdout=io.StringIO())
    verified = AuditEntry.raw.exclude(seq=None).count()
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/access", f"access-audit-{place}")
            expect(page.locator(".notice")).to_contain_text(f"Verified up to row {verified}")
            page.get_by_label("Account").fill("policy")
            rows = page.locator("[role=tabpanel] tbody tr")
            expect(rows).to_have_count(AuditEntry.objects.filter(actor="policy").count())
            page.get_by_label("Object").fill("job_0004")
            expect(rows).to_have_count(1)
            rows.first.get_by_text("show").click()
            expect(rows.first).to_contain_text('"cancelled"')
            page.reload()
            expect(page.get_by_label("Object")).to_have_value("job_0004")
            page.get_by_label("Object").fill("nothing-like-it")
            expect(page.get_by_text("No row is like that")).to_be_visible()


def test_what_the_filter_lets_through_is_exported_and_a_token_is_named_with_its_account(
    real: Target, chromium: Browser, tmp_path: Path
) -> None:
    made = create_api_token(User.objects.get(username=real.username), name="nightly", scope="admin")
    audit(f"token:{made.id}", "job.cancel", "job_0001")
    log(3)
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/access?actor=token:{made.id}")
        expect(page.get_by_role("cell", name="user:ana (token nightly)")).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("link", name="Export").click()
        download.value.save_as(tmp_path / "audit.jsonl")
    (row,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (row["actor"], row["subject"], len(row["hash"])) == (f"token:{made.id}", "job_0001", 64)


def test_the_settings_are_shown_with_where_they_come_from(real: Target, chromium: Browser) -> None:
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/access?tab=settings", f"access-settings-{place}")
            page.get_by_label("Search settings").fill("retention")
            expect(page.get_by_role("row", name="HOLDFAST_RETENTION_DAYS")).to_contain_text("30.0 days")
            expect(page.get_by_text("HOLDFAST_BIND")).to_have_count(0)


def test_a_log_that_is_not_whole_is_said_not_to_be_with_the_row(
    real: Target, chromium: Browser, settings: Any, tmp_path: Path
) -> None:
    log(6)
    settings.STATE_DIR = tmp_path
    row = AuditEntry.raw.exclude(seq=None).order_by("seq")[2]
    AuditEntry.raw.filter(pk=row.pk).update(reason="there was none")
    with pytest.raises(SystemExit):
        call_command("verify_audit", stdout=io.StringIO())
    with opened(chromium, real, DESK) as page:
        look(page, real, "/access", f"access-broken-{DESK}")
        expect(page.locator(".notice.tone-bad")).to_contain_text(f"The first: edited: seq {row.seq}")


def test_a_token_of_another_account_is_revoked(real: Target, chromium: Browser) -> None:
    bo = User.objects.create_user("bo")
    nightly = create_api_token(bo, name="nightly", scope="read").id
    for number in range(3):
        create_api_token(User.objects.get(username=real.username), name=f"mine-{number}", scope="operate")
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/access?tab=tokens", f"access-tokens-{place}")
            expect(page.locator("[role=tabpanel] tbody tr")).to_have_count(3)
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/access?tab=tokens")
        page.get_by_role("button", name="All accounts").click()
        page.get_by_role("button", name="Revoke nightly").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("every token that was made with it")
        dialog.get_by_role("button", name="Revoke", exact=True).click()
        expect(dialog.get_by_role("status")).to_contain_text("Revoked.")
        assert ApiToken.objects.get(pk=nightly).revoked_at is not None
        dialog.get_by_role("button", name="Close").last.click()
        expect(page.get_by_role("row", name="nightly")).to_contain_text("revoked")


def test_agents_show_their_enrolment_and_join_tokens_are_revoked(real: Target, chromium: Browser) -> None:
    make_fleet(4)
    Node.objects.filter(name="n2").update(held=True, state="quarantined", state_reason="waits for an administrator")
    Node.objects.filter(name="n3").update(agent_version="0.0.9", connected=False)
    made = join_tokens.create(join_tokens.Binding(name_pattern="gpu-a1-*"), uses=8, ttl_s=3600.0, actor="user:ana")
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/access?tab=agents", f"access-agents-{place}")
            expect(page.get_by_role("row", name="n2")).to_contain_text("waits for an administrator")
            expect(page.get_by_role("row", name="n3")).to_contain_text("the server is")
    with opened(chromium, real, DESK) as page:
        page.goto(f"{real.url}/access?tab=agents")
        page.get_by_role("button", name="Revoke the join token for gpu-a1-*").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("Revoked.")
    assert join_tokens.JoinToken.objects.get(pk=made.id).revoked_at is not None


def test_who_is_no_administrator_sees_only_tokens_of_his_own(real: Target, chromium: Browser) -> None:
    user = User.objects.get(username=real.username)
    user.groups.set([Group.objects.get_or_create(name="read")[0]])
    create_api_token(User.objects.create_user("bo"), name="theirs", scope="read")
    with opened(chromium, real, DESK) as page:
        look(page, real, "/access?tab=audit", f"access-reader-{DESK}")
        expect(page.get_by_role("tab")).to_have_text(["API tokens"])
        expect(page.get_by_text("No API tokens")).to_be_visible()
        expect(page.get_by_role("group", name="Whose tokens")).to_have_count(0)


def test_a_thousand_rows_are_reached_to_the_last(real: Target, chromium: Browser) -> None:
    log(ROWS)
    whole = AuditEntry.objects.count()
    with opened(chromium, real, DESK) as page:
        look(page, real, "/access", f"thousand-access-{DESK}", whole=False)
        more = page.get_by_role("button", name="Show more")
        rows = page.locator("[role=tabpanel] tbody tr")
        while more.count():
            shown = rows.count()
            more.click()
            expect(rows.nth(shown)).to_be_attached(timeout=60_000)
            expect(page.get_by_role("button", name="Loading...")).to_have_count(0, timeout=60_000)
        assert rows.count() >= whole
