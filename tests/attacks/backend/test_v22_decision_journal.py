"""Who can write to the decision journal does not change unnoticed what was decided, or why (V22, R20.10)."""

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from controlplane.access import sealing
from controlplane.access.models import AuditEntry
from controlplane.recovery import journal
from controlplane.recovery.audited import audit_decision
from controlplane.recovery.diagnostics import SCHEDULED, forget_scheduled
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.ids import new_id
from tests.integration.backend.builders import flush_all, install_all, job_that_lost_a_rank

pytestmark = pytest.mark.django_db


@pytest.fixture
def decided(db: None, settings: Any, tmp_path: Any) -> list[Decision]:
    """A recovery, with its routine decisions, sealed."""
    settings.STATE_DIR = tmp_path
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    reconcile_job(job.id)
    sealing.seal_all()
    rows = list(Decision.objects.order_by("at", "id"))
    assert {row.routine for row in rows} == {True, False}
    return rows


def sql(statement: str, *values: Any) -> None:
    """As somebody who holds the database and not the server's secret."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def verified() -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("verify_audit", stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


def test_every_decision_is_a_row_of_the_audit_log_routine_or_not(decided: list[Decision]) -> None:
    told = AuditEntry.raw.filter(actor="policy", action__startswith="decision.").values_list("decision_id", flat=True)
    assert sorted(told) == sorted(row.id for row in decided)
    assert verified() == (0, verified()[1])
    assert f"{len(decided)} decisions compared with the journal" in verified()[1]


@pytest.mark.parametrize(
    "change",
    [
        "sentence = 'nothing happened'",
        "choice = 'wait'",
        "rule = 'look_on_schedule'",
        "evidence = '{}'",
        "alternatives = '[1]'",
        "actions = '[{}]'",
        "cost_gpu_s = 12345.5",
        "mode = 'recommend'",
        "epoch_after = 77",
        "policy_version = 'another'",
        "policy_documents = '{\"fleet\": 7}'",
        "at = '2020-01-01 00:00:00'",
    ],
)
def test_an_edit_of_what_was_decided_names_the_decision(decided: list[Decision], change: str) -> None:
    chosen = next(row for row in decided if row.rule == "replica_failure")
    sql(f"UPDATE recovery_decision SET {change} WHERE id = %s", chosen.id)
    code, text = verified()
    assert code == 1
    assert f"edited: decision {chosen.id}" in text


def test_an_edit_of_a_routine_decision_and_of_a_snapshot_is_named_too(decided: list[Decision]) -> None:
    routine = next(row for row in decided if row.routine)
    sql("UPDATE recovery_decision SET snapshot = %s WHERE id = %s", b"another", routine.id)
    assert f"edited: decision {routine.id}" in verified()[1]


def test_a_deleted_decision_is_named(decided: list[Decision]) -> None:
    sql("DELETE FROM recovery_restart WHERE decision_id = %s", decided[-1].id)
    sql("DELETE FROM recovery_decision WHERE id = %s", decided[-1].id)
    code, text = verified()
    assert (code, f"missing: decision {decided[-1].id}" in text) == (1, True)


def test_a_decision_that_holdfast_never_made_is_named(decided: list[Decision]) -> None:
    row = decided[-1]
    row.pk, row.key = new_id("dec"), "another"
    row.at = AuditEntry.raw.latest("id").at
    row.save(force_insert=True)
    code, text = verified()
    assert (code, f"edited: decision {row.pk}" in text) == (1, True)


def test_looks_on_schedule_may_be_forgotten(decided: list[Decision]) -> None:
    row = decided[-1]
    row.pk, row.key, row.rule = new_id("dec"), "another", SCHEDULED
    row.save(force_insert=True)
    audit_decision(row, {})
    sealing.seal_all()
    forget_scheduled(-60.0)
    assert not Decision.objects.filter(pk=row.pk).exists()
    assert verified()[0] == 0, verified()[1]


def test_decisions_from_before_they_were_chained_are_no_fault(decided: list[Decision]) -> None:
    old = decided[0]
    old.pk, old.key = new_id("dec"), "of an older release"
    old.save(force_insert=True)
    assert verified()[0] == 0, verified()[1]


def test_a_number_is_the_same_in_both_databases_and_before_it_is_stored(decided: list[Decision]) -> None:
    row = decided[-1]
    row.pk, row.key = new_id("dec"), "numbers"
    row.evidence = {"whole": 2.0, "minus": -0.0, "huge": 1e300, "tiny": 5e-324, "list": [(1, 2.5)], 3: {"4": None}}
    before = journal.digest(row)
    row.save(force_insert=True)
    assert journal.digest(Decision.objects.get(pk=row.pk)) == before


def test_a_forged_audit_row_before_all_others_hides_no_forged_decision(decided: list[Decision]) -> None:
    made = decided[-1]
    made.pk, made.key, made.at = new_id("dec"), "another", AuditEntry.raw.latest("id").at
    made.save(force_insert=True)
    row = AuditEntry(
        id=-1, at=made.at + timedelta(days=3650), actor="policy", action="decision.x", subject="y",
        data={journal.DIGEST: "0" * 64}, decision_id="dec_none", mac="0" * 64,
    )  # fmt: skip
    AuditEntry.raw.bulk_create([row])
    assert f"edited: decision {made.pk}: no audit row records it" in verified()[1]
