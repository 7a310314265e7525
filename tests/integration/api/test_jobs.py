"""Submitting, reading and ordering about jobs."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connections

from controlplane.access.models import IdempotencyKey
from controlplane.access.project_models import Project, Visibility
from controlplane.changes.launches import checkpoint_dir
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.numbers import spec_of
from controlplane.protocol import rest
from controlplane.recovery.models import Decision, Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime.clock import now
from tests.integration.api.conftest import SPEC, Caller, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


def named(name: str) -> dict[str, Any]:
    return SPEC | {"metadata": {"name": name}}


def test_a_submit_answers_where_the_job_is(caller: Any) -> None:
    response = caller("submit").post("/jobs", SPEC)
    assert response.status_code == 201
    job = response.json()
    assert response["Location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["name"], job["state"], job["owner"]) == ("tiny", "pending", "ada")


def test_yaml_and_json_make_the_same_job(caller: Any) -> None:
    text = "metadata: {name: from-yaml}\nspec:\n  resources: {nodes: 1, gpus_per_node: 2}\n"
    response = caller("submit").post("/jobs", text, content_type="application/yaml")
    assert response.status_code == 201
    assert Job.objects.get().spec["spec"]["resources"]["nodes"] == 1


def test_a_faulty_spec_is_told_all_its_faults_and_makes_nothing(caller: Any) -> None:
    spec = {"metadata": {"name": "X"}, "spec": {"resources": {"nodes": 0, "gpu_per_node": 1}}}
    response = caller("submit").post("/jobs", spec)
    assert response.status_code == 422
    told = {error["pointer"] for error in response.json()["errors"]}
    assert told >= {"/metadata/name", "/spec/resources/nodes", "/spec/resources/gpu_per_node"}
    assert not Job.objects.exists()


OWN = {"entrypoint": ["torchrun", "train.py"], "parallelism": {}}
PITFALLS = [
    (OWN, "/spec/entrypoint"),
    (OWN | {"entrypoint": ["nsys", "profile", "python", "train.py"]}, "/spec/entrypoint"),
    (OWN | {"entrypoint": ["python", "train.py"], "parallelism": {"dp": 4}}, "/spec/parallelism/dp"),
    ({"checkpoint": {"dir": ""}}, "/spec/checkpoint/dir"),
    ({"checkpoint": {"dir": "checkpoints"}}, "/spec/checkpoint/dir"),
    ({"checkpoint": {"dir": "/elsewhere"}}, "/spec/checkpoint/dir"),
    ({"checkpoint": {"format": "zarr", "async": True}}, "/spec/checkpoint/format"),
    ({"env": {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}}, "/spec/env/TORCH_NCCL_RETHROW_CUDA_ERRORS"),
    ({"env": {"NCCL_NVLS_ENABLE": "1"}}, "/spec/env/NCCL_NVLS_ENABLE"),
    (
        {"env": {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}, "resiliency": {"timeouts": {"step_s": 90}}},
        "/spec/env/TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    ),
    ({"resiliency": {"timeouts": {"step_s": 700}}}, "/spec/resiliency/timeouts/step_s"),
]


@pytest.mark.parametrize(("change", "pointer"), PITFALLS, ids=[f"{at}-{n}" for n, (_, at) in enumerate(PITFALLS)])
def test_what_would_take_fault_tolerance_away_is_refused_at_submit(
    caller: Any, change: dict[str, Any], pointer: str
) -> None:
    response = caller("submit").post("/jobs", SPEC | {"spec": SPEC["spec"] | change})
    assert response.status_code == 422
    assert pointer in {error["pointer"] for error in response.json()["errors"] if error["fix"]}
    assert not Job.objects.exists()


def test_no_job_is_without_a_place_of_its_own_to_save_in(caller: Any, settings: Any, tmp_path: Path) -> None:
    settings.CHECKPOINT_ROOT = tmp_path
    ada = caller("submit")
    for name in ("one", "two"):
        ada.post("/jobs", named(name))
    places = {checkpoint_dir(spec_of(job).spec, str(settings.CHECKPOINT_ROOT), job.id) for job in Job.objects.all()}
    assert places == {f"{tmp_path}/{job.id}" for job in Job.objects.all()}
    assert len(places) == 2


def test_a_dry_run_places_and_makes_nothing(caller: Any) -> None:
    for number in (1, 2):
        make_node(f"node-{number}")
    answer = caller("submit").post("/jobs?dry_run=true", SPEC).json()
    assert answer["faults"] == []
    assert "/spec/training/seed" in answer["defaults"]
    assert answer["spec"]["spec"]["parallelism"]["pp"] == 2
    assert len(answer["placement"]) == 4
    assert answer["waits_for"] == ""
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("resources", "missing"),
    [
        ({"spares": {"gpus": 2}}, "2 spare devices are asked for, 0 are left after placing the job"),
        ({"gpu_type": "H100"}, "2 replicas of 2 need 4 devices, 0 are free (of type H100)"),
    ],
)
def test_a_dry_run_waits_for_what_the_decision_would_wait_for(
    caller: Any, resources: dict[str, Any], missing: str
) -> None:
    for number in (1, 2):
        make_node(f"node-{number}")
    spec = {**SPEC["spec"], "resources": {**SPEC["spec"]["resources"], **resources}}
    answer = caller("submit").post("/jobs?dry_run=true", SPEC | {"spec": spec}).json()
    assert (answer["placement"], answer["waits_for"], answer["faults"]) == (None, missing, [])
    assert caller("submit").post("/jobs", SPEC | {"spec": spec}).status_code == 201
    job = Job.objects.get()
    reconcile_job(job.id)
    decided = Decision.objects.get(job=job)
    assert (decided.choice, missing in decided.sentence) == ("wait", True)


def test_jobs_are_listed_by_all_the_labels_that_are_asked_for(caller: Any) -> None:
    for name, labels in (("a", {"team": "nlp", "x/y.z": "1"}), ("b", {"team": "nlp"}), ("c", {})):
        assert caller("submit").post("/jobs", SPEC | {"metadata": {"name": name, "labels": labels}}).status_code == 201

    def listed(labels: str) -> list[str]:
        return sorted(job["name"] for job in caller("read").get(f"/jobs?labels={labels}").json()["items"])

    assert listed("team=nlp") == ["a", "b"]
    assert listed("team=nlp,x/y.z=1") == ["a"]
    assert listed("team=vision") == listed("'=1") == []
    refused = caller("read").get("/jobs?labels=team")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/query/labels"


def test_the_schema_of_a_spec_is_there_for_everybody(client: Any) -> None:
    response = client.get("/api/v1/job.schema.json")
    assert (response.status_code, response["Content-Type"]) == (200, "application/schema+json")
    assert response.json()["$defs"]["Resources"]["properties"]["nodes"]["maximum"] == 100_000


def test_a_dry_run_of_a_faulty_spec_lists_the_faults(caller: Any) -> None:
    answer = caller("submit").post("/jobs?dry_run=true", {"metadata": {"name": "x"}}).json()
    assert answer["spec"] is None
    assert {fault["pointer"] for fault in answer["faults"]} == {
        "/spec/resources/nodes",
        "/spec/resources/gpus_per_node",
    }


def test_a_live_name_is_taken_in_its_project(caller: Any) -> None:
    ada = caller("submit")
    ada.post("/jobs", SPEC)
    assert ada.post("/jobs", SPEC).status_code == 409
    Project.objects.create(name="vision", visibility=Visibility.OPEN)
    elsewhere = {**SPEC, "metadata": {**SPEC["metadata"], "project": "vision"}}
    assert ada.post("/jobs", elsewhere).status_code == 201
    assert ada.post("/jobs", {**SPEC, "metadata": {**SPEC["metadata"], "name": "another"}}).status_code == 201
    assert [job["project"] for job in ada.get("/jobs?q=visio").json()["items"]] == ["vision"]


def test_the_same_key_and_request_is_answered_once(caller: Any) -> None:
    ada = caller("submit")
    first = ada.post("/jobs", SPEC, Idempotency_Key="k1")
    again = ada.post("/jobs", SPEC, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again["Location"] == first["Location"]
    assert again["Idempotent-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_the_same_key_with_another_request_is_refused(caller: Any) -> None:
    ada = caller("submit")
    ada.post("/jobs", SPEC, Idempotency_Key="k1")
    assert ada.post("/jobs", named("other"), Idempotency_Key="k1").status_code == 422
    assert Job.objects.count() == 1


def test_a_refused_request_leaves_its_key_free(caller: Any) -> None:
    ada = caller("submit")
    ada.post("/jobs", SPEC)
    assert ada.post("/jobs", SPEC, Idempotency_Key="k1").status_code == 409
    assert not IdempotencyKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_fifty_simultaneous_submits_with_one_key_make_one_job(caller: Any) -> None:
    ada: Caller = caller("submit")
    answers: list[Any] = []
    start = threading.Barrier(50)

    def submit() -> None:
        try:
            start.wait(timeout=60)
            response = ada.post("/jobs", SPEC, Idempotency_Key="race")
            answers.append((response.status_code, response.json()))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(answers) == 50
    assert {status for status, _ in answers} <= {201, 409}
    ids = {body["id"] for status, body in answers if status == 201}
    assert len(ids) == 1
    assert Job.objects.count() == 1


def test_pages_are_complete_and_stable_while_rows_are_added(caller: Any) -> None:
    ada = caller("submit")
    for number in range(7):
        ada.post("/jobs", named(f"job-{number}"))
    seen, cursor = [], ""
    for turn in range(4):
        page = ada.get(f"/jobs?limit=2{cursor}").json()
        seen += [job["name"] for job in page["items"]]
        ada.post("/jobs", named(f"late-{turn}"))
        cursor = f"&cursor={page['next']}"
    assert seen == [f"job-{number}" for number in range(6, -1, -1)]
    assert page["next"] is None


def test_filters_narrow_the_list(caller: Any) -> None:
    ada = caller("submit")
    ada.post("/jobs", named("alpha"))
    ada.post("/jobs", named("beta"))
    assert [job["name"] for job in ada.get("/jobs?q=alp").json()["items"]] == ["alpha"]
    assert ada.get("/jobs?state=running").json()["items"] == []
    assert len(ada.get("/jobs?state=running,pending").json()["items"]) == 2


def test_an_unchanged_job_is_not_sent_again(caller: Any) -> None:
    ada = caller("operate")
    job = ada.post("/jobs", SPEC).json()
    first = ada.get(f"/jobs/{job['id']}")
    assert ada.get(f"/jobs/{job['id']}", **{"If-None-Match": first["ETag"]}).status_code == 304
    ada.post(f"/jobs/{job['id']}:cancel", {"reason": "enough"})
    changed = ada.get(f"/jobs/{job['id']}", **{"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert "cancel" in changed.json()["why"]


def test_a_wish_to_save_is_a_fact_that_the_policy_answers_with_orders_to_every_node(caller: Any) -> None:
    job = running_job([make_node("node-1"), make_node("node-2")], SPEC)
    answer = caller("operate").post(f"/jobs/{job.id}:checkpoint", {"reason": "before the upgrade"})
    assert answer.status_code == 202
    row = Request.objects.get(pk=answer.json()["request"])
    assert (row.kind, row.state, row.reason) == ("checkpoint", "open", "before the upgrade")
    assert not Command.objects.filter(kind="request_save").exists()


def test_an_eviction_is_a_fact_about_that_replica_which_the_policy_answers(caller: Any) -> None:
    job = running_job([make_node("node-1"), make_node("node-2")], SPEC)
    first = caller("operate").post(f"/jobs/{job.id}:evict-replica", {"replica": 1, "reason": "slow"})
    # It trains until another has taken its place; ordered again, it waits for none.
    assert first.status_code == 202
    answer = caller("operate").post(f"/jobs/{job.id}:evict-replica", {"replica": 1, "reason": "now"})
    assert answer.json()["detail"] == (
        "Replica 1 leaves the view now; its processes end when the others train without it."
    )
    asked = Request.objects.order_by("id").values_list("id", "kind", "replica", "reason", "state")
    assert list(asked) == [
        (first.json()["request"], "evict", 1, "slow", "open"),
        (answer.json()["request"], "evict", 1, "now", "open"),
    ]
    # Nothing but the policy touches the replica.
    columns = ("replica__ordered_out", "replica__relieved")
    assert set(Rank.objects.filter(replica__attempt__job=job).values_list(*columns)) == {("", "")}


@pytest.mark.parametrize("verb", ["checkpoint", "evict-replica"])
def test_what_a_pending_job_cannot_do_is_a_conflict(caller: Any, verb: str) -> None:
    ada = caller("operate")
    job = ada.post("/jobs", SPEC).json()
    body = {"reason": "r"} | ({"replica": 0} if verb == "evict-replica" else {})
    assert ada.post(f"/jobs/{job['id']}:{verb}", body).status_code in (404, 409)
    assert not Command.objects.exists()


def test_the_newest_checkpoint_is_corrupted_only_under_the_root(caller: Any, settings: Any, tmp_path: Path) -> None:
    settings.HOLDFAST_DEMO = True
    settings.CHECKPOINT_ROOT = tmp_path / "root"
    inside, outside = tmp_path / "root" / "c1", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "data.distcp").write_bytes(b"\x00" * 4096)
    job = running_job([make_node("node-1"), make_node("node-2")], SPEC, checkpoint_path=str(inside))
    ada = caller("operate")
    assert ada.post("/demo/faults", {"kind": "corrupt_checkpoint", "job_id": job.id}).status_code == 202
    assert (inside / "data.distcp").read_bytes() != b"\x00" * 4096
    job.checkpoints.update(path=str(outside))
    assert ada.post("/demo/faults", {"kind": "corrupt_checkpoint", "job_id": job.id}).status_code == 409
    assert (outside / "data.distcp").read_bytes() == b"\x00" * 4096


def test_an_attempt_that_continued_after_a_preemption_shows_its_certificate(caller: Any) -> None:
    job = running_job([make_node("node-1"), make_node("node-2")], SPEC)
    first = job.attempts.get()
    (before,) = caller("read").get(f"/jobs/{job.id}").json()["attempts"]
    assert before["certificate"] is None
    where = {"of_attempt": 0, "step": 2, "attempt": 0, "epoch": 0, "clock": 0}
    green = {"state": "green", "judged": 1, "of": 1, "step": 3, "repeated": None, "generated_at": None} | {
        "checks": [{"name": "no_step_lost", "ok": True, "detail": "all there", "value": 0, "limit": 0}]
    }
    row = Resumption.objects.create(
        id="res_1", job=job, yielded=0, resumed=first.number, opened_at=now(), recovered_at=now(), began=where,
        ended=where,
    )  # fmt: skip
    shown = caller("read").get(f"/jobs/{job.id}").json()
    assert shown["attempts"][0]["certificate"]["state"] == "pending"
    Resumption.objects.filter(pk=row.pk).update(certificate=green)
    shown = caller("read").get(f"/jobs/{job.id}").json()
    assert msgspec.convert(shown, rest.JobDetail).attempts[0].certificate is not None
    assert shown["attempts"][0]["certificate"] == green
