"""Who can write to the audit table cannot do it unnoticed; many writers keep one chain."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from controlplane.access import chain, sealing
from controlplane.access.append_only import AppendOnlyError
from controlplane.access.audit import audit
from controlplane.access.models import AuditAnchor, AuditEntry
from controlplane.access.sealing import Anchor
from controlplane.access.verification import verify
from tests.integration.backend.servers import database_url

pytestmark = pytest.mark.django_db
ROWS = 6


@pytest.fixture
def log(db: None, settings: Any, tmp_path: Path) -> list[AuditEntry]:
    """Six sealed rows, with every kind of value that a row can hold."""
    settings.STATE_DIR = tmp_path
    for number in range(ROWS):
        audit(
            "user:ada", "job.cancel", f"job_{number}", reason="because \u00e9\n\x1b[31m\x00", origin="192.0.2.7",
            data={"ratio": 0.1 * number, "whole": 2.0, "minus": -0.0, "big": 2**70, "huge": 1e300, "tiny": 5e-324,
                  "text": "\ud800\x00", "list": [1, None, True, {"a": {"b": [1.5]}}]},
            before={"state": "running"}, after={"state": "cancelled"}, decision_id="dec_1", request_id="req-12345678",
        )  # fmt: skip
    assert sealing.seal_all() >= ROWS
    return list(AuditEntry.raw.order_by("seq"))


def sql(statement: str, *values: Any) -> None:
    """As somebody who holds the database and not the server's secret."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def verified(*argv: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("verify_audit", *argv, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


def test_an_untouched_log_is_whole(log: list[AuditEntry]) -> None:
    code, text = verified()
    assert code == 0, text
    assert f"head {log[-1].seq}:{log[-1].hash}" in text


@pytest.mark.parametrize(
    "change",
    ["actor = 'user:eve'", "action = 'job.read'", "subject = 'job_9'", "reason = ''", "origin = '198.51.100.1'",
     "request_id = ''", "decision_id = ''", "data = '{}'", "before = NULL", "after = NULL",
     "at = '2020-01-01 00:00:00+00:00'"],
)  # fmt: skip
def test_an_edit_of_any_column_names_the_row(log: list[AuditEntry], change: str) -> None:
    sql(f"UPDATE access_auditentry SET {change} WHERE id = %s", log[2].id)
    code, text = verified()
    assert code == 1
    assert f"the first: seq {log[2].seq} (id {log[2].id})" in text


def test_an_edit_is_found_also_when_its_author_computes_the_digests_anew(log: list[AuditEntry]) -> None:
    row = log[2]
    row.actor = "user:eve"
    row.mac = chain.row_mac(row, b"a key that is not the server's")
    chain.close(log[2:], (log[1].seq, log[1].hash), b"a key that is not the server's")
    for changed in log[2:]:
        sql(
            "UPDATE access_auditentry SET actor=%s, mac=%s, prev_hash=%s, hash=%s WHERE id=%s",
            changed.actor, changed.mac, changed.prev_hash, changed.hash, changed.id,
        )  # fmt: skip
    verdict = verify()
    assert verdict.faults[0].row == f"seq {row.seq} (id {row.id})"


def test_a_deleted_row_is_named(log: list[AuditEntry]) -> None:
    sql("DELETE FROM access_auditentry WHERE id = %s", log[2].id)
    code, text = verified()
    assert code == 1
    assert f"missing: seq {log[2].seq}: " in text


def test_a_deleted_row_is_found_also_when_the_numbers_behind_it_are_closed_up(log: list[AuditEntry]) -> None:
    sql("DELETE FROM access_auditentry WHERE id = %s", log[2].id)
    for row in log[3:]:
        sql("UPDATE access_auditentry SET seq = %s WHERE id = %s", row.seq - 1, row.id)
    assert verify().faults[0].kind == "misplaced"


def test_the_first_rows_cannot_be_taken_away(log: list[AuditEntry]) -> None:
    sql("DELETE FROM access_auditentry WHERE seq <= 3")
    sql("INSERT INTO access_auditanchor (at, seq, hash, mac) VALUES (%s, 3, %s, %s)", log[0].at, log[2].hash, "0" * 64)
    assert verify().faults[0].row == "anchor at seq 3"


def test_an_inserted_row_is_named(log: list[AuditEntry]) -> None:
    columns = "at, actor, action, subject, reason, request_id, origin, decision_id, data, mac, prev_hash, hash"
    values = (log[0].at, "user:eve", "x", "y", "", "", "", "", "{}", "f" * 64, "", "")
    sql(f"INSERT INTO access_auditentry ({columns}) VALUES ({', '.join(['%s'] * 12)})", *values)
    assert verify().faults[0].kind == "edited"
    sealing.seal_all()
    forged = AuditEntry.raw.get(actor="user:eve")
    assert verify().faults[0].row == f"seq {forged.seq} (id {forged.id})"


def test_a_copied_row_is_named(log: list[AuditEntry]) -> None:
    columns = "at, actor, action, subject, reason, request_id, origin, decision_id, data, before, after, mac"
    sql(
        f"INSERT INTO access_auditentry ({columns}, prev_hash, hash)"
        f" SELECT {columns}, '', '' FROM access_auditentry WHERE id = %s",
        log[2].id,
    )
    sealing.seal_all()
    assert [fault.kind for fault in verify().faults] == ["repeated"]


