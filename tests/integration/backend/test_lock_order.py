"""A job's row comes before the fleet's lock and a node's: who holds one of these writes it after the commit.

A pass over a job holds its row and waits for the fleet. Were the row written meanwhile by who holds the fleet, each
would wait for the other, until PostgreSQL ended one. SQLite has one writer, so what is looked at is the order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from controlplane.fleet import identity
from controlplane.fleet.models import Node, NodeLife
from controlplane.jobs.models import Job
from controlplane.protocol.frames import RankExited
from controlplane.recovery import breaker_rows, ingest, requests
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row, lock_rows
from controlplane.runtime.prepared import MOST
from tests.integration.backend.builders import hello, live_ranks, make_fleet, make_job, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def job_writes(job: Job) -> Iterator[list[bool]]:
    """Of each statement that made the job due: whether it was part of a larger transaction."""
    found: list[bool] = []

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if sql.startswith(f'UPDATE "{Job._meta.db_table}" SET "due_at"') and job.id in map(str, params or ()):
            found.append(connection.in_atomic_block)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield found


def waiting_job() -> Job:
    """Pending: no node has room for it."""
    job = make_job()
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.id).state == "pending"
    return job


def test_a_node_that_comes_wakes_who_waits_for_nodes_after_its_own_rows_are_free() -> None:
    fleet = make_fleet(1)
    job = waiting_job()
    with job_writes(job) as writes:
        ingest.open_session(fleet.nodes["n1"].id, "web2.n1", hello("n1"))
    assert writes == [False]


def test_a_breaker_that_is_closed_wakes_the_jobs_after_the_fleet_is_free() -> None:
    job = run_job(make_fleet())
    row = Breaker.objects.create(id="brk_1", code="evict", reason="r", opened_at=now(), decision_id="dec_1")
    with job_writes(job) as writes:
        breaker_rows.close(row.id, actor="user:ada", reason="the switch was replaced")
    assert writes == [False]


def test_a_device_that_is_freed_wakes_who_waits_for_one_after_its_nodes_row_is_free() -> None:
    fleet = make_fleet()
    ended = run_job(fleet)
    Job.objects.update(name="first")
    job = waiting_job()
    row = live_ranks(ended)[0]
    with job_writes(job) as writes:
        fleet.tell(row.node.name, RankExited(ref_of(row), None, 9, False))
    assert writes == [False]


def test_what_the_fleets_pass_takes_back_wakes_its_job_after_the_fleets_lock_is_free() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    home = next(rank.node_id for rank in live_ranks(job) if rank.replica.index == 1)
    drain = requests.drain(home, reason="new fans", actor="ada")
    reconcile_fleet()
    reconcile_job(job.id)
    assert Request.objects.filter(kind="evict", job=job, drain=drain).exists()
    requests.withdraw(drain, reason="not today", actor="ada")
    with job_writes(job) as writes:
        reconcile_fleet()
    assert writes and not any(writes)
    assert Request.objects.get(kind="evict", job=job).withdrawn_by


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer, and locks no row")
def test_outside_a_transaction_nothing_is_locked() -> None:
    job = make_job()
    with transaction.atomic():
        assert lock_row(Job, job.pk) == job
        assert lock_rows(Job, [job.pk, "job_of_nobody"]) == {job.pk: job}
    with pytest.raises(TransactionManagementError):
        lock_row(Job, job.pk)
    with pytest.raises(TransactionManagementError):
        lock_rows(Job, [job.pk])


def test_rows_are_locked_by_key_however_many_are_named() -> None:
    for _ in range(3):
        Job.objects.filter(pk=make_job().pk).update(name=new_id("job").replace("_", "-"))
    jobs = list(Job.objects.order_by("pk"))
    names = [f"job_{number}" for number in range(MOST)]
    with transaction.atomic():
        for named in ([], names[:3], [*names, *names[:1]]):
            assert list(lock_rows(Job, [*named, *(job.pk for job in jobs)]).values()) == jobs
        assert lock_rows(Job, []) == {}


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer, and locks no row")
def test_who_is_admitted_waits_for_no_other_node_whose_row_somebody_holds() -> None:
    fleet, held, end = make_fleet(2), threading.Event(), threading.Event()
    first, other = (fleet.nodes[name].id for name in ("n1", "n2"))
    Node.objects.update(boot_id="", journal_id="", session_counter=0)
    NodeLife.objects.all().delete()
    shown = identity.Shown(boot_id="b", journal_id="j", machine_id="m", counter=5)

    def hold() -> None:
        with transaction.atomic():
            lock_row(Node, first)
            held.set()
            end.wait(20.0)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10.0)
        found = identity.admit_plain([(first, shown), (other, shown)])
        assert not end.is_set() and found == [None, identity.ADMIT], "that one is judged by itself, and waits alone"
    finally:
        end.set()
        thread.join(20.0)
    assert identity.admit_plain([(first, shown)]) == [identity.ADMIT]
