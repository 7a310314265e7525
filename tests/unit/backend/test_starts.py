"""A server that is configured wrongly says so in one line that names the key, and does not start."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.forks import command
from tests.house.tree import ROOT

MANAGE = ("manage.py", "migrate")
WEB = ("-m", "controlplane.config.serve", "--port", "0")
WORKER = ("-m", "celery", "-A", "controlplane.config.celery", "worker")
GOOD_KEY = "kPq7-a-key-that-nobody-may-read-0123456789-abcdefghijklmnop"


def ends_with(program: tuple[str, ...], state_dir: Path, **environment: str) -> str:
    """What the process says when it refuses to start."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "DJANGO_"))}
    done = subprocess.run(
        command(*program, kind="server"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120.0,
        env=kept | {"HOLDFAST_PROFILE": "embedded", "HOLDFAST_STATE_DIR": str(state_dir), **environment},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("program", "environment", "named"),
    [
        (MANAGE, {"HOLDFAST_CHUNK_S": "abc"}, "HOLDFAST_CHUNK_S: Input should be a valid number"),
        (WEB, {"HOLDFAST_GRACE_S": "-1", "HOLDFAST_POOL_MAX": "0"}, "HOLDFAST_POOL_MAX: Input should be greater"),
        (WORKER, {"HOLDFAST_LOG_LEVEL": "LOUD"}, "HOLDFAST_LOG_LEVEL: Input should be 'DEBUG'"),
        (WEB, {"HOLDFAST_DATABASE_URL": "mysql://holdfast:pw-of-it@db/x"}, "HOLDFAST_DATABASE_URL: scheme 'mysql'"),
        (MANAGE, {"HOLDFAST_PROFILE": "production"}, "HOLDFAST_SECRET_KEY is required in production"),
        (
            WORKER,
            {"HOLDFAST_PROFILE": "production", "HOLDFAST_SECRET_KEY": GOOD_KEY},
            "HOLDFAST_ALLOWED_HOSTS is required in production",
        ),
        (WEB, {"HOLDFAST_BIND": "0.0.0.0:80"}, "HOLDFAST_BIND=0.0.0.0:80: the embedded profile has no TLS"),
        (MANAGE, {"HOLDFAST_CHECKPOINT_ROOTS": "/etc"}, "HOLDFAST_CHECKPOINT_ROOTS: '/etc' is of the system"),
        (WEB, {"HOLDFAST_TLS_CERTIFICATE": "/no/tls.crt"}, "HOLDFAST_TLS_CERTIFICATE: /no/tls.crt cannot be read"),
        (
            WEB,
            {"HOLDFAST_PROFILE": "production", "HOLDFAST_TLS_CERTIFICATE": str(ROOT / "README.md")},
            "README.md has no certificate in PEM",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_wrong_setting_ends_the_start_with_one_line_that_names_its_key(
    tmp_path: Path, program: tuple[str, ...], environment: dict[str, str], named: str
) -> None:
    said = ends_with(program, tmp_path, **environment)
    assert named in said
    assert said.count("\n") == 1, said
    assert "does not start" in said
    assert "Traceback" not in said
    assert "pw-of-it" not in said
    assert GOOD_KEY not in said