def test_a_cut_end_is_found_by_the_head_kept_outside(log: list[AuditEntry]) -> None:
    head = f"{log[-1].seq}:{log[-1].hash}"
    sql("DELETE FROM access_auditentry WHERE seq > 4")
    assert verified("--no-kept-anchor")[0] == 0
    code, text = verified("--anchor", head)
    assert code == 1
    assert "cut off: seq 5" in text


def test_the_sweep_keeps_the_head_outside_and_the_command_finds_it(log: list[AuditEntry], tmp_path: Path) -> None:
    sealing.Sweeper().sweep()
    assert sealing.anchor_path().stat().st_mode & 0o077 == 0
    sql("DELETE FROM access_auditentry WHERE seq > 4")
    assert verified()[0] == 1
    audit("user:eve", "x", "y")
    audit("user:eve", "x", "y")
    sealing.Sweeper().sweep()
    code, text = verified()
    assert (code, "an anchor names another row at this place" in text) == (1, True)


def test_a_state_directory_that_cannot_be_written_stops_no_sweep(log: list[AuditEntry], settings: Any) -> None:
    settings.STATE_DIR = Path("/proc/nowhere")
    audit("user:ada", "x", "y")
    sealing.Sweeper().sweep()
    assert not sealing.unsealed().exists()


def test_anchors_are_read_from_a_log(log: list[AuditEntry], tmp_path: Path) -> None:
    lines = tmp_path / "server.log"
    lines.write_text(f'noise\n{{"event": "audit anchor", "seq": {log[-1].seq}, "hash": "{log[-1].hash}"}}\n')
    sql("DELETE FROM access_auditentry WHERE seq > 4")
    assert verified("--log", str(lines))[0] == 1


def test_rows_that_nobody_seals_are_told(log: list[AuditEntry]) -> None:
    audit("user:ada", "x", "y")
    assert verify().whole
    assert [fault.kind for fault in verify(max_unsealed_s=-1.0).faults] == ["waiting"]


def test_an_edit_before_the_sealing_is_found_too(log: list[AuditEntry]) -> None:
    audit("user:ada", "token.create", "tok_1")
    sql("UPDATE access_auditentry SET actor = 'user:eve' WHERE seq IS NULL")
    assert verify().faults[0].kind == "edited"


def test_our_own_code_cannot_change_a_row(log: list[AuditEntry]) -> None:
    row = AuditEntry.objects.get(pk=log[0].pk)
    for act in (row.save, row.delete, AuditEntry.objects.all().delete, lambda: AuditEntry.objects.update(actor="x")):
        with pytest.raises(AppendOnlyError):
            act()


def test_pruning_keeps_the_rest_verifiable(log: list[AuditEntry], tmp_path: Path) -> None:
    exported = tmp_path / "old.jsonl"
    call_command("prune_audit", "--keep-days", "0", "--export", str(exported), stdout=io.StringIO())
    assert len(exported.read_text().splitlines()) == len(log)
    assert AuditAnchor.objects.get().seq == log[-1].seq
    audit("user:ada", "x", "y")
    sealing.seal_all()
    assert (
        verified(
            "--anchor", f"{log[-1].seq + 1}:{sealing.head().hash and AuditEntry.raw.get(seq=log[-1].seq + 1).hash}"
        )[0]
        == 0
    )
    sql("DELETE FROM access_auditentry WHERE seq = %s", log[-1].seq + 1)
    assert not verify().whole


def test_a_row_of_an_earlier_secret_verifies_while_that_secret_is_named(log: list[AuditEntry], settings: Any) -> None:
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another secret, as long as the checks of Django want it"
    assert not verify().whole
    settings.SECRET_KEY_FALLBACKS = [old]
    audit("user:ada", "x", "y")
    sealing.seal_all()
    assert verify().whole


WRITER = """
import sys
import django
django.setup()
from django.db import transaction
from controlplane.access import sealing
from controlplane.access.audit import audit
from controlplane.runtime.locks import retrying

def write(number):
    with transaction.atomic():
        audit("process:" + sys.argv[1], "test.write", str(number))
        if number % 7 == 3:
            transaction.set_rollback(True)

for number in range(int(sys.argv[2])):
    retrying(lambda: write(number), "write")
    retrying(lambda: sealing.seal(at_most=3, wait=bool(number % 2)), "seal")
"""


@pytest.mark.django_db(transaction=True)
def test_writers_in_several_processes_keep_one_chain(tmp_path: Path) -> None:
    processes, writes = 4, 25
    env = {
        "PATH": "/usr/bin:/bin", "HOLDFAST_DATABASE_URL": database_url(), "HOLDFAST_STATE_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.test", "PYTHONPATH": str(Path(__file__).parents[3]),
    }  # fmt: skip
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(number), str(writes)], env=env, cwd=tmp_path)
        for number in range(processes)
    ]
    assert [process.wait(timeout=100) for process in running] == [0] * processes
    sealing.seal_all()
    kept = sum(1 for number in range(writes) if number % 7 != 3)
    rows = AuditEntry.raw.filter(action="test.write")
    assert rows.count() == processes * kept
    assert sorted(AuditEntry.raw.values_list("seq", flat=True)) == list(range(1, AuditEntry.raw.count() + 1))
    verdict = verify([Anchor(sealing.head().seq, sealing.head().hash)])
    assert verdict.whole, verdict.faults
