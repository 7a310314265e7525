"""Bills from rows: the ledger's seconds while the month goes on, closed once, restated beside it and never changed."""

from typing import Any

import pytest
from django.db.models import F

from controlplane.policy.ledger.bill import ends_s, month_of
from controlplane.protocol.ledger import TimeClass
from controlplane.recovery import bills, ledger_pass
from controlplane.recovery.bill_models import Bill
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.ledger_models import LedgerMark, LedgerRun
from controlplane.recovery.ledger_view import ledger
from controlplane.runtime.clock import now_s
from tests.integration.backend.test_gpu_ledger import Past, story

pytestmark = pytest.mark.django_db
DAY_S = 86_400.0


@pytest.fixture
def month() -> str:
    """In which a job began that still runs; it has been over for more than three days."""
    past = Past(age_s=45 * DAY_S)
    story(past)
    ledger_pass.build()
    return month_of(past.began.timestamp())


def read(month: str, **limits: int) -> dict[str, Any]:
    return bills.bill("default", month, **{"limit": 100} | limits)


def without_moment(bill: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bill.items() if name not in ("judged_until", "as_of_seq", "restated")}


def close_all() -> int:
    written = 0
    while wrote := bills.close_due(now_s()):
        written += wrote
    return written


def test_an_open_bill_is_the_ledger_of_the_project_class_by_class(month: str, settings: Any) -> None:
    settings.GPU_HOUR_PRICE = 3.0
    found, (since_s, until_s) = read(month), ends_s(month)
    of_ledger = ledger(Scope(project="default"), by="class", since_s=since_s, until_s=until_s, limit=500)
    assert (found["state"], found["closed_at"], found["restated"]) == ("open", None, None)
    sums = {of.value: sum(line["gpu_s"] for line in found["lines"] if line["of"] == of) for of in TimeClass}
    assert sums == pytest.approx({each["of"]: each["gpu_s"] for each in of_ledger["classes"]}, abs=1e-6)
    assert found["charged_gpu_s"] + found["not_charged_gpu_s"] == pytest.approx(of_ledger["known_gpu_s"])
    assert sum(line["money"] for line in found["lines"]) == pytest.approx(found["charged_money"])
    assert sum(job["money"] for job in found["jobs"]) == pytest.approx(found["charged_gpu_s"] / 3600.0 * 3.0)
    assert all(line["money"] == 0.0 for line in found["lines"] if not line["charged"])


def test_a_month_is_closed_once_and_neither_terms_nor_price_change_it_later(month: str, settings: Any) -> None:
    settings.GPU_HOUR_PRICE = 3.0
    before = read(month)
    assert close_all() >= 2, "the project's bill, and the month"
    assert close_all() == 0
    assert Bill.objects.filter(month=month).count() == 2
    closed = read(month)
    assert closed["state"] == "closed" and closed["closed_at"] is not None
    settings.GPU_HOUR_PRICE, settings.BILL_CLASSES, settings.BILL_INCIDENTS = 99.0, "stall", True
    assert without_moment(read(month)) == without_moment(closed)
    same = ("charged_gpu_s", "charged_money", "lines", "jobs", "not_charged_gpu_s", "price")
    assert {name: closed[name] for name in same} == {name: before[name] for name in same}
    assert closed["restated"] is None


def test_what_the_ledger_says_later_is_a_line_of_its_own(month: str) -> None:
    close_all()
    closed = read(month)
    LedgerRun.objects.filter(done__gt=10).update(lost=F("done"))
    restated = read(month)
    assert without_moment(restated) == without_moment(closed), "the bill is as it was closed"
    assert restated["restated"]["gpu_s"] < -1.0, "steps that a restart took back are not charged"
    LedgerMark.objects.update(began_s=F("began_s") + 100 * DAY_S)
    assert read(month)["restated"] is None, "what the ledger has forgotten is no restatement"
    assert without_moment(read(month)) == without_moment(closed)


def test_a_month_stays_open_until_late_facts_have_had_their_days(month: str, settings: Any) -> None:
    _, until_s = ends_s(month)
    assert bills.close_due(until_s + 2.9 * DAY_S) == 0
    assert read(month)["state"] == "open"
    assert bills.close_due(until_s + 3.1 * DAY_S) > 0
    assert read(month)["state"] == "closed"
    assert bills.bill("none-such", month, limit=10)["state"] == "closed", "also of a project that had nothing"


def test_jobs_beyond_the_limit_are_in_the_sums(month: str) -> None:
    whole, short = read(month), read(month, limit=0)
    assert (short["jobs"], short["jobs_left_out"]) == ([], len(whole["jobs"]))
    assert short["left_out_gpu_s"] == pytest.approx(whole["charged_gpu_s"])
