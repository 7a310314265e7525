"""One cause, one incident, with its outcome: of a job or of the fleet, seen until it is over."""

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Device, Node
from controlplane.fleet.services import set_device_present, uncordon
from controlplane.jobs.models import Job, Rank
from controlplane.policy import plan
from controlplane.protocol import frames
from controlplane.protocol.rank import CaughtUp
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import IncidentOutcome, IncidentState, Phase, Section
from controlplane.recovery import incidents, selectors
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.present import incident_summary
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.requests import evict
from controlplane.recovery.sweep import sweep
from controlplane.runtime.clock import ago, now
from controlplane.runtime.errors import Conflict
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    job_that_lost_a_rank,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _our_own_side_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no sentinel here to say so, and a blind control plane believes no hang."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def recover(fleet: Fleet, job: Job) -> None:
    """Every view and start that is ordered happens, until the job trains at full strength."""
    for step in range(2, 8):
        reconcile_job(job.id)
        flush_all(fleet, job, committed=step)
        reconcile_job(job.id)
        install_all(fleet, job)
        join_all(fleet, job)
        epoch = Job.objects.get(pk=job.pk).epoch
        for row in live_ranks(job):
            if row.replica.state == "catching_up":
                fleet.tell(row.node.name, frames.RankSaid(ref_of(row), CaughtUp(epoch, step, 0, 0.1, 10, 0)))
        commit_step(fleet, job, step)
        reconcile_job(job.id)
        if not incidents.live_incidents(job):
            return


def free_node(fleet: Fleet) -> str:
    held = set(Rank.objects.filter(released_at=None).values_list("node__name", flat=True))
    return next(name for name in fleet.nodes if name not in held)


def xid(fleet: Fleet, name: str, *, index: int = 1, number: int = 79) -> None:
    fleet.tell(name, frames.XidSeen(XidEvent(index=index, xid=number)))


def phases_of(incident: Incident) -> dict[str, float]:
    return {phase["name"]: phase["since_fault_s"] for phase in Incident.objects.get(pk=incident.pk).phases}


def test_an_xid_on_a_free_node_and_a_kill_on_another_are_two_incidents_each_with_its_name() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    spare = free_node(fleet)
    xid(fleet, spare)
    row = live_ranks(job)[0]
    kill_rank(fleet, row)
    reconcile_job(job.id)
    reconcile_fleet()
    mine, other = Incident.objects.get(job=job), Incident.objects.get(job=None)
    assert row.node.name in mine.title
    assert "SIGKILL" in mine.title
    assert spare in other.title
    assert "XID 79" in other.title
    assert {s.kind for s in mine.signals.all()} == {"rank_exit"}
    assert {s.kind for s in other.signals.all()} == {"xid"}
    assert not Decision.objects.filter(incident=other).exclude(job=None).exists()


def test_two_kills_on_two_nodes_within_one_recovery_are_two_incidents_that_end_together() -> None:
    fleet = make_fleet(6)
    job = run_job(fleet)
    rows = live_ranks(job)
    kill_rank(fleet, rows[0])
    reconcile_job(job.id)
    second = next(row for row in rows if row.replica.index == 1)
    kill_rank(fleet, second)
    reconcile_job(job.id)
    assert len(incidents.live_incidents(job)) == 2
    recover(fleet, job)
    ended = list(Incident.objects.filter(job=job))
    assert [row.outcome for row in ended] == [IncidentOutcome.RECOVERED] * 2
    assert {tuple(sorted(incidents.slots_of(row))) for row in ended} == {(0,), (1,)}
    assert all(row.certificate is not None for row in ended)


def test_a_second_fault_of_the_same_slot_belongs_to_the_incident_of_the_first() -> None:
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    join_all(fleet, job)
    again = next(row for row in live_ranks(job) if row.replica.index == 0)
    kill_rank(fleet, again)
    reconcile_job(job.id)
    assert Incident.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("kind", ["xid", "device_lost"])
