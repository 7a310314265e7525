"""Lists in the order that is asked for: whole over their pages, stable while rows are added, and counted on request."""

import random
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.spec_lint import lint
from controlplane.recovery.models import Incident
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import Caller, make_node
from tests.integration.api.tenants import spec
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(caller: Any) -> Caller:
    found: Caller = caller("read")
    return found


def make_job(name: str, priority: int = 500) -> Job:
    linted = lint(spec(name, "default")).spec
    return Job.objects.create(
        id=new_id("job"), name=name, spec=msgspec.to_builtins(linted), priority=priority, state="cancelled"
    )


def walked(reader: Caller, path: str, between: Any = lambda: None) -> list[str]:
    """Ids of every page of three; `between` is done before each further one."""
    found: list[str] = []
    cursor = ""
    while True:
        body = reader.get(f"{path}&fields=id&limit=3{cursor}").json()
        found += [row["id"] for row in body["items"]]
        if body["next"] is None:
            return found
        cursor = f"&cursor={body['next']}"
        between()


@pytest.mark.parametrize("sort", ["created", "-created", "priority", "-priority", "name", "-name"])
def test_jobs_come_in_the_order_that_is_asked_for_each_once_while_others_are_submitted(
    reader: Caller, sort: str
) -> None:
    chance = random.Random(7)
    jobs = [make_job(f"j{chance.randrange(4)}", chance.choice((100, 500, 900))) for _ in range(11)]
    column = {"created": "id"}.get(sort.lstrip("-"), sort.lstrip("-"))
    order = sorted(jobs, key=lambda job: (getattr(job, column), job.id), reverse=sort.startswith("-"))
    assert walked(reader, f"/jobs?sort={sort}") == [job.id for job in order]
    seen = walked(reader, f"/jobs?sort={sort}", lambda: make_job("j2", 500))
    assert [each for each in seen if each in {job.id for job in jobs}] == [job.id for job in order]
    assert len(seen) == len(set(seen))


def test_nodes_come_by_name_by_risk_and_the_worst_first(reader: Caller) -> None:
    nodes = {name: make_node(name) for name in ("n10", "n2", "n1", "n3")}
    Node.objects.filter(name="n3").update(state="cordoned")
    Device.objects.filter(node=nodes["n2"], index=1).update(risk=0.9)
    Device.objects.filter(node=nodes["n10"], index=0).update(risk=0.4, healthy=False)
    Device.objects.filter(node=nodes["n1"], index=0).update(risk=0.99, present=False)
    names = {node.id: name for name, node in nodes.items()}
    for sort, order in {
        "name": ["n1", "n2", "n3", "n10"],
        "-name": ["n10", "n3", "n2", "n1"],
        "-risk": ["n2", "n10", "n1", "n3"],
        "health": ["n3", "n1", "n10", "n2"],
    }.items():
        assert [names[each] for each in walked(reader, f"/nodes?sort={sort}")] == order, sort


def test_incidents_come_oldest_first_where_that_is_asked_for(reader: Caller) -> None:
    ids = [Incident.objects.create(id=new_id("inc"), title="t", opened_at=now(), state="resolved").pk for _ in range(7)]
    assert walked(reader, "/incidents?sort=opened") == ids
    assert walked(reader, "/incidents?sort=-opened") == ids[::-1]


def test_jobs_are_found_by_their_node_and_their_time_and_incidents_by_theirs(reader: Caller) -> None:
    here, old = running_job([make_node("n1"), make_node("n2")], spec("here", "default")), make_job("old")
    Job.objects.filter(pk=old.pk).update(created_at=now() - timedelta(days=2))
    there = make_job("there")
    yesterday, node = quote((now() - timedelta(days=1)).isoformat()), Node.objects.get(name="n1")
    for query, found in {
        "node=n1": {here.pk}, f"node={node.pk}": {here.pk}, "node=n9": set(), f"since={yesterday}": {here.pk, there.pk},
    }.items():  # fmt: skip
        assert {row["id"] for row in reader.get(f"/jobs?{query}").json()["items"]} == found, query
    Rank.objects.update(released_at=now())
    assert reader.get("/jobs?node=n1").json()["items"] == [], "it holds nothing there any more"
    opened = {days: Incident.objects.create(id=new_id("inc"), title="t", opened_at=now() - timedelta(days=days))
              for days in (0, 2)}  # fmt: skip
    listed = {row["id"] for row in reader.get(f"/incidents?since={yesterday}").json()["items"]}
    assert opened[0].pk in listed and opened[2].pk not in listed
    assert reader.get("/jobs?since=yesterday").status_code == 422


def test_a_cursor_of_another_order_and_an_order_that_is_none_are_refused(reader: Caller) -> None:
    for number in range(5):
        make_job(f"j{number}")
        make_node(f"n{number}")
    for path, sorts in (("/jobs", ("-created", "priority", "name")), ("/nodes", ("name", "-risk", "health"))):
        for sort in sorts:
            cursor = reader.get(f"{path}?limit=2&sort={sort}").json()["next"]
            for other in set(sorts) - {sort}:
                assert reader.get(f"{path}?limit=2&sort={other}&cursor={cursor}").status_code == 400, (path, sort)
        refused = reader.get(f"{path}?sort=spec")
        assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/query/sort"


def test_rows_are_counted_where_that_is_asked_for_and_not_else(reader: Caller) -> None:
    for number in range(4):
        make_job(f"j{number}")

    def asked(path: str) -> tuple[int | None, int]:
        reader.get(path)
        with CaptureQueriesContext(connection) as queries:
            total = reader.get(path).json()["total"]
        return total, sum("COUNT(*)" in query["sql"] for query in queries if '"jobs_job"' in query["sql"])

    assert asked("/jobs?limit=2") == (None, 0)
    assert asked("/jobs?limit=2&count=true") == (4, 1)


@pytest.mark.parametrize("sort", ["priority", "-priority", "name", "-name"])
def test_an_order_of_jobs_is_read_from_an_index_and_nothing_is_sorted(sort: str, db: None) -> None:
    descending = "DESC" if sort.startswith("-") else "ASC"
    column = sort.lstrip("-")
    with connection.cursor() as cursor:
        plan = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
        if connection.vendor != "sqlite":
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f'{plan} SELECT id FROM jobs_job ORDER BY "{column}" {descending}, "id" {descending} LIMIT 50')
        said = " ".join(str(row) for row in cursor.fetchall())
    assert f"job_by_{column}" in said and "TEMP B-TREE" not in said and "Sort" not in said, said
