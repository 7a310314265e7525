"""Of a large job each batch of reports is a part, and a step that is over is one short row: nobody who reads it sees
another step than that of a small job, whose row holds all that was told."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from controlplane.changes.due.course import hashes_equal, ledger
from controlplane.changes.packing import packed
from controlplane.jobs import selectors, step_rows
from controlplane.jobs.models import Job, StepPart, StepRecord
from controlplane.protocol import frames
from controlplane.protocol.rank import StepReport
from tests.integration.backend.builders import commit_step, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
OLD = timedelta(seconds=step_rows.SETTLED_S + 1.0)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job is one."""
    monkeypatch.setattr(step_rows, "LARGE_RANKS", 0)


def age(job: Job) -> None:
    """Nothing is told of its steps for so long that they are settled."""
    StepRecord.objects.filter(job=job).update(at=F("at") - OLD)


def seen(job: Job, step: int) -> dict[str, Any]:
    """All that readers are given of one of its steps; hashes without its number."""
    (row,) = step_rows.whole(StepRecord.objects.filter(job=job, step=step))
    hashes = {
        rank: {replica: digest.replace(f"-{step}-", "-") for replica, digest in sorted(by_replica.items())}
        for rank, by_replica in sorted(row.parameter_hashes.items())
    }
    return {
        "contributors": row.contributors, "micro_batches": dict(sorted(row.micro_batches.items())), "hashes": hashes,
        "trained": row.trained, "loss": row.loss, "step_time_s": row.step_time_s, "tokens": row.tokens,
        "ledger": ledger(row), "equal": hashes_equal(row), "states": step_rows.has_state_hashes(row),
    }  # fmt: skip


def point(job: Job, step: int) -> dict[str, Any]:
    """Of its chart, but for which step it is."""
    (found,) = [each for each in selectors.steps(job) if each["step"] == step]
    return {**found, "step": 0, "at": None}


def written(act: Any) -> list[str]:
    """Statements that write, by verb and table."""
    found: list[str] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith(("UPDATE", "INSERT", "DELETE")):
            found.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        act()
    return found


def test_a_step_in_parts_and_one_that_is_packed_tell_what_a_small_jobs_step_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=1)
    monkeypatch.setattr(step_rows, "LARGE_RANKS", 0)
    commit_step(fleet, job, 1)
    assert StepPart.objects.filter(step__step=1).count() > 1, "a part a batch"
    assert seen(job, 1) == seen(job, 0)
    assert point(job, 1) == point(job, 0)
    age(job)
    commit_step(fleet, job, 2)
    row = StepRecord.objects.get(job=job, step=1)
    assert (row.micro_batches, row.trained, row.parameter_hashes, row.in_parts) == ({}, None, {}, False)
    assert not row.parts.exists(), "its parts are in its row"
    assert seen(job, 1) == seen(job, 2) == seen(job, 0)
    assert point(job, 1) == point(job, 2) == point(job, 0)


def test_what_differs_is_seen_in_every_form(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    commit_step(fleet, job, 0)
    rank = live_ranks(job)[-1]
    other = StepReport(0, Job.objects.get(pk=job.pk).epoch, 0.05, 64, (), 4.0, 1.0, "other")
    fleet.tell(rank.node.name, frames.RankSaid(ref_of(rank), other))
    before = seen(job, 0)
    assert before["equal"] is False
    assert point(job, 0)["hashes_equal"] is False
    age(job)
    commit_step(fleet, job, 1)
    assert seen(job, 0) == before
    assert point(job, 0)["hashes_equal"] is False
    assert "other" in before["hashes"][str(rank.rank)].values()


def test_a_report_that_comes_after_it_was_packed_is_in_it_all_the_same(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    ranks = live_ranks(job)
    late = ranks[0].node.name
    fleet_of_others = [row for row in ranks if row.node.name != late]
    epoch = Job.objects.get(pk=job.pk).epoch

    def say(row: Any, step: int, ids: tuple[int, ...]) -> None:
        report = StepReport(step, epoch, 0.05, 64, ids, 4.0, 1.0, f"h{row.rank}")
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), report))

    for row in fleet_of_others:
        say(row, 0, (row.replica.index,))
    age(job)
    say(fleet_of_others[0], 1, ())
    assert not StepRecord.objects.get(job=job, step=0).in_parts
    lacking = seen(job, 0)
    for row in ranks:
        if row.node.name == late:
            say(row, 0, (row.replica.index,))
    assert StepRecord.objects.get(job=job, step=0).in_parts
    complete = seen(job, 0)
    assert complete["contributors"] == lacking["contributors"] + 1 == 3
    assert complete["ledger"] == [0, 1, 2]
    age(job)
    say(fleet_of_others[0], 2, ())
    assert not StepRecord.objects.get(job=job, step=0).in_parts
    assert seen(job, 0) == complete


