"""V19, what is the fleet's and speaks of jobs: an outsider of a private project reads every answer there is."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane.access.project_models import Role
from controlplane.changes.kinds import CreatePreemption
from controlplane.fleet.models import KnownEnd, Reservation
from controlplane.jobs.models import Replica
from controlplane.policies.models import ShadowDecision, ShadowRun
from controlplane.recovery import ledger_rows
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark, LedgerRun
from controlplane.recovery.models import Decision, Incident, Request, Signal
from controlplane.recovery.request_rows import ask_of_drain, ask_to_yield
from controlplane.recovery.requests import drain
from controlplane.runtime.clock import now
from controlplane.runtime.events import publish, unit_of_work
from tests.attacks.api.test_v19_projects import outsiders, secrets, world
from tests.integration.api.conftest import make_node
from tests.integration.api.matrix import OPERATIONS, STREAMS
from tests.integration.api.tenants import SECRET, SECRET_JOB, Tenants, account, caller_of, spec
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
READS = sorted(name for name in OPERATIONS if name.startswith("GET ") and name not in STREAMS)
WHO_PARKED = "user:hush-boss"
HOUR = timedelta(hours=1)


def everything() -> tuple[Tenants, dict[str, str]]:
    """The private job beside an open one, with one of each thing of the fleet that both are in; ids for addresses."""
    found = world()
    Signal.objects.filter(job=found.job, kind="rank_exit").update(key="k_exit")
    mine = running_job([make_node("node-4"), make_node("node-5")], spec("mine", "default"))
    node, at = found.nodes[0], now()
    whole = Incident.objects.create(
        id="inc_whole", node=node, title="node-1 failed under 2 jobs", opened_at=at, shared="node"
    )
    Incident.objects.filter(job__in=[found.job, mine]).update(part_of=whole)
    with unit_of_work():
        publish("rank.state", f"Rank 0 of {SECRET_JOB} ended", job_id=found.job.id, node_id=node.id)
        ask_to_yield(found.job, CreatePreemption(mine.id, 1, 1.0, "priority 900", ()))
    _fleet_rows(found, at)
    _ledger(found)
    asked = drain(node.id, reason="r", actor="user:root")
    with unit_of_work():
        ask_of_drain(Replica.objects.filter(attempt__job=found.job)[0], asked.id)
    yields = Request.objects.get(job=mine, urgent=found.job)
    ids = {
        "job_id": mine.id, "incident_id": whole.id, "decision_id": "dec_fleet", "request_id": yields.id,
        "name": "default", "node_id": node.id, "version": "v1", "drain": asked.id,
        "window_id": "end_1", "reservation_id": "rsv_1",
    }  # fmt: skip
    return found, ids


def _fleet_rows(found: Tenants, at: Any) -> None:
    columns = {"at": at, "rule": "r", "reason_code": "r", "sentence": "s", "policy_version": "p", "snapshot": b""}
    Decision.objects.create(id="dec_fleet", job=None, key="b", choice="open", mode="enforce", applied=True, **columns)
    Breaker.objects.create(id="brk_1", code="evict", segment="", reason="3 acts", opened_at=at, decision_id="dec_fleet")
    held = {"reason": "r", "who": "user:root", "said_at": at}
    KnownEnd.objects.create(id="end_1", node=found.nodes[0], source="window", leaves_at=at, back_at=at + HOUR, **held)
    reserved = Reservation.objects.create(
        id="rsv_1", project=found.project.name, starts_at=at, ends_at=at + HOUR, **held
    )
    reserved.nodes.set(found.nodes)
    run = ShadowRun.objects.create(
        role="candidate", state="running", document={}, version="v1", live_number=0, bar={}, who="user:root",
        reason="r", started_at=at,
    )  # fmt: skip
    ShadowDecision.objects.create(
        run=run, decision_id=found.decision.id, key="k", job_id=found.job.id, incident_id=found.incident.id, at=at,
        rule="r", agreement="other", live_choice="a", other_choice="b", why=f"{SECRET_JOB} is no case",
    )  # fmt: skip


def _ledger(found: Tenants) -> None:
    moment_s = now().timestamp()
    LedgerMark.objects.create(name=ledger_rows.ALL, began_s=moment_s - 600.0, judged_s=moment_s)
    replica = Replica.objects.filter(attempt__job=found.job)[0]
    since_s, until_s = moment_s - 500.0, moment_s - 100.0
    LedgerHold.objects.create(
        job=found.job, node=found.nodes[0], replica=replica, from_s=since_s, until_s=until_s, devices=2
    )
    LedgerRun.objects.create(
        job=found.job, attempt=1, since_epoch=0, epoch=1, from_s=since_s, until_s=until_s, kind="recovery", since=0,
        done=1, cause_kind="person", cause_id=WHO_PARKED, judged=True, preempted=True,
    )  # fmt: skip


def test_no_answer_of_any_operation_names_a_private_job_to_an_outsider(db: None) -> None:
    found, ids = everything()
    words, leaks, told = (*secrets(found), found.decision.id, WHO_PARKED), set(), ""
    member, callers = caller_of(account("mia", hush_hush=Role.VIEWER)), outsiders()
    for operation in READS:
        path = operation.removeprefix("GET ").format(**ids) + OPERATIONS[operation].query
        told += member.get(path).content.decode()
        for who, caller in callers.items():
            text = caller.get(path).content.decode()
            leaks |= {(operation, who, word) for word in words if word in text}
    assert not leaks
    assert all(word in told for word in words if word != SECRET), "the words are such as leak"


def test_an_incident_of_the_fleet_tells_of_the_parts_and_events_that_are_seen(db: None) -> None:
    _, ids = everything()
    member, zoe = caller_of(account("mia", hush_hush=Role.VIEWER)), caller_of(account("zoe"))
    inside, outside = (who.get(f"/incidents/{ids['incident_id']}").json() for who in (member, zoe))
    assert [part["job_name"] for part in inside["parts"]] == [SECRET_JOB, "mine"]
    assert [part["job_name"] for part in outside["parts"]] == ["mine"]
    kinds = [[event["kind"] for event in detail["events"]] for detail in (inside, outside)]
    assert "rank.state" in kinds[0] and "node.state" in kinds[0]
    assert "rank.state" not in kinds[1] and "node.state" in kinds[1]


def test_a_shadow_lists_the_decisions_about_jobs_that_are_seen(db: None) -> None:
    found, ids = everything()
    run = ShadowRun.objects.get()
    columns = {"run": run, "key": "k", "at": now(), "rule": "r", "agreement": "other"}
    ShadowDecision.objects.create(decision_id="dec_mine", job_id=ids["job_id"], **columns)
    ShadowDecision.objects.create(decision_id="dec_fleet", **columns)
    member, zoe = caller_of(account("mia", hush_hush=Role.VIEWER)), caller_of(account("zoe"))
    inside, outside = (who.get("/policy/shadow").json()["shadow"] for who in (member, zoe))
    named = [{row["decision_id"] for row in shadow["newest"]} for shadow in (inside, outside)]
    assert named == [{found.decision.id, "dec_mine", "dec_fleet"}, {"dec_mine", "dec_fleet"}]
    assert inside["matrix"] == outside["matrix"], "it is one policy for all projects"


def test_causes_of_what_private_jobs_lost_are_one_row_of_the_ledger(db: None) -> None:
    everything()
    member, zoe = caller_of(account("mia", hush_hush=Role.VIEWER)), caller_of(account("zoe"))
    inside, outside = (who.get("/ledger?by=cause&window_s=600").json() for who in (member, zoe))
    assert WHO_PARKED in [row["id"] for row in inside["rows"]]
    assert [row["id"] for row in outside["rows"] if row["gpu_s"]] == ["unseen"]
    assert inside["known_gpu_s"] == outside["known_gpu_s"] > 0.0


def test_a_token_of_one_project_is_not_told_which_open_job_its_own_waits_for(db: None) -> None:
    world()
    root, amy = account("chief", fleet="admin"), account("amy", hush_hush=Role.SUBMITTER)
    ahead = caller_of(root).post("/jobs", spec("daily-report", "default", priority=900)).json()["id"]
    bound, whole = caller_of(amy, project=SECRET), caller_of(amy)
    assert bound.post("/jobs", spec("zebra-second", SECRET, priority=600)).status_code == 201
    told, kept_back = (who.get("/jobs/zebra-second/queue") for who in (whole, bound))
    assert [each["id"] for each in told.json()["ahead"]] == [ahead] and "daily-report" in told.json()["sentence"]
    assert [each["id"] for each in kept_back.json()["ahead"]] == ["unseen"]
    dry = bound.post("/jobs?dry_run=true", spec("zebra-third", SECRET, priority=500))
    assert "a private job (priority 900)" in dry.json()["waits_for"]
    for answer in (kept_back, dry):
        assert "daily-report" not in answer.content.decode() and ahead not in answer.content.decode()
