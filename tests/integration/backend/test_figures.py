"""What Prometheus is told equals what the rows and the processes say."""

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device
from controlplane.jobs.models import Attempt, Job, JobPace, StepRecord
from controlplane.policy.pace import WINDOW, Pace
from controlplane.policy.signals.devices import XidError
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.recovery import gauges, signals
from controlplane.recovery.models import DeadLetter, Decision, Incident
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import beats, exporter, metrics
from controlplane.runtime.address import parse_bind, parse_networks
from controlplane.runtime.clock import after, ago
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.tasks import canary
from tests.findings import finding
from tests.integration.backend.builders import (
    commit_step,
    make_fleet,
    make_job,
    run_job,
)
from tests.integration.backend.servers import Process, RedisServer, Stack

WAIT_S = 60.0


def value(name: str, /, **labels: str) -> float:
    """Of one series of this process's own figures and the fleet's; 0 where there is none."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(exporter.figures(fleet=True).decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.mark.django_db
def test_the_breaker_opens_with_the_very_finding_that_stops_automation() -> None:
    fleet = make_fleet(8)
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="suspect_devices") == 0
    for name in ("n1", "n2"):
        signals.raise_signal(finding(NodeSilent, node_id=fleet.nodes[name].id))
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="suspect_devices") == 0, "4 devices are within the limit"
    third = finding(NodeSilent, node_id=fleet.nodes["n3"].id)
    signals.raise_signal(third)
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="suspect_devices") == 1
    assert value("holdfast_breaker_open", scope="recent_acts") == 0
    signals.settle_keys(third.key, "it is back")
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="suspect_devices") == 0


@pytest.mark.django_db
def test_open_incidents_and_the_age_of_the_oldest_are_those_of_the_rows() -> None:
    gauges.refresh_incidents()
    assert value("holdfast_incidents_open") == 0
    for seconds in (30.0, 700.0):
        Incident.objects.create(id=f"inc_{seconds}", title="t", opened_at=ago(seconds))
    gauges.refresh_incidents()
    gauges.refresh()
    assert value("holdfast_incidents_open") == 2
    assert value("holdfast_incident_oldest_seconds") == pytest.approx(700.0, abs=30.0)
    assert value("holdfast_fleet_refreshed_timestamp_seconds") == pytest.approx(time.time(), abs=30.0)


@pytest.mark.django_db
def test_a_job_that_has_ended_leaves_the_gauges() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=20)
    gauges.refresh()
    assert f'job_id="{job.id}"'.encode() in exporter.figures(fleet=True)
    type(job).objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())
    gauges.refresh()
    assert f'job_id="{job.id}"'.encode() not in exporter.figures(fleet=True)


@pytest.mark.django_db
def test_the_age_of_a_checkpoint_is_that_of_the_newest_good_one_and_else_that_of_the_job() -> None:
    job = run_job(make_fleet(), steps=0)
    job.attempts.update(started_at=ago(5000.0))
    gauges.refresh()
    assert value("holdfast_checkpoint_age_seconds", job_id=job.id) == pytest.approx(5000.0, abs=30.0), "it never saved"
    saves = (
        (2, "complete", 900.0, ""),
        (4, "verified", 400.0, ""),
        (6, "writing", 5.0, ""),
        (8, "replicated", 7.0, "local"),
    )
    for step, state, seconds, kind in saves:
        Checkpoint.objects.create(
            id=f"ckp_{step}", job=job, attempt=1, epoch=1, step=step, state=state, path=f"/c/{step}", kind=kind,
            started_at=ago(seconds + 50.0), committed_at=ago(seconds),
        )  # fmt: skip
    gauges.refresh()
    aged = value("holdfast_checkpoint_age_seconds", job_id=job.id)
    assert aged == pytest.approx(400.0, abs=30.0), "one on the nodes' own disks goes with them"


@pytest.mark.django_db
@pytest.mark.parametrize("many", [1, 60])
def test_every_job_that_lives_has_its_figures_however_many_are_younger(many: int) -> None:
    make_fleet()
    oldest = make_job()
    Job.objects.filter(pk=oldest.pk).update(created_at=ago(9e6))
    Attempt.objects.create(job=oldest, number=1, resume_step=0, replicas=1, layout={})
    oldest.attempts.update(started_at=ago(5000.0))
    paces = [(oldest.id, Pace(best_s=1.0, recent=[1.0] * WINDOW, at_s=ago(4.0).timestamp()))]
    Job.objects.bulk_create([Job(id=f"job_{n}", name=f"j{n}", spec=oldest.spec) for n in range(many)])
    JobPace.objects.bulk_create([JobPace(job_id=job_id, pace=msgspec.to_builtins(pace)) for job_id, pace in paces])
    with CaptureQueriesContext(connection) as asked:
        gauges.refresh()
    assert value("holdfast_checkpoint_age_seconds", job_id=oldest.id) == pytest.approx(5000.0, abs=30.0)
    assert value("holdfast_job_productivity_ratio", job_id=oldest.id) == pytest.approx(1 / 4, rel=0.2)
    assert len(asked) <= 26


@pytest.mark.django_db
def test_the_outbox_is_counted_and_its_oldest_is_timed_from_the_rows() -> None:
    job = run_job(make_fleet(), steps=0)
    Command.objects.all().delete()
    gauges.refresh()
    assert (value("holdfast_outbox_pending"), value("holdfast_outbox_oldest_seconds")) == (0, 0)
    for state, seconds in (("queued", 40.0), ("delivered", 300.0), ("succeeded", 9000.0)):
        Command.objects.create(
            id=f"cmd_{state}", node_id="node_1", job=job, kind="stop_ranks", body={}, state=state,
            created_at=ago(seconds), due_at=after(60.0),
        )  # fmt: skip
    gauges.refresh()
    assert value("holdfast_outbox_pending") == 2
    assert value("holdfast_outbox_oldest_seconds") == pytest.approx(300.0, abs=30.0)


@pytest.mark.django_db
def test_the_dead_letters_that_wait_are_counted_and_no_others() -> None:
    node = make_fleet(1).nodes["n1"]
    for number, state in enumerate(("waiting", "waiting", "replayed", "discarded", "waiting")):
        DeadLetter.objects.create(
            id=f"dlt_{number}", node=node, journal_id="j", seq=number, kind="rank_said", raw=b"", size_bytes=0,
            reason="r", tries=1, state=state, happened_at=ago(9.0), first_seen_at=ago(9.0), last_seen_at=ago(9.0),
        )  # fmt: skip
    gauges.refresh()
    assert value("holdfast_dead_letters_waiting") == 3


@pytest.mark.django_db
def test_devices_are_counted_by_what_their_rows_say() -> None:
    make_fleet(4)
    rows = list(Device.objects.order_by("id"))
    for number, changes in enumerate(({"present": False}, {"present": False}, {"healthy": False}, {"risk": 0.9})):
        Device.objects.filter(pk=rows[number].pk).update(**changes)
    gauges.refresh()
    found = {name: value("holdfast_gpus", health=name) for name in ("total", "lost", "healthy", "at_risk")}
    devices = list(Device.objects.all())
    fit = [device for device in devices if device.present and device.healthy]
    assert found == {
        "total": len(devices), "lost": 2, "healthy": len(fit),
        "at_risk": sum((device.risk or 0.0) >= 0.3 for device in fit),
    }  # fmt: skip
    assert (len(devices), len(fit), found["at_risk"]) == (8, 5, 1)


@pytest.mark.django_db
def test_the_breaker_opens_at_the_twentieth_destructive_act_of_a_minute() -> None:
    job = run_job(make_fleet(), steps=0)
    Decision.objects.all().delete()

    def acts(count: int, prefix: str, **changes: Any) -> None:
        known = {"rule": "restart", "choice": "restart", "applied": True, "at": ago(5.0)} | changes
        Decision.objects.bulk_create(
            Decision(id=f"{prefix}_{n}", job=job, key=f"{prefix}_{n}", snapshot=b"", **known) for n in range(count)
        )

    acts(19, "act")
    acts(9, "old", at=ago(90.0))
    acts(9, "unmade", applied=False)
    acts(9, "other", rule="checkpoint")
    acts(9, "told", choice="tell")
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="recent_acts") == 0
    acts(1, "twentieth")
    gauges.refresh()
    assert value("holdfast_breaker_open", scope="recent_acts") == 1
    assert value("holdfast_breaker_open", scope="suspect_devices") == 0


@pytest.mark.django_db(transaction=True)
def test_decisions_and_detection_are_counted_once_committed() -> None:
    fleet = make_fleet()
    job = make_job()
    decided, found = value("holdfast_decisions_total"), value("holdfast_detection_seconds_count")
    took = value("holdfast_detection_seconds_sum")
    reconcile_job(job.id)
    rows = Decision.objects.filter(job=job).count()
    assert rows > 0
    assert value("holdfast_decisions_total") - decided == rows
    for number, seen_at in ((79, ago(4.0)), (48, after(4000.0))):
        signals.raise_signal(finding(XidError, node_id=fleet.nodes["n1"].id, xid=number), seen_at=seen_at)
    assert value("holdfast_detection_seconds_count") - found == 1, "a clock that was set back is no detection time"
    assert value("holdfast_detection_seconds_sum") - took == pytest.approx(4.0, abs=2.0)


@pytest.mark.django_db(transaction=True)
def test_lost_work_is_the_stalls_and_the_steps_trained_again() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    stall, again = (value("holdfast_lost_work_seconds_total", cause=cause) for cause in ("stall", "repeated"))
    commit_step(fleet, job, 0, stall_s=0.02)
    commit_step(fleet, job, 0, stall_s=0.02)
    assert value("holdfast_lost_work_seconds_total", cause="stall") - stall == pytest.approx(0.02), "told twice"
    assert value("holdfast_lost_work_seconds_total", cause="repeated") == again
    # The same step, as if an attempt before had trained it.
    job.attempts.update(number=2)
    StepRecord.objects.filter(job=job).update(attempt=1)
    commit_step(fleet, job, 0)
    row = StepRecord.objects.get(job=job, attempt=2)
    assert value("holdfast_lost_work_seconds_total", cause="repeated") - again == pytest.approx(row.step_time_s)


@pytest.fixture
def served(settings: Any) -> Iterator[str]:
    """This process's figures on a port of their own; the address."""
    settings.METRICS_BIND = parse_bind("127.0.0.1:0")
    before = dict(exporter._started)
    yield exporter.start("sentinel")
    exporter._started["server"].shutdown()
    exporter._started["server"].server_close()
    exporter._started.update(before)


