"""A node's known end over rows: its agent's notice, people's windows, what is decided of them, what is placed."""

from datetime import timedelta

import pytest

from controlplane.access.models import AuditEntry
from controlplane.fleet import ends
from controlplane.fleet.models import KnownEnd, Node
from controlplane.fleet.present import node_summary
from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.protocol import frames
from controlplane.protocol.spec import Resources, Scheduling
from controlplane.protocol.states import JobState
from controlplane.recovery import ingest, windows
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import iso, now
from controlplane.runtime.errors import Conflict, Invalid, NotFound
from controlplane.runtime.models import Event
from tests.integration.backend.builders import Fleet, hello, live_ranks, make_fleet, make_job, run_job

pytestmark = pytest.mark.django_db(transaction=True)
ADA = "user:ada"
IN_S = 30.0
TWO = Resources(nodes=2, gpus_per_node=2, min_replicas=1)


def notice(in_s: float | None, reason: str = "terminate") -> frames.NodeNotice:
    return frames.NodeNotice(in_s, reason)


def home_of(job: Job, index: int) -> str:
    return next(row.node.name for row in live_ranks(job) if row.replica.index == index)


def decided(job: Job) -> list[Decision]:
    return list(Decision.objects.filter(job=job, rule="known_end").order_by("at"))


def window(name: str, *, starts_s: float, lasts_s: float, fleet: Fleet) -> KnownEnd:
    begins = now() + timedelta(seconds=starts_s)
    times = {"starts_at": begins, "ends_at": begins + timedelta(seconds=lasts_s)}
    (row,) = windows.set_window([fleet.nodes[name].id], **times, reason="new fans", actor=ADA)
    return row


def test_a_notice_of_the_agent_is_a_row_of_its_node_alone_and_the_jobs_there_are_looked_at() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    name = home_of(job, 1)

    fleet.tell(name, notice(IN_S))
    row = KnownEnd.objects.get()
    assert (row.node.name, row.source, row.who, row.reason) == (name, "spot", "agent", "terminate")
    assert abs((row.leaves_at - now()).total_seconds() - IN_S) < 5.0
    assert Event.objects.filter(kind="node.leaves", node_id=row.node_id).count() == 1
    shown = node_summary(Node.objects.get(name=name))["known_end"]
    assert (shown["leaves_at"], shown["back_at"], shown["source"]) == (iso(row.leaves_at), None, "spot")
    facts = {node.name: node.end for node in load_snapshot(Job.objects.get(pk=job.pk)).nodes}
    assert [each for each, end in facts.items() if end is not None] == [name]


def test_what_is_said_again_replaces_what_was_said_and_what_is_withdrawn_is_over() -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", notice(IN_S), notice(90.0, "later"))
    (row,) = KnownEnd.objects.all()
    assert row.reason == "later" and (row.leaves_at - now()).total_seconds() > 60.0
    fleet.tell("n1", notice(None, "it stays"))
    row.refresh_from_db()
    assert row.over_by == "it stays" and not ends.holding().exists()
    assert node_summary(Node.objects.get(name="n1"))["known_end"] is None
    fleet.tell("n1", notice(5.0))
    assert KnownEnd.objects.count() == 2, "another notice is another row"


def test_a_notice_that_waited_in_a_journal_counts_from_when_it_was_read() -> None:
    fleet = make_fleet(1)
    old = frames.AgentEvent(1, 20.0, notice(IN_S))
    ingest.apply_events(fleet.nodes["n1"].id, "web.n1", (old,))
    assert 5.0 < (KnownEnd.objects.get().leaves_at - now()).total_seconds() < 11.0


def test_a_machine_that_has_started_again_has_left_its_notice_behind() -> None:
    fleet = make_fleet(1)
    fleet.tell("n1", notice(IN_S))
    node = fleet.nodes["n1"]
    ingest.open_session(node.id, "web.n1", hello("n1"))
    assert ends.holding().exists(), "its agent alone has started again"
    ingest.open_session(node.id, "web.n1", hello("n1", boot="next"))
    assert not ends.holding().exists()


