"""What lists and the patches of events tell of nodes that are not heard: the same as the decisions see, told when
it begins, when the first step proves that the ranks commit, and when it is over; and it costs as many queries
for a thousand as for one."""

from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Device, Node
from controlplane.fleet.selectors import node_views
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.present import job_summary
from controlplane.policy.document import DEFAULT
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.policy.silence import unheard as judged
from controlplane.protocol.states import AttemptState, JobState, RankState, ReplicaState
from controlplane.recovery import health_gate, signals, unheard
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Signal, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    kill_rank,
    live_ranks,
    make_fleet,
    run_job,
)
from tests.integration.backend.test_evidence import cut_off, silence

pytestmark = pytest.mark.django_db(transaction=True)
MANY = 1_000


@pytest.fixture(autouse=True)
def sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no sentinel here to say so, and a blind control plane believes no silence."""
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)


def silent_job(monkeypatch: pytest.MonkeyPatch, *, silent_s: float = 12.0) -> tuple[Fleet, Job, Rank]:
    """A job that trains, one node of it silent."""
    fleet = make_fleet()
    job = run_job(fleet)
    job.steps.update(at=ago(60.0))
    row = live_ranks(job)[0]
    silence(job, row, monkeypatch, silent_s=silent_s)
    monkeypatch.setattr("controlplane.runtime.bus.read_live", lambda key: None)
    return fleet, job, row


def as_decided(job: Job) -> list[tuple[Any, ...]]:
    """What the policy concludes from the job's whole snapshot."""
    told = judged(load_snapshot(Job.objects.get(pk=job.pk)), DEFAULT)
    return [(fact.node_id, fact.node_name, fact.commits, fact.left_out, round(fact.since_s, 3)) for fact in told]


