"""What loading, deciding and committing cost grows with the job and no faster (N20, N21): counted in calls and
queries, not in seconds. The rows are those of `python -m benchmarks decide`.
"""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.sql.compiler import SQLCompiler
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from benchmarks.decide_passes import Run
from benchmarks.decide_rows import job_that_trains
from benchmarks.decide_worlds import Size
from controlplane.recovery.load import load_snapshot

pytestmark = pytest.mark.django_db
SLACK = 1.6
BY_REPLICAS = (Size(6, 8), Size(100, 8), Size(1_000, 8))
BY_RANKS = (Size(12, 8), Size(12, 64), Size(12, 512))


def counted(act: Callable[[], object]) -> int:
    """Calls of functions in Python and in C."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def loaded(size: Size) -> tuple[int, int]:
    """(calls, queries) of a load; the process has loaded the job before."""
    with transaction.atomic():
        job = job_that_trains(size)
        first = load_snapshot(job)
        with CaptureQueriesContext(connection) as queries:
            again = load_snapshot(job)
        assert again.replicas == first.replicas
        assert [replica.world_size for replica in again.replicas] == [size.gpus] * size.replicas
        assert not [
            query for query in queries if 'BY "jobs_rank"."replica_id"' in query["sql"] and "COUNT" not in query["sql"]
        ], "where ranks are is known"
        calls = counted(lambda: load_snapshot(job))
        transaction.set_rollback(True)
    return calls, len(queries)


@pytest.mark.parametrize("sizes", [BY_REPLICAS, BY_RANKS])
def test_a_load_grows_no_faster_than_the_job(sizes: tuple[Size, ...]) -> None:
    smaller, small_queries = loaded(sizes[0])
    for before, size in pairwise(sizes):
        calls, queries = loaded(size)
        assert calls < SLACK * smaller * size.ranks / before.ranks
        # Of a thousand replicas five hundred are named at a time.
        assert queries <= small_queries + 2 * (size.replicas // 500)
        smaller = calls


def test_a_second_load_works_no_sql_out() -> None:
    compiled = 0

    def count(frame: Any, event: str, _argument: Any) -> None:
        nonlocal compiled
        compiled += event == "call" and frame.f_code is SQLCompiler.as_sql.__code__

    with transaction.atomic():
        job = job_that_trains(Size(6, 8))
        first = load_snapshot(job)
        with CaptureQueriesContext(connection) as queries:
            sys.setprofile(count)
            try:
                again = load_snapshot(job)
            finally:
                sys.setprofile(None)
        transaction.set_rollback(True)
    assert compiled == 0
    assert 0 < len(queries) <= 50
    assert replace(again, now_s=first.now_s) == first


@pytest.mark.parametrize("sizes", [BY_REPLICAS[:2], BY_RANKS[:2]])
def test_an_eviction_grows_no_faster_than_the_job(sizes: tuple[Size, ...]) -> None:
    cost = []
    for size in sizes:
        with transaction.atomic():
            run = Run(size)
            run.evict(1)
            cost.append((counted(lambda run=run: run.evict(1, first=1)), run.queries[-1]))
            transaction.set_rollback(True)
    (few, fewer), (many, more) = cost
    assert many < SLACK * few * sizes[1].ranks / sizes[0].ranks
    assert more <= fewer + 2 * (sizes[1].ranks // 500 + 1)
