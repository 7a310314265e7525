"""One slot of a large job is read without the others."""

import re
from collections.abc import Callable

import msgspec
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.jobs.models import Attempt, Rank, Replica
from controlplane.jobs.present import replica_summary
from tests.integration.api.conftest import Caller
from tests.integration.api.test_mesh import large_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(caller: Callable[[str], Caller]) -> Caller:
    """May read."""
    return caller("read")


def items(caller: Caller, path: str) -> list[dict[str, object]]:
    answer = caller.get(path)
    assert answer.status_code == 200, answer.content
    found: list[dict[str, object]] = msgspec.json.decode(answer.content)["items"]
    return found


def test_one_slot_is_the_row_of_the_whole_list_and_costs_the_same_in_a_job_of_any_size(viewer: Caller) -> None:
    asked = []
    for replicas in (3, 48):
        with transaction.atomic():
            job = large_job(replicas, tp=4)
            path = f"/jobs/{job.id}/replicas"
            whole = items(viewer, path)
            with CaptureQueriesContext(connection) as queries:
                (one,) = items(viewer, f"{path}?index=2&current=true")
            transaction.set_rollback(True)
        asked.append(len(queries))
        assert one == next(row for row in whole if row["index"] == 2)
        read = [query["sql"] for query in queries if f'FROM "{Rank._meta.db_table}"' in query["sql"]]
        assert read and all(re.search(r'"index" = 2|IN \(\d+\)', sql) for sql in read), "of no other slot"
    assert asked[0] == asked[1]


def test_current_leaves_out_what_was_there_before(viewer: Caller) -> None:
    job = large_job(2)
    attempt = Attempt.objects.get(job=job)
    Replica.objects.create(attempt=attempt, index=1, incarnation=2, state="forming")
    path = f"/jobs/{job.id}/replicas"
    assert [(row["index"], row["incarnation"]) for row in items(viewer, path)] == [(0, 1), (1, 2), (1, 1)]
    assert [(row["index"], row["incarnation"]) for row in items(viewer, f"{path}?current=true")] == [(0, 1), (1, 2)]
    assert [(row["index"], row["incarnation"]) for row in items(viewer, f"{path}?index=1")] == [(1, 2), (1, 1)]
    assert items(viewer, f"{path}?index=7") == []


def test_what_is_current_is_what_the_mesh_shows(viewer: Caller) -> None:
    """No slot of an attempt before, which had more of them, and none whose place another one has taken."""
    job = large_job(4)
    first = Attempt.objects.get(job=job)
    Attempt.objects.update(state="ended")
    attempt = Attempt.objects.create(job=job, number=2, layout=first.layout, replicas=2, checkpoint_dir="/x")
    for index, fields in enumerate(({}, {"state": "evicted"}, {"state": "evicted", "relieved": "it is hot"})):
        Replica.objects.create(attempt=attempt, index=index, incarnation=3, **({"state": "active"} | fields))
    path = f"/jobs/{job.id}/replicas"
    current = items(viewer, f"{path}?current=true&fields=index,attempt,incarnation")
    assert [tuple(row.values()) for row in current] == [(2, 0, 3), (2, 1, 3)]
    shown = msgspec.json.decode(viewer.get(f"/jobs/{job.id}/mesh").content)["replicas"]
    assert [row["index"] for row in shown] == [0, 1]
    slots = Replica.objects.filter(attempt__job=job).select_related("attempt").order_by("pk")
    assert [replica_summary(row)["current"] for row in slots] == [False] * 4 + [True, True, False]


@pytest.mark.parametrize("wrong", ["index=-1", "index=x", "current=perhaps", "slot=1"])
def test_what_no_slot_can_be_is_refused(viewer: Caller, wrong: str) -> None:
    job = large_job(1)
    answer = viewer.get(f"/jobs/{job.id}/replicas?{wrong}")
    assert answer.status_code == (400 if wrong.startswith("slot") else 422)
    assert wrong.split("=")[0] in answer.content.decode()