def test_a_replica_on_a_node_with_a_notice_is_relieved_and_no_incident_and_no_charge_follow() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    name = home_of(job, 1)
    fleet.tell(name, notice(120.0))
    reconcile_job(job.id)
    (ordered,) = [d for d in decided(job) if d.choice == "relieve"]
    assert ordered.evidence["node"] == name and ordered.cost_gpu_s is not None
    old = Replica.objects.get(attempt__job=job, index=1)
    assert old.ordered_out.startswith("its node leaves: ") and old.relieved
    reconcile_job(job.id)
    fresh = Replica.objects.filter(attempt__job=job).order_by("-index").first()
    assert fresh is not None and fresh.index == 3
    assert name not in {rank.node.name for rank in live_ranks(job) if rank.replica.index == 3}
    assert not Incident.objects.exists()
    snapshot = load_snapshot(Job.objects.get(pk=job.pk))
    assert (snapshot.budget.restarts_total, snapshot.budget.evictions_total) == (0, 0)


def test_a_withdrawn_notice_takes_the_order_back() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    name = home_of(job, 1)
    fleet.tell(name, notice(120.0))
    reconcile_job(job.id)
    fleet.tell(name, notice(None, "withdrawn"))
    reconcile_job(job.id)
    assert Replica.objects.get(attempt__job=job, index=1).ordered_out == ""


def test_where_all_must_train_and_nothing_is_free_the_job_ends_with_what_is_left_as_its_grace_and_waits() -> None:
    fleet = make_fleet(3)
    asked = Resources(nodes=3, gpus_per_node=2, min_replicas=3)
    spec = {"resources": asked, "scheduling": Scheduling(preempt_grace_s=25.0)}
    job = run_job(fleet, **spec)
    fleet.tell(home_of(job, 0), notice(20.0))
    reconcile_job(job.id)
    fresh = Job.objects.get(pk=job.pk)
    assert fresh.state == JobState.PREEMPTED and not fresh.parked_by
    assert Attempt.objects.get(job=job).end_code == "preempted"
    (ended,) = [d for d in decided(job) if d.choice == "yield"]
    assert "not relieved" in ended.sentence and not Incident.objects.exists()


def test_a_window_is_set_shown_audited_and_cancelled_once() -> None:
    fleet = make_fleet(2)
    row = window("n1", starts_s=3600.0, lasts_s=7200.0, fleet=fleet)
    assert row.who == ADA and ends.view(row)["capabilities"] == {"cancel": ""}
    windows.cancel(row.pk, reason="no fans came", actor=ADA)
    row.refresh_from_db()
    assert row.over_by == f"{ADA} (no fans came)" and not ends.holding().exists()
    with pytest.raises(Conflict, match="no fans came"):
        windows.cancel(row.pk, reason="again", actor=ADA)
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["node.maintain", "window.cancel"]


def test_times_that_are_none_and_nodes_that_are_not_there_are_refused() -> None:
    fleet = make_fleet(1)
    for starts_s, lasts_s in ((60.0, -1.0), (-3600.0, 1800.0), (60.0, 40 * 86400.0), (400 * 86400.0, 60.0)):
        with pytest.raises(Invalid):
            window("n1", starts_s=starts_s, lasts_s=lasts_s, fleet=fleet)
    later = {"starts_at": now(), "ends_at": now() + timedelta(hours=1), "reason": "r", "actor": ADA}
    with pytest.raises(NotFound):
        windows.set_window([fleet.nodes["n1"].id, "node_404"], **later)
    assert not KnownEnd.objects.exists(), "all or none"
    with pytest.raises(Invalid):
        windows.set_window([], **later)
    for _ in range(windows.MAX_OF_NODE):
        window("n1", starts_s=60.0, lasts_s=60.0, fleet=fleet)
    with pytest.raises(Conflict):
        window("n1", starts_s=60.0, lasts_s=60.0, fleet=fleet)


def test_nothing_is_placed_on_a_node_before_its_window_and_it_takes_work_when_that_is_over() -> None:
    fleet = make_fleet(2)
    row = window("n1", starts_s=600.0, lasts_s=600.0, fleet=fleet)
    job = make_job(resources=TWO)
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == JobState.PENDING, "two nodes are asked for"
    KnownEnd.objects.filter(pk=row.pk).update(leaves_at=now() - timedelta(hours=2), back_at=now())
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == JobState.STARTING


def test_one_that_is_over_before_may_start_there() -> None:
    fleet = make_fleet(2)
    window("n1", starts_s=600.0, lasts_s=600.0, fleet=fleet)
    job = make_job(resources=TWO, scheduling=Scheduling(time_limit_s=300.0))
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == JobState.STARTING
