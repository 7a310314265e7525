"""The suite's database is a copy of one that was migrated once, and as if it had been migrated itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import ConnectionHandler

from tests import migrated


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any) -> Iterator[list[str]]:
    """Names of the files that were migrated; here that is one table with a row."""
    names: list[str] = []

    def migrate(creation: Any, *, verbosity: int) -> str:
        name = str(creation._create_test_db(verbosity, autoclobber=True))
        creation.connection.settings_dict["NAME"] = name
        with creation.connection.cursor() as cursor:
            cursor.execute("CREATE TABLE made (number INTEGER PRIMARY KEY AUTOINCREMENT)")
            cursor.execute("INSERT INTO made DEFAULT VALUES")
        names.append(name)
        return name

    monkeypatch.setattr(migrated, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(migrated, "migrate", migrate)
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", settings.DATABASES["default"]["NAME"])
    with django_db_blocker.unblock():
        yield names


def numbers(path: Path) -> list[tuple[int, ...]]:
    """What a process finds whose database is made at `path`."""
    init = "PRAGMA journal_mode=WAL;"
    options = {"ENGINE": "controlplane.runtime.sqlite", "NAME": "none", "OPTIONS": {"init_command": init}}
    own = ConnectionHandler({"default": options | {"TEST": {"NAME": str(path)}}})["default"]
    assert migrated.create_test_db(own.creation, verbosity=0) == str(path) == own.settings_dict["NAME"]
    with own.cursor() as cursor:
        cursor.execute("INSERT INTO made DEFAULT VALUES")
        found = cursor.execute("SELECT number FROM made").fetchall()
    own.close()
    return list(found)


def test_the_first_process_migrates_and_later_ones_find_what_it_made(made: list[str], tmp_path: Path) -> None:
    assert [numbers(tmp_path / f"of {process}") for process in range(3)] == [[(1,), (2,)]] * 3
    assert made == [str(tmp_path / "of 0")]


def test_other_migrations_are_migrated_and_the_old_ones_forgotten(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(tmp_path / "before")
    monkeypatch.setattr(migrated, "key", lambda: "other")
    numbers(tmp_path / "after")
    assert made == [str(tmp_path / "before"), str(tmp_path / "after")]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["other.sqlite3"]


def test_a_changed_a_new_and_a_renamed_migration_make_another_key(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "migrations"
    folder.mkdir(parents=True)
    keys = [migrated.key(tmp_path)]
    (folder / "0001_initial.py").write_text("one")
    keys.append(migrated.key(tmp_path))
    (folder / "0001_initial.py").write_text("two")
    keys.append(migrated.key(tmp_path))
    (folder / "0001_initial.py").rename(folder / "0001_first.py")
    keys.append(migrated.key(tmp_path))
    assert len(set(keys)) == 4 and migrated.key(tmp_path) == keys[-1]


@pytest.mark.django_db
def test_the_suites_own_database_lacks_nothing_that_migrations_make() -> None:
    executor = MigrationExecutor(connection)
    assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []
    ours = {model for model in apps.get_models() if model.__module__.startswith("controlplane.")}
    assert ours and {kind.model_class() for kind in ContentType.objects.all()} >= ours
    assert Permission.objects.filter(content_type__app_label="jobs").exists()
