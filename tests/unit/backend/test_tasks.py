"""Every task of Celery: nothing is kept of it, it is tried within limits, and nobody waits for it."""

from typing import Any

import pytest

from controlplane.config.celery import app
from tests.house.tree import ROOT, read

app.loader.import_default_modules()
TASKS: dict[str, Any] = {name: task for name, task in app.tasks.items() if name.startswith("controlplane.")}
WAITS = ("AsyncResult", "chord(", "GroupResult", ".delay(", "allow_join_result", "result_backend")


def test_our_tasks_are_found() -> None:
    assert {"controlplane.sentinel.tasks.tick", "controlplane.sentinel.tasks.canary"} <= set(TASKS)
    assert app.conf.result_backend is None


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_keeps_no_result_and_ends(name: str) -> None:
    task = TASKS[name]
    assert task.ignore_result
    limit_s = task.time_limit or app.conf.task_time_limit
    assert 0 < (task.soft_time_limit or app.conf.task_soft_time_limit) < limit_s <= 60


def test_nothing_waits_for_a_task_or_joins_several() -> None:
    files = [path for path in sorted((ROOT / "controlplane").rglob("*.py")) if "migrations" not in path.parts]
    found = [f"{path.relative_to(ROOT)}: {word}" for path in files for word in WAITS if word in read(path)]
    assert found == []