def status(address: str, path: str = "/metrics", **headers: str) -> int:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_process_serves_its_own_figures_to_named_scrapers_alone(served: str, settings: Any) -> None:
    assert exporter.address() == served
    assert status(served) == 200
    assert status(served, "/else") == 404
    assert status(served, Host="evil.example") == 403, "a page in a browser here could ask so"
    assert status(served, Host="localhost:1") == 200
    settings.METRICS_FROM = parse_networks("10.0.0.0/8")
    assert status(served) == 403


def test_a_port_that_is_taken_stops_no_process(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings.METRICS_BIND = ("127.0.0.1", taken.getsockname()[1])
        assert exporter.start("sentinel") == ""
    settings.METRICS_BIND = parse_bind("off")
    assert exporter.start("sentinel") == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("off", None), ("10.0.0.5", ("10.0.0.5", None)), ("10.0.0.5:0", ("10.0.0.5", 0)),
        ("[::1]:9471", ("::1", 9471)), ("::1", ("::1", None)),
    ],
)  # fmt: skip
def test_a_bind_is_an_address_with_or_without_a_port(text: str, meant: object) -> None:
    assert parse_bind(text) == meant


@pytest.mark.parametrize("text", ["", "somewhere:1", "127.0.0.1:", "127.0.0.1:70000", ":9471"])
def test_a_bind_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bind(text)