def test_a_fault_without_any_job_is_decided_by_the_next_sweep_and_over_when_a_person_returns_the_node(
    kind: str,
) -> None:
    fleet = make_fleet(2)
    if kind == "xid":
        xid(fleet, "n2")
    else:
        fleet.tell("n2", frames.DeviceLost(1, "GPU-n2-1"))
    sweep()
    sweep()
    assert Node.objects.get(name="n2").state == "cordoned"
    assert not Device.objects.get(node__name="n2", index=1).healthy
    incident = Incident.objects.get()
    decision = Decision.objects.get()
    assert (incident.job, incident.state, incident.needs_hardware) == (None, IncidentState.MITIGATED, True)
    assert (decision.incident, decision.rule, decision.choice) == (incident, "device_fault", "cordon")
    assert selectors.fleet_snapshot_of(decision).nodes[0].name == "n2"
    assert incident.certificate is None
    assert AuditEntry.objects.filter(decision_id=decision.id).exists()
    assert selectors.incident_detail(incident.id)["events"]
    if kind == "device_lost":
        uncordon(incident.node_id, reason="the other card is good", actor="user:ada")
        sweep()
        incident.refresh_from_db()
        assert incident.state == IncidentState.MITIGATED, "the lost one is out still"
        set_device_present(Device.objects.select_related("node").get(node__name="n2", index=1))
    else:
        uncordon(incident.node_id, reason="new card", actor="user:ada")
    sweep()
    incident.refresh_from_db()
    assert (incident.state, incident.outcome) == (IncidentState.RESOLVED, IncidentOutcome.RECOVERED)
    assert "Device 1 of n2 is healthy again" in incident.resolution


def test_a_finding_waits_for_the_fleet_when_the_job_that_it_was_told_with_has_ended() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    xid(fleet, row.node.name, index=row.device.index)
    Job.objects.filter(pk=job.pk).update(state="cancelled")
    assert Signal.objects.get(kind="xid").job_id == job.id
    reconcile_fleet()
    assert Incident.objects.get().job is None
    assert Node.objects.get(pk=row.node_id).state == "cordoned"


def test_a_fault_under_a_replica_is_the_jobs_and_waits_for_hardware_after_the_job_has_recovered() -> None:
    fleet = make_fleet(6)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    xid(fleet, row.node.name, index=row.device.index)
    reconcile_fleet()
    assert not Incident.objects.exists(), "the job's own pass decides it"
    reconcile_job(job.id)
    for rank in [rank for rank in live_ranks(job) if rank.replica.index == row.replica.index]:
        fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), None, 9, True))
    recover(fleet, job)
    reconcile_fleet()
    incident = Incident.objects.get()
    assert (incident.job, incident.state) == (job, IncidentState.MITIGATED), "the card is dead still"
    assert incident.resolved_at is None
    assert incident.recovered_at is not None
    assert incident_summary(incident)["recovery_s"] == pytest.approx(phases_of(incident)["full_strength"])
    incidents.acknowledge(incident.id, actor="user:ada", reason="RMA 4711")
    incident.refresh_from_db()
    assert (incident.state, incident.outcome) == (IncidentState.RESOLVED, IncidentOutcome.MITIGATED)
    assert "user:ada has it now: RMA 4711" in incident.resolution


def test_more_findings_on_one_device_are_one_incident_and_on_another_node_two() -> None:
    fleet = make_fleet(3)
    for name, number in (("n2", 79), ("n2", 48), ("n3", 79)):
        xid(fleet, name, number=number)
        reconcile_fleet()
    assert sorted(row.signals.count() for row in Incident.objects.all()) == [1, 2]


def test_a_flood_of_lost_devices_is_held_for_a_person_however_slowly_it_comes() -> None:
    fleet = make_fleet(12)
    for number in range(1, 13):
        fleet.tell(f"n{number}", frames.DeviceLost(1, f"GPU-n{number}-1"))
        reconcile_fleet()
    cordoned = Node.objects.filter(state="cordoned").count()
    assert 0 < cordoned <= 5, "a tenth of the fleet, and at least four devices, are believed"
    assert set(Decision.objects.values_list("choice", flat=True)) == {"cordon", "hold", "open"}
    assert incidents.need_attention().count() == 12, "what is held is shown all the same"


