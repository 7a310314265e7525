"""The suite's SQLite database is migrated once for each content of the migrations, and copied for every later run.

Each pytest process has a file of its own: a copy of `KEPT`/KEY.sqlite3, which the first process that needed it made
by migrating. KEY is a hash of all that `migrate` reads, so a change of a migration or of a model makes another one.
PostgreSQL is migrated anew.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.db.backends.sqlite3.creation import DatabaseCreation

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "var" / "tests" / "migrated"
migrate: Callable[..., str] = DatabaseCreation.create_test_db


def key(folder: Path = ROOT / "controlplane") -> str:
    """Of the migrations below `folder`, of the models, for which `migrate` writes rows too, and of the versions."""
    digest = hashlib.sha256(f"{django.__version__} {sqlite3.sqlite_version}".encode())
    for model in sorted(apps.get_models(), key=lambda model: model._meta.label):
        digest.update(f"{model._meta.label} {model._meta.default_permissions} {model._meta.permissions}\n".encode())
    for path in sorted(folder.glob("*/migrations/*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def create_test_db(creation: DatabaseCreation, *args: Any, **options: Any) -> str:
    """In the place of `DatabaseCreation.create_test_db`: the name of the new, migrated file."""
    template = KEPT / f"{key()}.sqlite3"
    if not template.exists():
        name = migrate(creation, *args, **options)
        _keep(creation.connection, template)
        return name
    name = str(creation._create_test_db(verbosity=0, autoclobber=True))
    creation.connection.close()
    shutil.copyfile(template, name)
    settings.DATABASES[creation.connection.alias]["NAME"] = creation.connection.settings_dict["NAME"] = name
    creation.connection.ensure_connection()
    return name


def _keep(connection: Any, template: Path) -> None:
    """Whoever makes the same at the same time writes the same; those of earlier migrations are deleted."""
    template.parent.mkdir(parents=True, exist_ok=True)
    made = template.with_suffix(f".{os.getpid()}")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(made)])
    for old in template.parent.glob("*.sqlite3"):
        old.unlink(missing_ok=True)
    made.replace(template)
