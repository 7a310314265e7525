"""Events of a job or a node are read in their order and none of the others: no list of them is sorted first."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.jobs.services import submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.runtime.events import publish
from tests.integration.api.conftest import SPEC

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL sorts what is few, whatever index there is"),
]


@pytest.mark.parametrize("query", ["newest=true", "newest=true&until=2099-01-01T00:00:00Z&entity=job", "after_seq=0"])
@pytest.mark.parametrize("whose", ["job", "node"])
def test_no_event_is_sorted_to_find_the_newest(caller: Any, node: Any, whose: str, query: str) -> None:
    spec = lint(SPEC).spec
    assert spec is not None
    job = submit_job(spec, owner="ada", actor="user:ada")
    for number in range(20):
        publish("note", f"Note {number}.", job_id=job.id, node_id=node.id, entity="job", entity_id="x", patch={"n": 1})
    path = f"/jobs/{job.id}/events" if whose == "job" else f"/events?node_id={node.id}"
    reader = caller("read")
    with CaptureQueriesContext(connection) as asked:
        answer = reader.get(f"{path}{'&' if '?' in path else '?'}{query}&limit=5")
    assert len(answer.json()["items"]) == 5
    reads = [each["sql"] for each in asked if 'FROM "runtime_event"' in each["sql"] and "patch" in each["sql"]]
    assert len(reads) == 1
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {reads[0]}")
        plan = [row[3] for row in cursor.fetchall()]
    assert plan == [f"SEARCH runtime_event USING INDEX event_of_{whose} ({whose}_id=? AND seq>?)"]
