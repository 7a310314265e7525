"""An empty database of a benchmark's own process, on either of the two."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.demo.private_postgres import private_postgres


@contextmanager
def own_database(*, postgres: bool) -> Iterator[None]:
    """Django is set up and its tables are there; gone when it is left. Raises MissingPostgres. Once a process."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        os.environ |= {
            "HOLDFAST_STATE_DIR": directory,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "HOLDFAST_LOG_LEVEL": "ERROR",
        }
        os.environ.pop("HOLDFAST_DATABASE_URL", None)
        if not postgres:
            _set_up()
            yield
            return
        with private_postgres() as url:
            os.environ |= {"HOLDFAST_TEST_DATABASE": "postgres", "HOLDFAST_DATABASE_URL": url}
            _set_up()
            yield


def _set_up() -> None:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
