"""Who can write to the audit table hides no row by its place in it, and no row ends the sealing, the
verifying or the reading of the others."""

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client

from controlplane.access import sealing
from controlplane.access.audit import audit
from controlplane.access.models import AuditEntry
from controlplane.access.sealing import ROOM
from controlplane.access.services import create_api_token
from controlplane.access.verification import LATE, verify
from controlplane.runtime.clock import now
from tests.attacks.api.test_v22_audit_chain import sql, verified

pytestmark = pytest.mark.django_db
ROWS, LAST = 6, 2**63 - 1
COLUMNS = (
    "at", "actor", "action", "subject", "reason", "request_id", "origin", "decision_id", "data", "mac", "prev_hash",
    "hash", "id", "seq",
)  # fmt: skip
DEEP, LONG = "[" * 980 + "]" * 980, f"[1{'0' * 5000}]"
"""JSON that a database takes and Python's reader does not."""
SQLITE = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has the columns' types")
POSTGRES = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has no such time")


@pytest.fixture
def log(db: None, settings: Any, tmp_path: Path) -> list[AuditEntry]:
    """Sealed rows, with room for lower ids."""
    settings.STATE_DIR = tmp_path
    for number in range(ROWS):
        audit("user:ada", "job.cancel", f"job_{number}")
    sealing.seal_all()
    return list(AuditEntry.raw.order_by("seq"))


def forge(*, raw: str = "%s", **values: Any) -> int:
    """A row of the attacker's; its id. `raw`: how SQL writes the last of `values`."""
    row = {
        "at": now(), "actor": "user:eve", "action": "job.read", "subject": "y", "reason": "", "request_id": "",
        "origin": "", "decision_id": "", "data": "{}", "mac": "e" * 64, "prev_hash": "", "hash": "",
        "id": (AuditEntry.raw.order_by("-id").values_list("id", flat=True).first() or 0) + 1000, "seq": None,
    }  # fmt: skip
    last = list(values)[-1] if values else "seq"
    row |= values
    marks = ", ".join(raw if name == last else "%s" for name in COLUMNS)
    sql(f"INSERT INTO access_auditentry ({', '.join(COLUMNS)}) VALUES ({marks})", *(row[name] for name in COLUMNS))
    return int(row["id"])


def told(**options: Any) -> list[tuple[str, str]]:
    return [(fault.kind, fault.row) for fault in verify(**options).faults]


def goes_on(action: str = "job.pause") -> None:
    """What is written after the attack is sealed, each on the one before."""
    for number in range(3):
        audit("user:ada", action, f"after_{number}")
        sealing.Sweeper().sweep()
    assert not AuditEntry.raw.filter(action=action, seq=None).exists()
    for row in AuditEntry.raw.filter(action=action).only("seq", "prev_hash"):
        before = AuditEntry.raw.filter(seq__lt=row.seq, seq__gt=0).order_by("-seq").values_list("seq", flat=True)[0]
        assert AuditEntry.raw.filter(seq=before, hash=row.prev_hash).exists()


@pytest.mark.parametrize("seq", [0, -1, -LAST])
def test_a_row_below_the_first_one_is_named(log: list[AuditEntry], seq: int) -> None:
    forged = forge(id=-5, seq=seq)
    assert told() == [("misplaced", f"seq {seq} (id {forged})")]
    goes_on()
    assert told() == [("misplaced", f"seq {seq} (id {forged})")]


def test_a_row_that_was_pruned_does_not_come_back(log: list[AuditEntry], tmp_path: Path) -> None:
    kept = log[2]
    call_command("prune_audit", "--keep-days", "0", "--export", str(tmp_path / "old.jsonl"), stdout=io.StringIO())
    assert told() == []
    kept.pk = kept.id
    AuditEntry.raw.bulk_create([kept])
    assert told() == [("misplaced", f"seq {kept.seq} (id {kept.id})")]


@pytest.mark.parametrize("seq", [LAST, LAST - 1, ROOM, ROOM - 1, 100])
def test_a_row_far_above_the_last_one_is_named_and_ends_no_sealing(log: list[AuditEntry], seq: int) -> None:
    forged = forge(seq=seq, hash="f" * 64)
    found = told()
    assert found == [("missing", f"seq {ROWS + 1} to {seq - 1}"), ("edited", f"seq {seq} (id {forged})")]
    goes_on()
    assert ("edited", f"seq {seq} (id {forged})") in told()
    assert len(told()) == 2


def test_an_end_that_was_cut_is_told_also_under_a_forged_row(log: list[AuditEntry]) -> None:
    head = sealing.head()
    sql("DELETE FROM access_auditentry WHERE seq > 4")
    forge(seq=LAST)
    assert ("cut off", "seq 5") in told(anchors=[head])


def test_many_forged_rows_above_all_numbers_leave_the_chain_where_it_was(log: list[AuditEntry]) -> None:
    for number in range(30):
        forge(seq=LAST - number, hash="f" * 64)
    goes_on()
    own = AuditEntry.raw.filter(actor="user:ada").order_by("seq")
    assert list(own.values_list("seq", flat=True)) == list(range(1, ROWS + 4))
    assert verify().broken > 30


@pytest.mark.parametrize("seq", [LAST, ROWS, ROWS + 1, 0])
def test_a_forged_anchor_hides_no_row_and_ends_no_sealing(log: list[AuditEntry], seq: int) -> None:
    values = (now(), seq, "f" * 64, "0" * 64)
    sql("INSERT INTO access_auditanchor (at, seq, hash, mac) VALUES (%s, %s, %s, %s)", *values)
    sql("UPDATE access_auditentry SET actor = 'user:eve' WHERE id = %s", log[2].id)
    row = ("edited", f"seq {log[2].seq} (id {log[2].id})")
    assert told() == [("edited", f"anchor at seq {seq}"), row]
    goes_on()
    assert row in told()