@pytest.mark.django_db
def test_a_scraper_inside_asks_a_web_process_by_any_name(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["holdfast.local"]
    settings.METRICS_FROM = parse_networks("127.0.0.0/8,172.30.84.0/24")
    inside, outside = {"REMOTE_ADDR": "172.30.84.7"}, {"REMOTE_ADDR": "198.51.100.7"}
    assert Client().get("/metrics", HTTP_HOST="web-1:8000", **inside).status_code == 200
    assert Client().get("/metrics", HTTP_HOST="web-1:8000", **outside).status_code == 400
    assert Client().get("/metrics", HTTP_HOST="evil.example", REMOTE_ADDR="127.0.0.1").status_code == 400
    assert Client().get("/healthz", HTTP_HOST="web-1:8000", **inside).status_code == 400
    passed_on = Client().get("/metrics", HTTP_HOST="web-1:8000", HTTP_X_FORWARDED_FOR="198.51.100.7", **inside)
    assert passed_on.status_code == 400


@pytest.mark.django_db(transaction=True)
def test_sentinel_and_worker_tell_health_where_they_export(tmp_path: Any, redis_server: RedisServer) -> None:
    stack = Stack(tmp_path, redis_server.url)
    stack.start(worker=True)
    try:
        told = waited(
            lambda: (found := beats.metrics_addresses())["sentinel"] and found["worker"] and found, stack.worker
        )
        families = {}
        for role in ("sentinel", "worker"):
            with urllib.request.urlopen(f"http://{told[role][0]}/metrics", timeout=10) as answer:
                families[role] = {f.name for f in text_string_to_metric_families(answer.read().decode())}
        assert "holdfast_leader" in families["sentinel"]
        assert "holdfast_jobs" not in families["sentinel"], "the fleet's gauges are the web processes' alone"
        assert {"holdfast_recovery_seconds", "holdfast_build_info"} <= families["worker"]
        assert "holdfast_leader" not in families["worker"], "no gauge is set there"
    finally:
        stack.stop()


@pytest.mark.django_db
def test_each_worker_of_a_machine_tells_its_own_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in (9472, 9572):
        monkeypatch.setitem(exporter._started, "address", f"127.0.0.1:{port}")
        canary()
    assert beats.metrics_addresses()["worker"] == ["127.0.0.1:9472", "127.0.0.1:9572"]
    assert beats.view("worker").ok


def waited(check: Any, process: Process) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.1)
    raise AssertionError(process.tail())


