"""Up to which row the audit log was verified, and the tokens of all accounts: what administrators read."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from controlplane.access import sealing, verdicts
from controlplane.access.append_only import AppendOnlyError
from controlplane.access.audit import audit
from controlplane.access.models import AuditEntry, AuditVerdict
from controlplane.access.services import create_api_token

pytestmark = pytest.mark.django_db


def sealed(rows: int) -> None:
    """So many rows more, in the chain."""
    for number in range(rows):
        audit("user:ada", "job.cancel", f"job_{number}")
    sealing.seal_all()


def verify(settings: Any, where: Path) -> None:
    """As an operator does each day."""
    settings.STATE_DIR = where
    try:
        call_command("verify_audit", stdout=io.StringIO())
    except SystemExit as end:
        assert end.code == 1


def test_a_log_that_nobody_has_verified_says_so(caller: Any) -> None:
    state = caller("admin").get("/audit/state").json()
    assert (state["verified"], state["whole"], state["at"], state["seq"]) == (False, None, None, None)


def test_it_is_verified_up_to_the_row_that_was_the_last_one_then(caller: Any, settings: Any, tmp_path: Path) -> None:
    ada = caller("admin")
    sealed(5)
    head = AuditEntry.raw.exclude(seq=None).order_by("-seq").first()
    assert head is not None
    verify(settings, tmp_path)
    sealed(3)
    state = ada.get("/audit/state").json()
    assert (state["verified"], state["whole"], state["seq"], state["rows"]) == (True, True, head.seq, head.seq)
    assert state["newest_seq"] == AuditEntry.raw.exclude(seq=None).count() >= head.seq + 3
    assert state["unsealed"] == AuditEntry.raw.filter(seq=None).count()


def test_what_was_found_is_said_with_the_row(caller: Any, settings: Any, tmp_path: Path) -> None:
    ada = caller("admin")
    sealed(5)
    row = AuditEntry.raw.exclude(seq=None).order_by("seq")[2]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE access_auditentry SET actor = 'user:eve' WHERE id = %s", [row.id])
    verify(settings, tmp_path)
    state = ada.get("/audit/state").json()
    assert (state["whole"], state["broken"]) == (False, 1)
    assert state["first_fault"].startswith(f"edited: seq {row.seq} (id {row.id}): ")


def test_a_verdict_that_holdfast_did_not_write_counts_for_nothing(caller: Any, settings: Any, tmp_path: Path) -> None:
    ada = caller("admin")
    sealed(3)
    verify(settings, tmp_path)
    true = AuditVerdict.objects.get()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO access_auditverdict (at, rows, seq, hash, broken, first_fault, mac)"
            " SELECT at, rows, seq + 900, hash, broken, first_fault, mac FROM access_auditverdict"
        )
    assert ada.get("/audit/state").json()["seq"] == true.seq
    with pytest.raises(AppendOnlyError):
        AuditVerdict.objects.update(seq=1)
    with pytest.raises(AppendOnlyError):
        true.delete()


def test_an_old_verdict_that_is_put_at_the_end_hides_no_newer_one(settings: Any, tmp_path: Path) -> None:
    sealed(2)
    verify(settings, tmp_path)
    sealed(2)
    verify(settings, tmp_path)
    old, new = AuditVerdict.objects.order_by("id")
    old.pk, old._state.adding = None, True
    old.save(force_insert=True)
    found = verdicts.newest()
    assert found is not None and found.seq == new.seq


def test_an_administrator_sees_the_tokens_of_all_accounts_and_nobody_else_does(caller: Any) -> None:
    theirs = create_api_token(User.objects.create_user("bo"), name="nightly", scope="read").id
    reads, admin = caller("read"), caller("admin")
    assert reads.get("/tokens?everybody=true").status_code == 403
    answer = admin.get("/tokens?everybody=true&count=true").json()
    rows = {row["id"]: row for row in answer["items"]}
    assert (rows[theirs]["owner"], rows[theirs]["name"], answer["total"]) == ("bo", "nightly", len(rows))
    assert theirs not in {row["id"] for row in admin.get("/tokens").json()["items"]}
    assert all("token" not in row or row["token"] is None for row in answer["items"])
    assert admin.post(f"/tokens/{theirs}:revoke").status_code == 202
    assert {row["id"]: row for row in admin.get("/tokens?everybody=true").json()["items"]}[theirs]["revoked_at"]


def test_more_tokens_are_no_more_queries(caller: Any, django_assert_max_num_queries: Any) -> None:
    admin = caller("admin")
    for number in range(12):
        create_api_token(User.objects.create_user(f"u{number}"), name="t", scope="read")
    admin.get("/tokens?everybody=true")
    with django_assert_max_num_queries(15):
        assert admin.get("/tokens?everybody=true&count=true").json()["total"] == 13
