"""V8: a reader of the database signed in with what it holds, and anybody could read it."""

import os
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client

from controlplane.access.sessions import SessionStore
from controlplane.demo.processes import ProcessSpec
from controlplane.demo.supervisor import Supervisor
from tests.integration.api.principals import by_session

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 100.0


@pytest.mark.django_db
def test_a_session_key_from_the_database_signs_nobody_in(user: User) -> None:
    who = by_session(user, "read")
    row = Session.objects.get()
    thief = Client()
    thief.cookies["sessionid"] = row.session_key
    assert thief.get("/api/v1/me").status_code == 401
    assert who.caller.get("/me").status_code == 200
    assert who.caller.session_key not in f"{row.session_key} {row.session_data}"  # type: ignore[attr-defined]


@pytest.mark.django_db
def test_a_session_of_the_older_kind_signs_nobody_in_after_the_upgrade() -> None:
    key = "0123456789abcdef0123456789abcdef"
    Session.objects.create(session_key=key, session_data="x", expire_date="2999-01-01T00:00Z")
    assert SessionStore(key).load() == {}
    migration = import_module("controlplane.access.migrations.0004_sessions_end")
    migration._end_sessions(apps, None)
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
async def test_the_sockets_way_to_a_session_hashes_too() -> None:
    store = SessionStore()
    await store.acreate()
    assert store.session_key is not None
    await store.aset("x", 1)
    await store.asave()
    assert await SessionStore(store.session_key).aget("x") == 1
    assert await store.aexists(store.session_key)
    assert not await Session.objects.filter(session_key=store.session_key).aexists()
    await store.adelete(store.session_key)
    assert not await store.aexists(store.session_key)


def open_to_others(path: Path) -> list[str]:
    """Everything at and below `path` that somebody else may touch."""
    found = [path, *path.rglob("*")]
    return [f"{entry} {stat.filemode(entry.lstat().st_mode)}" for entry in found if entry.lstat().st_mode & 0o077]


@pytest.mark.parametrize("upgraded", [False, True], ids=["fresh", "left open by an older version"])
def test_the_embedded_profiles_files_are_for_its_own_user(tmp_path: Path, upgraded: bool) -> None:
    state = tmp_path / "state"
    if upgraded:
        state.mkdir(mode=0o755)
        for name in ("holdfast.sqlite3", "holdfast.sqlite3-wal", "holdfast.sqlite3-shm"):
            (state / name).touch(mode=0o644)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {
        "HOLDFAST_STATE_DIR": str(state),
        "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.embedded",
    }
    done = subprocess.run(
        ["/bin/sh", "-c", 'umask 022; exec "$@"', "sh", sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (state / "holdfast.sqlite3").stat().st_size > 0
    assert open_to_others(state) == []


def test_what_the_demo_starts_writes_for_its_own_user(tmp_path: Path) -> None:
    supervisor = Supervisor(
        env={}, logs=tmp_path / "logs", requests=tmp_path / "requests", node_state=lambda name: tmp_path / name
    )
    script = f"umask; touch {tmp_path}/logs/made; exec sleep 60"
    supervisor.start(ProcessSpec(name="one", argv=("/bin/sh", "-c", script)))
    log = tmp_path / "logs" / "one.log"
    while not (tmp_path / "logs" / "made").exists():
        supervisor.tick()
    supervisor.kill_all()
    assert log.read_text().strip() == "0077"
    assert open_to_others(tmp_path / "logs") == []
    assert open_to_others(tmp_path / "requests") == []