def test_the_figures_of_forked_processes_cannot_be_lost_unnoticed(tmp_path: Any) -> None:
    with pytest.raises(exporter.TooLate):
        exporter.share_with_children(tmp_path)


def test_a_leader_that_loses_the_database_does_not_go_on_saying_that_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    leads = Leadership("sentinel:test", 1)
    leads._set_held({0: Held(term=3, kept_s=0.0)})
    assert value("holdfast_leader") == 1

    def away() -> None:
        leads._stop.set()
        raise DatabaseError("away")

    monkeypatch.setattr(leads, "turn", away)
    leads._run()
    assert value("holdfast_leader") == 0
    assert leads.term() is None


def test_what_was_late_between_two_scrapes_is_seen_by_the_next() -> None:
    lag = metrics.WorstLag("a loop of the test")
    for now_s, late_s in ((0.0, 0.1), (1.0, 4.0), (2.0, 0.2), (14.0, 0.0)):
        lag.note(late_s, now_s)
    assert value("holdfast_loop_lag_seconds", loop="a loop of the test") == 4.0
    lag.note(0.0, 1.0 + metrics.LAG_WINDOW_S + 0.5)
    assert value("holdfast_loop_lag_seconds", loop="a loop of the test") == 0.2
    lag.note(0.0, 1000.0)
    assert value("holdfast_loop_lag_seconds", loop="a loop of the test") == 0.0


def test_every_phase_and_cause_begins_with_zero() -> None:
    text = exporter.figures().decode()
    for phase in metrics.PHASES:
        assert f'holdfast_recovery_seconds_count{{phase="{phase}"}}' in text
    assert 'holdfast_lost_work_seconds_total{cause="repeated"}' in text