def test_history_that_is_settled_at_full_strength_joins_its_own_incident_alone() -> None:
    fleet = make_fleet(6)
    job = run_job(fleet)
    rows = live_ranks(job)
    kill_rank(fleet, rows[0])
    reconcile_job(job.id)
    late = next(row for row in rows if row.replica.index == 0 and row.pk != rows[0].pk)
    kill_rank(fleet, late)
    recover(fleet, job)
    (incident,) = Incident.objects.all()
    assert incident.signals.filter(kind="rank_exit").count() == 2
    assert "full_strength" in set(incident.decisions.values_list("choice", flat=True))


def fail(fleet: Fleet) -> tuple[Job, Incident]:
    job = run_job(fleet, resiliency={"budget": {"max_restarts": 0}})
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == "failed", "nobody is left to go on"
    return job, Incident.objects.get(job=job)


def test_a_job_that_failed_is_lost_without_a_recovery_time_or_a_certificate_until_acknowledged() -> None:
    fleet = make_fleet()
    _, incident = fail(fleet)
    told = incident_summary(incident)
    assert (told["state"], told["outcome"]) == ("resolved", "lost")
    assert told["recovery_s"] is None
    assert told["certificate"] is None
    assert incident.certificate_due_at is None
    assert not {"full_strength", "smaller_strength"} & set(phases_of(incident))
    assert list(incidents.need_attention()) == [incident]
    incidents.acknowledge(incident.id, actor="user:ada", reason="the owner knows", request_id="r1")
    assert not incidents.need_attention().exists()
    entry = AuditEntry.objects.get(action="incident.acknowledge")
    assert (entry.actor, entry.subject, entry.reason) == ("user:ada", incident.id, "the owner knows")
    with pytest.raises(Conflict, match="user:ada has acknowledged it already"):
        incidents.acknowledge(incident.id, actor="user:bob", reason="me too")


def test_detection_counts_from_the_last_progress_of_the_rank_that_hangs() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    body = frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 2, 25.0, 20.0, 0.1)
    fleet.tell(row.node.name, body)
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    signal = incident.signals.get(kind="rank_overdue")
    phases = phases_of(incident)
    assert signal.evidence["age_s"] == 25.0
    assert phases["fault"] == 0.0
    assert 25.0 <= phases["detected"] <= phases["decided"]
    stood_still = (signal.created_at - (signal.seen_at - timedelta(seconds=25.0))).total_seconds()
    assert phases["detected"] == pytest.approx(stood_still)


def test_silence_counts_from_the_last_word_of_the_node() -> None:
    fleet = make_fleet(1)
    heard = ago(14.0)
    signal = Signal.objects.create(
        id="sig_1", kind="node_silent", key="k", node=fleet.nodes["n1"], value=4.1, threshold=4.0,
        seen_at=heard + timedelta(seconds=4.0),
    )  # fmt: skip
    incident = Incident.objects.create(id="inc_1", title="t", opened_at=signal.seen_at)
    Signal.objects.update(incident=incident)
    incidents.refresh_phases(incident)
    assert datetime.fromisoformat(incident.phases[0]["at"]) == heard
    assert phases_of(incident)["detected"] >= 14.0


def test_an_ordered_eviction_begins_with_the_order_and_no_phase_lies_before_it() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    for _ in range(2):
        evict(job, 2, reason="rack 7", actor="user:ada")
    for row in [row for row in live_ranks(job) if row.replica.index == 2]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))
    recover(fleet, job)
    incident = Incident.objects.get(job=job)
    assert incident.title == "Replica 2 evicted at the request of user:ada"
    names = [phase["name"] for phase in incident.phases]
    times = [phase["since_fault_s"] for phase in incident.phases]
    assert names[:2] == ["ordered", "decided"]
    assert names[-1] == "full_strength"
    assert "fault" not in names
    assert times == sorted(times)
    assert times[0] == 0.0