def as_listed(told: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The same facts of what a list tells."""
    return [
        (
            item["node_id"],
            item["node_name"],
            item["commits"],
            item["left_out"],
            round(datetime.fromisoformat(item["since"]).timestamp(), 3),
        )
        for item in told
    ]


def patches(entity: str, entity_id: str) -> list[list[dict[str, Any]]]:
    """What each patch of it told, in order."""
    rows = Event.objects.filter(entity=entity, entity_id=entity_id, patch__isnull=False).order_by("seq")
    return [row.patch["not_heard"] for row in rows if row.patch is not None]


# --- one truth --------------------------------------------------------------------------------


def test_lists_tell_of_a_job_whose_ranks_commit_what_the_decisions_see(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, job, row = silent_job(monkeypatch)
    assert as_listed(unheard.of_jobs([job.id])[job.id]) == as_decided(job)
    assert as_decided(job)[0][2:4] == (False, False)
    commit_step(fleet, job, 2)
    assert as_listed(unheard.of_jobs([job.id])[job.id]) == as_decided(job)
    assert as_decided(job)[0][2:4] == (True, False)
    assert unheard.of_nodes([row.node_id]) == {row.node_id: unheard.of_jobs([job.id])[job.id]}


def test_lists_tell_of_one_that_was_left_out_what_the_decisions_see(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, job, _ = cut_off(monkeypatch)
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    (told,) = unheard.of_jobs([job.id])[job.id]
    assert (told["commits"], told["left_out"]) == (False, True)
    assert as_listed([told]) == as_decided(job)


def test_a_life_that_was_replaced_and_a_job_that_was_set_back_are_told_as_the_decisions_see_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, job, row = silent_job(monkeypatch)
    commit_step(fleet, job, 2)
    Job.objects.filter(pk=job.pk).update(epoch=99)
    assert as_listed(unheard.of_jobs([job.id])[job.id]) == as_decided(job) != []
    Job.objects.filter(pk=job.pk).update(epoch=ViewRow.objects.filter(job=job).latest("epoch").epoch)
    kill_rank(fleet, row)
    reconcile_job(job.id)
    assert as_listed(unheard.of_jobs([job.id]).get(job.id, [])) == as_decided(job)


def test_of_what_is_heard_nothing_is_told_and_nothing_read(django_assert_num_queries: Any) -> None:
    job = run_job(make_fleet())
    with django_assert_num_queries(1):
        assert unheard.of_jobs([job.id]) == {}
    assert job_summary(job)["not_heard"] == []
    assert [row["not_heard"] for row in node_views(list(Node.objects.all()))] == [[], [], [], []]


# --- told when it changes ---------------------------------------------------------------------


def test_patches_tell_when_it_begins_when_ranks_still_commit_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, job, row = silent_job(monkeypatch)
    Signal.objects.all().delete()
    Event.objects.all().delete()
    found = NodeSilent(job_id=job.id, node_id=row.node_id, node="n1", silent_s=12.0, limit_s=2.0)
    signals.raise_signal(found, seen_at=ago(10.0))
    assert [len(told) for told in patches("job", job.id)] == [1]
    assert patches("job", job.id)[0] == patches("node", row.node_id)[0]
    assert patches("job", job.id)[0][0]["commits"] is False
    began = Event.objects.count()
    commit_step(fleet, job, 2)
    assert patches("job", job.id)[-1][0]["commits"] is True
    assert patches("node", row.node_id)[-1][0]["commits"] is True
    told = Event.objects.count()
    assert told == began + 2, "the job's summary and the node's, once"
    commit_step(fleet, job, 3)
    assert Event.objects.count() == told, "a further step proves nothing new"
    with events.unit_of_work():
        signals.settle_keys("node_silent:", "the node is heard again")
    assert patches("job", job.id)[-1] == patches("node", row.node_id)[-1] == []


def test_a_view_that_cannot_be_read_stops_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, job, _ = silent_job(monkeypatch)
    view = ViewRow.objects.filter(job=job).latest("epoch")
    ViewRow.objects.filter(pk=view.pk).update(view=view.view | {"made_by_a_newer_release": True})
    commit_step(fleet, job, 2)
    assert not any(node.dead_letters.exists() for node in fleet.nodes.values())
    assert patches("job", job.id)[-1][0]["commits"] is False, "who is in it is not known"


# --- cost -------------------------------------------------------------------------------------


def crowd(count: int) -> None:
    """So many jobs, each on a node of its own that is silent."""
    base = run_job(make_fleet())
    job = Job.objects.filter(pk=base.pk).values().get()
    attempt = Attempt.objects.filter(job=base).values().get()
    view = ViewRow.objects.filter(job=base).latest("epoch")
    numbers = range(count)
    nodes = Node.objects.bulk_create(
        Node(id=f"node_s{i:04}", name=f"s{i:04}", public_key=f"k{i:042}", connected=False, disconnected_at=ago(30.0))
        for i in numbers
    )
    devices = Device.objects.bulk_create(
        Device(id=f"dev_s{i:04}", node=nodes[i], index=0, uuid=f"GPU-s{i}") for i in numbers
    )
    jobs = Job.objects.bulk_create(
        Job(**(job | {"id": f"job_s{i:04}", "name": f"s{i:04}", "state": JobState.RUNNING})) for i in numbers
    )
    attempts = Attempt.objects.bulk_create(
        Attempt(**(attempt | {"id": None, "job_id": jobs[i].id, "state": AttemptState.RUNNING})) for i in numbers
    )
    ViewRow.objects.bulk_create(
        ViewRow(
            job=jobs[i], attempt=view.attempt, epoch=view.epoch, view=view.view | {"job_id": jobs[i].id},
            announced_at=view.announced_at,
        )
        for i in numbers
    )  # fmt: skip
    replicas = Replica.objects.bulk_create(
        Replica(attempt=attempts[i], index=0, incarnation=1, state=ReplicaState.ACTIVE, contributing=True)
        for i in numbers
    )
    Rank.objects.bulk_create(
        Rank(replica=replicas[i], rank=0, node=nodes[i], device=devices[i], state=RankState.TRAINING) for i in numbers
    )
    StepRecord.objects.bulk_create(
        StepRecord(job=jobs[i], attempt=1, step=step, epoch=1, at=now() if i % 2 else ago(60.0))
        for i in numbers
        for step in range(3)
    )
    Signal.objects.bulk_create(
        Signal(
            id=f"sig_s{i:04}", kind="node_silent", job=jobs[i], node=nodes[i], key=f"node_silent:{i}", value=30.0,
            threshold=2.0, seen_at=ago(28.0),
        )
        for i in numbers
    )  # fmt: skip


def test_a_thousand_silent_jobs_and_nodes_cost_as_many_queries_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_gate, "silent_by_node", lambda: None)
    crowd(MANY)
    jobs = list(Job.objects.filter(name__startswith="s").order_by("name").values_list("id", flat=True))
    nodes = list(Node.objects.filter(name__startswith="s").order_by("name"))
    costs = set()
    for count in (1, 50, MANY):
        with CaptureQueriesContext(connection) as queries:
            told = unheard.of_jobs(jobs[:count])
        assert [told[job_id][0]["commits"] for job_id in jobs[:count]] == [bool(i % 2) for i in range(count)]
        with CaptureQueriesContext(connection) as views:
            seen = node_views(nodes[:count])
        assert [row["not_heard"][0]["job_id"] for row in seen] == jobs[:count]
        costs.add((len(queries), len(views)))
    assert len(costs) == 1, costs
