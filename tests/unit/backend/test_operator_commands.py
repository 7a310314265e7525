"""Commands of `manage.py` that an operator runs by hand and that nothing else calls."""

import io
import json
import stat
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.access.services import audit
from controlplane.runtime.sandbox.plan import MEANS


def test_the_sandbox_is_checked_by_a_real_run_and_each_means_has_a_line() -> None:
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("sandbox_check", stdout=out)
    lines = out.getvalue().splitlines()
    marks = {name: line.split()[0] for name in MEANS for line in lines if f" {name}: " in line}
    assert set(marks) == set(MEANS)
    complete = set(marks.values()) == {"ok"}
    assert ended.value.code == (0 if complete else 1)
    assert lines[-1].startswith("Complete." if complete else "Not complete")


@pytest.mark.django_db(transaction=True)
def test_the_audit_log_is_exported_sealed_in_order_and_to_a_new_private_file(tmp_path: Path) -> None:
    for number in range(3):
        audit("user:ada", "job.cancel", f"job:{number}")
    out, path = io.StringIO(), tmp_path / "audit.jsonl"
    call_command("export_audit", stdout=out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["subject"] for row in rows] == ["job:0", "job:1", "job:2"]
    call_command("export_audit", "--output", str(path), stderr=io.StringIO())
    assert path.read_text().splitlines() == out.getvalue().splitlines()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        call_command("export_audit", "--output", str(path))
    later = io.StringIO()
    call_command("export_audit", "--after-seq", str(rows[0]["seq"]), stdout=later)
    assert [json.loads(line) for line in later.getvalue().splitlines()] == rows[1:]