def test_a_batch_writes_nothing_again_that_grows_with_the_job(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    epoch, ranks = Job.objects.get(pk=job.pk).epoch, live_ranks(job)

    def say(row: Any) -> None:
        report = StepReport(0, epoch, 0.05, 64, (row.replica.index,), 4.0, 1.0, "h", trained=tuple(range(12)))
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), report))

    first = [row for row in ranks if row.rank == 0]
    say(first[0])
    sqls = written(lambda: say(first[1]))
    rows = [sql for sql in sqls if "jobs_steprecord" in sql]
    assert [sql.split("SET")[1].split("WHERE")[0].split('"')[1::2] for sql in rows] == [["contributors"]]
    assert sum("jobs_steppart" in sql for sql in sqls) == 1


def test_pages_are_told_of_a_step_when_it_begins_and_once_it_is_whole(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    epoch, ranks = Job.objects.get(pk=job.pk).epoch, live_ranks(job)

    def say(row: Any, step: int) -> list[dict[str, Any]]:
        ids = tuple(range(row.replica.index, 12, 3))
        report = StepReport(step, epoch, 0.05, 64, ids, 4.0, 1.0, f"h{row.rank}", trained=tuple(range(12)))
        return fleet.tell(row.node.name, frames.RankSaid(ref_of(row), report)).steps

    begun = [point for row in ranks for point in say(row, 0)]
    assert begun[0]["samples_exact"] is True, "the exchange counted what is in the sum, and any rank 0 tells it"
    age(job)
    points = say(ranks[0], 1)
    assert [(each["step"], each["contributors"], each["hashes_equal"]) for each in points][1:] == [(0, 3, True)]


def test_what_an_earlier_release_wrote_of_a_step_stays_told(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    commit_step(fleet, job, 0)
    expected = seen(job, 0)
    row = StepRecord.objects.get(job=job, step=0)
    parts = list(row.parts.values_list("content", flat=True))
    StepPart.objects.filter(step=row).delete()
    half = step_rows.unpacked(*parts[: len(parts) // 2])
    StepRecord.objects.filter(pk=row.pk).update(
        micro_batches=half.micro_batches, parameter_hashes=half.parameter_hashes, packed=None
    )
    step_rows.add_parts((row, part) for part in parts[len(parts) // 2 :])
    assert seen(job, 0) == expected
    age(job)
    commit_step(fleet, job, 1)
    assert seen(job, 0) == expected


def test_a_backlog_of_steps_is_packed_a_few_at_a_time(large: None) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=step_rows.PACKED_A_BATCH + 2)
    age(job)
    assert StepRecord.objects.filter(job=job, in_parts=True).count() == step_rows.PACKED_A_BATCH + 2
    commit_step(fleet, job, 90)
    assert StepRecord.objects.filter(job=job, in_parts=True, step__lt=90).count() == 2
    commit_step(fleet, job, 91)
    assert not StepRecord.objects.filter(job=job, in_parts=True, step__lt=90).exists()
    assert packed(StepRecord.objects.get(job=job, step=0)) == {}, "its columns are empty"
