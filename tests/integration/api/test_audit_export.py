"""The exported audit log: whole, in order, with what it verifies by, in bounded pages, to administrators."""

import io
import json
from datetime import datetime
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.core.management import call_command

from controlplane.access import chain, exporting, reading, sealing
from controlplane.access.audit import audit
from controlplane.access.models import AuditEntry
from controlplane.access.standing import Standing
from controlplane.access.watch import Watch
from controlplane.api import audit_export
from tests.integration.api.conftest import Caller

pytestmark = pytest.mark.django_db(transaction=True)
ROWS = 7


@pytest.fixture
def admin(caller: Any) -> Caller:
    """An administrator, beside a sealed log."""
    asks: Caller = caller("admin")
    asks.get("/audit")
    for number in range(ROWS):
        audit(f"user:{'ada' if number % 2 else 'bob'}", "job.cancel", f"job_{number}", data={"ratio": 0.1 * number})
    sealing.seal_all()
    return asks


def lines(admin: Caller, query: str = "") -> list[dict[str, Any]]:
    answer = admin.get(f"/audit/export{query}")
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in async_to_sync(whole)(answer).splitlines()]


async def whole(answer: Any) -> bytes:
    return b"".join([part async for part in answer.streaming_content])


def test_it_is_what_the_operators_command_writes_and_verifies_row_by_row(admin: Caller) -> None:
    out = io.StringIO()
    call_command("export_audit", stdout=out)
    told = lines(admin)
    assert told == [json.loads(line) for line in out.getvalue().splitlines()] and len(told) > ROWS
    key, before = chain.keys()[0], chain.GENESIS
    for line in told:
        content = {name: line[name] for name in chain.CONTENT} | {"at": datetime.fromisoformat(line["at"])}
        row = AuditEntry(**content, **{name: line[name] for name in ("id", "seq", "mac", "prev_hash", "hash")})
        assert (chain.row_mac(row, key), chain.link(row, key), row.prev_hash) == (row.mac, row.hash, before)
        before = row.hash


def test_it_takes_the_filters_of_the_list_and_continues_after_a_row(admin: Caller) -> None:
    hers = lines(admin, "?actor=user:ada&action=job.*")
    assert [row["subject"] for row in hers] == ["job_1", "job_3", "job_5"]
    assert lines(admin, f"?actor=user:ada&after_seq={hers[0]['seq']}&limit=1") == hers[1:2]
    assert lines(admin, "?since=2999-01-01T00:00:00Z") == []
    assert admin.get("/audit/export?limit=0").status_code == 422
    assert admin.get("/audit/export?cursor=x").status_code == 400


def test_no_more_than_a_page_is_read_at_once_and_no_row_is_read_twice(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, read = lines(admin), list[int]()
    read_rows = reading.whole
    monkeypatch.setattr(exporting, "PAGE", 2)
    monkeypatch.setattr(reading, "whole", lambda ids: read.append(len(ids)) or read_rows(ids))
    assert lines(admin) == every
    assert max(read) == 2 and sum(read) == len(every)


async def test_it_breaks_off_where_the_reader_may_no_longer_read(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(audit_export, "watch", lambda: watch)
    monkeypatch.setattr(audit_export, "_newest", lambda: 99)
    monkeypatch.setattr(audit_export, "_page", lambda wanted, after, through, size: (after + 1, ["{}\n"]))
    reader = Standing(kind="token", key="tok_404", user_id=0)
    sent = audit_export.stream({}, reader, after_seq=0, limit=None)
    assert await anext(sent) == b"{}\n"
    next(iter(watch.streams)).end("revoked")
    with pytest.raises(PermissionDenied):
        await anext(sent)
