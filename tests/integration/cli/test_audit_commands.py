"""The audit log from the command line."""

import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from controlplane.access.audit import audit
from controlplane.cli.exits import Exit
from tests.integration.cli.conftest import World
from tests.integration.cli.test_commands import Run
from tests.integration.cli.test_identity_commands import administrators

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_exported_byte_for_byte_as_on_the_server_to_a_new_file_of_ones_own(
    world: World, holdfast: Run, monkeypatch: Any, tmp_path: Path
) -> None:
    assert holdfast("audit", "export").code == Exit.AUTH
    monkeypatch.setenv("HOLDFAST_TOKEN", administrators())
    monkeypatch.setattr("controlplane.cli.commands.audit.PAGE", 2)
    audit("user:eve", "job.cancel", "job_1", reason="d\u00e9j\u00e0 vu")
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    call_command("export_audit", "--output", str(ours))
    done = holdfast("audit", "export", "--out", str(theirs))
    assert (done.code, done.out) == (Exit.OK, "")
    assert theirs.read_text() == ours.read_text() and len(ours.read_text().splitlines()) > 3
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o600
    assert holdfast("audit", "export", "--out", str(theirs)).code == Exit.USAGE
    hers = holdfast("audit", "export", "--actor", "user:eve", "--since", "1h").out.splitlines()
    assert len(hers) == 1 and hers[0] in ours.read_text()
    assert holdfast("audit", "export", "--since", "soon").code == Exit.USAGE
