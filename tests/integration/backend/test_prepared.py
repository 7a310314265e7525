"""A query whose SQL is worked out once finds what the same queryset finds, on either database."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, connections, models
from django.db.models import Count, Exists, F, OuterRef

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank, Replica, StepRecord
from controlplane.recovery.models import ViewRow
from controlplane.runtime import windows
from controlplane.runtime.clock import now
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOMENT, MOST, NUMBER, TEXT, Change, Prepared, Several, figures_of
from tests.integration.backend.builders import live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
JOB = TEXT


def columns(row: object) -> object:
    """Of a model all that was read: two of them are equal by their key alone."""
    return (
        {name: value for name, value in vars(row).items() if name != "_state"} if isinstance(row, models.Model) else row
    )


@pytest.fixture
def job() -> Job:
    return run_job(make_fleet(4))


def test_it_gives_the_same_models_values_and_slices(job: Job) -> None:
    builds = (
        lambda job, moment: Job.objects.filter(pk=job, created_at__lte=moment),
        lambda job, moment: Rank.objects.filter(replica__attempt__job=job, joined_at__lt=moment)
        .select_related("replica__attempt", "node")
        .order_by("-rank", "pk")[1:4],
        lambda job, moment: Rank.objects.filter(replica__attempt__job=job).exclude(joined_at__gt=moment).order_by("pk")
        .values_list("node_id", "joined_at", "exit_code"),
        lambda job, moment: Replica.objects.filter(attempt__job=job, created_at__lte=moment)
        .filter(Exists(Rank.objects.filter(replica=OuterRef("pk"), joined_at__gt=F("started_at"))))
        .order_by("index").values_list("state_since", flat=True),
        lambda job, moment: Rank.objects.filter(replica__attempt__job=job, joined_at__lt=moment).order_by()
        .values("replica_id").annotate(n=Count("pk")).order_by("replica_id"),
        lambda job, moment: ViewRow.objects.filter(job=job, announced_at__lte=moment).order_by("-epoch"),
    )  # fmt: skip
    for build in builds:
        prepared = Prepared(build, job=JOB, moment=MOMENT)
        for _ in range(2):
            found, known = prepared(job=job.id, moment=now()), list(build(job=job.id, moment=now()))
            assert found == known
            assert found
            assert list(map(columns, found)) == list(map(columns, known))
        assert prepared(job="job_of_nobody", moment=now()) == []
        assert prepared(job=job.id, moment=job.created_at - timedelta(days=1)) == []


def test_related_rows_come_with_it_and_no_second_query_is_made(job: Job) -> None:
    prepared = Prepared(
        lambda job: Rank.objects.filter(replica__attempt__job=job).select_related("replica__attempt").order_by("pk"),
        job=JOB,
    )
    prepared(job=job.id)
    asked: list[str] = []
    with connection.execute_wrapper(lambda run, sql, *rest: (asked.append(sql), run(sql, *rest))[1]):
        assert {row.replica.attempt.number for row in prepared(job=job.id)} == {1}
    assert len(asked) == 1


def test_a_list_of_any_length_is_asked_for_by_few_texts(job: Job) -> None:
    prepared = Prepared(
        lambda job, ranks: Rank.objects.filter(replica__attempt__job=job, rank__in=ranks).order_by("pk"),
        job=JOB, ranks=Several(NUMBER),
    )  # fmt: skip
    rows = live_ranks(job)
    for size in range(1, 9):
        wanted = [row.rank for row in rows][:size]
        known = Rank.objects.filter(replica__attempt__job=job, rank__in=wanted).order_by("pk")
        assert prepared(job=job.id, ranks=wanted) == list(known)
    assert len(prepared._compiled) <= 4
    assert prepared(job=job.id, ranks=()) == []
    texts = len(prepared._compiled)
    assert prepared(job=job.id, ranks=[row.rank for row in rows] + list(range(1000, 1000 + MOST))) == rows
    assert len(prepared._compiled) == texts, "a long list has no text of its own that is kept"


def test_lists_over_relations_are_values_too(job: Job) -> None:
    of_nodes = Prepared(lambda nodes: Device.objects.filter(node__in=nodes).order_by("pk"), nodes=Several(TEXT))
    of_lives = Prepared(lambda lives: Rank.objects.filter(replica_id__in=lives).order_by("pk"), lives=Several(NUMBER))
    nodes, lives = (list(model.objects.values_list("pk", flat=True))[:3] for model in (Node, Replica))
    assert of_nodes(nodes=nodes) == list(Device.objects.filter(node__in=nodes).order_by("pk")) != []
    assert of_lives(lives=lives) == list(Rank.objects.filter(replica__in=lives).order_by("pk")) != []


def test_figures_over_all_rows_are_one_row_also_of_none(job: Job) -> None:
    def of(job: object, moment: object) -> models.QuerySet[Rank]:
        return Rank.objects.filter(replica__attempt__job=job, joined_at__lt=moment).order_by("pk")

    figures = {"n": Count("pk"), "zero": Count("pk", filter=models.Q(rank=0)), "last": models.Max("joined_at")}
    prepared = Prepared(lambda job, moment: figures_of(of(job, moment), **figures), job=TEXT, moment=MOMENT)
    for moment in (now(), job.created_at - timedelta(days=1)):
        assert prepared(job=job.id, moment=moment) == [tuple(of(job.id, moment).aggregate(**figures).values())]
    assert prepared.first(job=job.id, moment=now()) != (0, 0, None)


def test_a_window_is_the_same_while_the_clock_was_never_set_and_after_it_was(job: Job) -> None:
    at, prepared = now(), windows.Within(
        lambda job: Rank.objects.filter(replica__attempt__job=job), "joined_at", lambda rows: rows.order_by("pk"),
        job=TEXT,
    )  # fmt: skip
    for age_s, row in enumerate(live_ranks(job)):
        Rank.objects.filter(pk=row.pk).update(joined_at=at - timedelta(seconds=60.0 * age_s))

    def within(seconds: float) -> list[Rank]:
        steps, rows = windows.known(), Rank.objects.filter(replica__attempt__job=job).order_by("pk")
        found = prepared(seconds, steps, job=job.id)
        assert found == list(windows.within(rows, "joined_at", seconds, steps))
        return found

    assert 0 < len(within(90.0)) < len(within(3600.0))
    before = len(within(90.0))
    # Set ahead by an hour a quarter of a minute ago: the clock of before told the times of an hour ago then.
    ClockStep.objects.create(set_at=at - timedelta(seconds=15.0), step_s=3600.0, boot="")
    assert len(within(90.0)) > before


def test_the_text_is_worked_out_once(job: Job) -> None:
    built: list[object] = []
    prepared = Prepared(lambda job: (built.append(job), Job.objects.filter(pk=job))[1], job=JOB)
    assert [prepared.first(job=job.id), prepared.first(job="other"), prepared.first(job=job.id)] == [job, None, job]
    assert len(built) == 1


def test_who_asks_for_a_row_that_is_there_hears_that_it_is_not(job: Job) -> None:
    prepared = Prepared(lambda job: Job.objects.filter(pk=job), job=JOB)
    assert prepared.get(job=job.id) == job
    with pytest.raises(ObjectDoesNotExist, match="job_of_nobody"):
        prepared.get(job="job_of_nobody")


def test_what_is_missing_not_known_or_none_is_refused(job: Job) -> None:
    prepared = Prepared(lambda job: Job.objects.filter(pk=job), job=JOB)
    for wrong in ({}, {"job": None}, {"job": job.id, "more": 1}):
        with pytest.raises(TypeError, match="a value is needed for each of: job"):
            prepared(**wrong)


def test_what_can_find_nothing_asks_nothing(job: Job) -> None:
    prepared = Prepared(lambda job: Job.objects.filter(pk=job).none(), job=JOB)
    asked: list[str] = []
    with connection.execute_wrapper(lambda run, sql, *rest: (asked.append(sql), run(sql, *rest))[1]):
        assert prepared(job=job.id) == []
    assert asked == []


def test_threads_share_the_text_and_not_the_values(job: Job) -> None:
    prepared = Prepared(lambda node: Device.objects.filter(node=node).order_by("index"), node=models.CharField())
    nodes, wrong = list(Node.objects.values_list("id", flat=True)), list[object]()

    def ask(node_id: str) -> None:
        try:
            for _ in range(50):
                if {row.node_id for row in prepared(node=node_id)} != {node_id}:
                    wrong.append(node_id)
        except Exception as error:
            wrong.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask, args=(node_id,)) for node_id in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_update_changes_the_same_rows_to_the_same_and_says_how_many(job: Job) -> None:
    done = Change(
        lambda job, least, done: (
            Replica.objects.filter(attempt__job=job, committed_step__lt=least),
            {"committed_step": F("committed_step") + done},
        ),
        job=JOB, least=NUMBER, done=NUMBER,
    )  # fmt: skip
    rows = Replica.objects.filter(attempt__job=job).order_by("pk").values_list("committed_step", flat=True)
    before = list(rows.all())
    assert done(job=job.id, least=1_000, done=5) == len(before) > 0
    assert list(rows.all()) == [step + 5 for step in before]
    assert done(job=job.id, least=0, done=5) == 0
    assert list(rows.all()) == [step + 5 for step in before]


def test_an_update_writes_json_moments_and_nothing_and_many_in_one_call(job: Job) -> None:
    change = Change(
        lambda row, at, trained, loss, micro_batches: (
            StepRecord.objects.filter(pk=row),
            {"at": at, "trained": trained, "loss": loss, "micro_batches": micro_batches},
        ),
        row=NUMBER, **{name: StepRecord._meta.get_field(name) for name in ("at", "trained", "loss", "micro_batches")},
    )  # fmt: skip
    moment, pks = now(), list(StepRecord.objects.filter(job=job).order_by("step").values_list("pk", flat=True))
    values: list[dict[str, Any]] = [
        {"at": moment, "trained": [3, 1, 2], "loss": None, "micro_batches": {"0": [0, 2]}},
        {"at": moment - timedelta(days=1), "trained": None, "loss": 1.5, "micro_batches": {}},
    ]
    change.each([{"row": pk, **each} for pk, each in zip(pks, values, strict=True)])
    assert list(StepRecord.objects.filter(job=job).order_by("step").values(*values[0])) == values
    assert StepRecord.objects.filter(job=job, trained__isnull=True).count() == 1
    with pytest.raises(TypeError, match="a value is needed for each"):
        change(row=pks[0])