def test_forged_rows_that_wait_with_ids_below_all_others_are_each_named(log: list[AuditEntry]) -> None:
    ids = [forge(id=-number) for number in (1, 2, 3)]
    named = [row for kind, row in told() if kind == "edited"]
    assert named == [f"id {one} (not sealed)" for one in sorted(ids)]
    goes_on()
    named = [row for kind, row in told() if kind == "edited"]
    assert len(named) == len(ids) and all(f"(id {one})" in "".join(named) for one in ids)


def test_a_row_taken_out_of_the_chain_leaves_its_gap(log: list[AuditEntry]) -> None:
    sql("UPDATE access_auditentry SET seq = NULL, prev_hash = '', hash = '' WHERE id = %s", log[2].id)
    assert told() == [("missing", "seq 3")]
    goes_on()
    assert ("missing", "seq 3") in told()


def test_a_row_that_was_kept_back_and_put_in_later_is_named(log: list[AuditEntry], tmp_path: Path) -> None:
    audit("user:ada", "token.create", "tok_1")
    kept = AuditEntry.raw.get(seq=None)
    columns = {name: getattr(kept, name) for name in COLUMNS if name not in ("data", "seq")}
    sql("DELETE FROM access_auditentry WHERE id = %s", kept.id)
    late = kept.at + LATE + timedelta(minutes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controlplane.access.audit.now", lambda: late)
        audit("user:ada", "x", "y")
    sealing.seal_all()
    forged = forge(**columns)
    sealing.seal_all()
    seq = AuditEntry.raw.get(id=forged).seq
    assert told() == [("late", f"seq {seq} (id {forged})")]
    # A clock that was set back does the same, so it can be pruned away; anything else still cannot.
    verdict = verify()
    assert (verdict.broken, verdict.late) == (1, 1)
    call_command("prune_audit", keep_days=0, export=tmp_path / "pruned")
    assert (tmp_path / "pruned").read_text()


def test_two_rows_of_one_number_are_told_where_the_table_lost_its_constraints(log: list[AuditEntry]) -> None:
    audit("user:ada", "waits", "z")
    sql("ALTER TABLE access_auditentry RENAME TO whole")
    sql("CREATE TABLE access_auditentry AS SELECT * FROM whole")
    forged = forge(seq=log[2].seq)
    copied, twin = [name for name in COLUMNS if name != "id"], log[-1].id + 50_000
    sql(
        f"INSERT INTO access_auditentry (id, {', '.join(copied)}) SELECT {twin}, {', '.join(copied)}"
        f" FROM access_auditentry WHERE id = {log[4].id}"
    )
    found = told()
    assert ("edited", f"seq 3 (id {forged})") in found
    assert ("misplaced", f"seq 5 (id {twin})") in found and ("repeated", f"seq 5 (id {twin})") in found
    assert sealing.seal_all() == 1
    assert AuditEntry.raw.get(action="waits").seq == ROWS + 1


UNREADABLE = [
    pytest.param({"data": DEEP}, "%s", id="deep"),
    pytest.param({"data": LONG}, "%s", id="long"),
    pytest.param({"at": "infinity"}, "%s", id="infinity", marks=POSTGRES),
    pytest.param({"at": "2026-13-45 00:00:00"}, "%s", id="no day", marks=SQLITE),
    pytest.param({"at": "yesterday"}, "%s", id="no time", marks=SQLITE),
    pytest.param({"at": 7}, "%s", id="a number", marks=SQLITE),
    pytest.param({"actor": b"\xff"}, "%s", id="bytes", marks=SQLITE),
    pytest.param({"actor": b"\xff"}, "CAST(%s AS TEXT)", id="no text", marks=SQLITE),
    pytest.param({"mac": b"\xff"}, "CAST(%s AS TEXT)", id="no digest", marks=SQLITE),
]


@pytest.mark.parametrize(("column", "raw"), UNREADABLE)
def test_a_row_that_cannot_be_read_is_named_and_ends_nothing(
    log: list[AuditEntry], column: dict[str, Any], raw: str, client: Client, tmp_path: Path
) -> None:
    waiting = forge(action="decision.made", raw=raw, **column)
    assert told() == [("edited", f"id {waiting} (not sealed)")]
    goes_on()
    assert any(f"id {waiting}" in row for _, row in told())
    sealed = forge(seq=50, raw=raw, **column)
    assert any(f"id {sealed}" in row for _, row in told())
    code, text = verified()
    assert (code, "NOT WHOLE" in text) == (1, True)
    goes_on("job.resume")
    secret = create_api_token(User.objects.create_superuser("root"), name="r", scope="admin").secret
    answer = client.get("/api/v1/audit?limit=500", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
    listed = {item["id"]: item["action"] for item in answer.json()["items"]}
    assert {waiting, sealed, *(row.id for row in log)} <= set(listed)
    out = io.StringIO()
    call_command("export_audit", "--output", str(tmp_path / "all.jsonl"), stdout=out, stderr=out)


@SQLITE
@pytest.mark.parametrize("seq", ["text", 7.5, b"\x07"])
def test_a_number_that_is_none_is_named_and_ends_no_sealing(log: list[AuditEntry], seq: Any) -> None:
    forged = forge(seq=seq)
    assert told() == [("misplaced", f"id {forged}")]
    goes_on()
    assert told() == [("misplaced", f"id {forged}")]
    assert connection.vendor == "sqlite"
