"""A program of the server that was started without its settings does nothing at all."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
STARTED = {
    "create_admin": (str(ROOT / "manage.py"), "create_admin"),
    "migrate": (str(ROOT / "manage.py"), "migrate"),
    "sentinel": (str(ROOT / "manage.py"), "sentinel"),
    "web": ("-m", "controlplane.config.serve", "--port", "0"),
    "worker": ("-m", "celery", "-A", "controlplane.config.celery", "worker"),
    "beat": ("-m", "celery", "-A", "controlplane.config.celery", "beat"),
    "probe": (str(ROOT / "deploy" / "probe.py"), "beat", "worker"),
}


@pytest.mark.parametrize("name", STARTED)
def test_without_a_profile_nothing_is_made_and_the_way_is_told(name: str, tmp_path: Path) -> None:
    """Else `create_admin` on a production machine answers with a password for an SQLite file beside it."""
    done = subprocess.run(
        [sys.executable, *STARTED[name]],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode != 0
    assert "HOLDFAST_PROFILE is not set" in done.stdout + done.stderr
    assert "holdfast-server manage.py" in done.stdout + done.stderr
    assert done.stdout.count("otp_") == 0
    assert list(tmp_path.iterdir()) == []