def test_a_decision_without_a_signal_is_never_older_than_its_incident() -> None:
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    for incident in Incident.objects.all():
        assert all(phase["since_fault_s"] >= 0.0 for phase in incident.phases)


def test_a_job_that_goes_on_smaller_is_mitigated_and_says_so() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row = live_ranks(job)[0]
    Node.objects.filter(pk=row.node_id).update(state="cordoned")
    kill_rank(fleet, row)
    reconcile_job(job.id)
    incidents.resolve(Job.objects.get(pk=job.pk), "2 of 3 replicas train, stable.", IncidentOutcome.MITIGATED)
    incident = Incident.objects.get(job=job)
    assert (incident.state, incident.outcome) == ("resolved", "mitigated")
    assert "smaller_strength" in phases_of(incident)
    assert "full_strength" not in phases_of(incident)


def test_hundreds_of_findings_of_the_fleet_are_decided_in_one_sweep_and_asked_about_once() -> None:
    fleet = make_fleet(2)
    Device.objects.bulk_create(
        Device(id=f"dev_{i}", node=fleet.nodes["n2"], index=i, uuid=f"GPU-x-{i}", model="T", driver="simulated")
        for i in range(2, 302)
    )
    Signal.objects.bulk_create(
        Signal(
            id=f"sig_{i:04d}", kind="xid", key=f"xid:{i}", node=fleet.nodes["n2"], device_index=i, value=63.0,
            seen_at=now(),
        )
        for i in range(2, 302)
    )  # fmt: skip
    assert reconcile_fleet() == 300
    assert reconcile_fleet() == 0
    assert Decision.objects.filter(job=None).count() == 300


def test_a_pass_with_nothing_new_writes_nothing_and_reads_no_more_in_a_larger_fleet() -> None:
    fleet = make_fleet(2)
    xid(fleet, "n2")
    reconcile_fleet()
    with CaptureQueriesContext(connection) as small:
        assert reconcile_fleet() == 0
    for number in range(3, 40):
        Node.objects.create(id=f"node_{number}", name=f"n{number}", public_key=f"{number:043d}")
    with CaptureQueriesContext(connection) as large:
        assert reconcile_fleet() == 0
    assert len(large) == len(small)
    assert not [query for query in large if not query["sql"].startswith("SELECT")]


def test_a_job_that_only_observes_keeps_its_dead_device_in_sight() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet, resiliency={"mode": "observe"})
    row = live_ranks(job)[0]
    xid(fleet, row.node.name, index=row.device.index)
    reconcile_job(job.id)
    incidents.resolve(Job.objects.get(pk=job.pk), "All 3 replicas train.", IncidentOutcome.RECOVERED)
    reconcile_fleet()
    incident = Incident.objects.get(job=job)
    assert Node.objects.get(pk=row.node_id).state == "ready", "nothing was done"
    assert incident.state == IncidentState.MITIGATED
    assert incident.needs_hardware


@pytest.mark.parametrize("settled", [False, True])
def test_what_was_found_in_one_recovery_and_dealt_with_after_it_is_told_by_the_incident_that_deals_with_it(
    settled: bool,
) -> None:
    fleet, job = job_that_lost_a_rank()
    first = Incident.objects.get(job=job)
    known = first.signals.get(kind="rank_exit")
    risky = Signal.objects.create(
        id="sig_risky", job=job, node=known.node, device_index=known.device_index, kind="device_risk", key="k",
        incident=first, seen_at=known.seen_at, settled_at=known.seen_at if settled else None,
    )  # fmt: skip
    recover(fleet, job)
    chosen = plan.Decision(
        rule="device_risk", choice="save", reason_code="device_risk", sentence="Device 1 scores 0.3.",
        signal_ids=(risky.pk,), actions=(plan.RequestCheckpoint(kind="emergency"),), key="k",
    )  # fmt: skip
    second = incidents.incident_for(job, chosen, known.seen_at)
    assert second is not None and second.pk != first.pk
    assert [row.pk for row in second.signals.all()] == ([] if settled else [risky.pk])
