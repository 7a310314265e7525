"""The page of a project shows what it pays for a month: a closed one as it was closed, with what was restated since."""

import pytest
from playwright.sync_api import Browser, expect

from controlplane.recovery import ledger_pass
from controlplane.recovery.bill_models import Bill
from controlplane.recovery.ledger_models import LedgerMark
from controlplane.runtime.clock import now
from tests.e2e.browser import Target
from tests.e2e.test_pages_real import PLACES, look, opened

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(360)]
TERMS = {"classes": ["productive", "recovery"], "incidents": False, "price": 3.0}


def test_a_closed_month_and_what_the_ledger_says_of_it_now_and_a_month_without_devices(
    real: Target, chromium: Browser
) -> None:
    ledger_pass.build()
    LedgerMark.objects.update(began_s=0.0)
    entries = [
        ["job_1", "first-light", "productive", False, True, 72_000.0],
        ["job_1", "first-light", "recovery", False, True, 3_600.0],
        ["job_1", "first-light", "recovery", True, False, 7_200.0],
    ]
    Bill.objects.create(
        project="default", month="2026-01", closed_at=now(), terms=TERMS, currency="EUR", entries=entries,
        known_since_s=0.0,
    )  # fmt: skip
    for place in PLACES:
        with opened(chromium, real, place) as page:
            look(page, real, "/projects/default?month=2026-01", f"project-bill-{place}")
            rows = page.locator("table", has_text="Due to").locator("tbody tr")
            expect(rows.nth(0)).to_contain_text("productive")
            expect(rows.nth(0)).to_contain_text("60.00 EUR")
            expect(rows.nth(2)).to_contain_text("an incident")
            expect(rows.nth(2)).to_contain_text("no")
            expect(rows.nth(3)).to_contain_text("21.0 GPU-h")
            expect(rows.nth(3)).to_contain_text("63.00 EUR")
            expect(rows.nth(4)).to_contain_text("Restated since it was closed: -21.0 GPU-h, -63.00 EUR.")
            expect(rows.nth(5)).to_contain_text("does not change any more")
            page.get_by_label("Month (UTC)").fill("2025-12")
            expect(page.get_by_text("Its jobs held no device in this month")).to_be_visible()
