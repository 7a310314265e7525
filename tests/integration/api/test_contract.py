"""Real answers are what protocol.rest and openapi.json say, field by field."""

import json
import re
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from django.test import override_settings

from controlplane.api import openapi, shapes
from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.services import refresh_job
from controlplane.policies.services import Edit, put
from controlplane.policies.whose import FLEETS
from controlplane.policy.document import Ground
from controlplane.protocol import rest
from controlplane.protocol.frames import AgentEvent, DeviceLost
from controlplane.recovery import deadletter
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.requests import checkpoint
from controlplane.runtime.clock import now
from controlplane.runtime.events import publish, unit_of_work
from controlplane.sdk.calls import Page
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db

SINGLE: list[tuple[str, Any]] = [
    ("/me", rest.Me),
    ("/version", rest.Version),
    ("/overview", rest.Overview),
    ("/jobs/{job}", rest.JobDetail),
    ("/jobs/{job}/logs", rest.Log),
    ("/jobs/{job}/mesh", shapes.JobMesh),
    ("/incidents/{incident}", rest.IncidentDetail),
    ("/incidents/{incident}/readings", rest.IncidentReadings),
    ("/decisions/{decision}", rest.DecisionDetail),
    ("/requests/{request}", rest.RequestDetail),
    ("/policy", rest.Policy),
    ("/policy?job_id={job}", rest.Policy),
    ("/policy?project=default", rest.Policy),
    ("/policy/diff?before=0&after=1", rest.PolicyDiff),
    ("/policy/xids", rest.XidTable),
    ("/policy/recorded/{policy}", rest.RecordedPolicy),
    ("/nodes/{node}", rest.NodeDetail),
    ("/nodes:columns", shapes.NodeColumns),
    ("/projects/default", rest.ProjectDetail),
    ("/nodes/{node}/series", rest.Series),
]
LISTS: list[tuple[str, Any]] = [
    ("/jobs", rest.Job),
    ("/jobs/{job}/replicas", rest.Replica),
    ("/jobs/{job}/steps", rest.Step),
    ("/jobs/{job}/events", rest.Event),
    ("/jobs/{job}/decisions", rest.Decision),
    ("/jobs/{job}/incidents", rest.Incident),
    ("/jobs/{job}/checkpoints", rest.Checkpoint),
    ("/jobs/{job}/commands", rest.Command),
    ("/incidents", rest.Incident),
    ("/requests", rest.Request),
    ("/policy/versions", rest.PolicyVersion),
    ("/events", rest.Event),
    ("/nodes", rest.Node),
    ("/nodes/{node}/dead-letters", rest.DeadLetter),
    ("/tokens", rest.Token),
    ("/audit", rest.AuditEntry),
    ("/settings", rest.Setting),
    ("/projects", rest.Project),
    ("/demo/faults", rest.Fault),
]


@pytest.fixture
def ids(db: None) -> dict[str, str]:
    nodes = [make_node("node-1"), make_node("node-2")]
    job = running_job(nodes, SPEC)
    with unit_of_work():
        deadletter.put(nodes[0], AgentEvent(1, 0.0, DeviceLost(9, "GPU-9")), ValueError("no such device"), tries=3)
    edit = Edit(parent=0, reason="r", actor="user:ada")
    policy = put(FLEETS, {"lease_s": 20, "rule_modes": {"straggler": "observe"}}, edit, Ground())
    return {
        "job": job.id,
        "policy": policy.version,
        "node": nodes[0].id,
        "incident": Incident.objects.get().id,
        "decision": Decision.objects.order_by("-id")[0].id,
        "request": checkpoint(job, reason="r", actor="user:ada").id,
    }


def missing_fields(kind: Any, value: Any, path: str = "") -> list[str]:
    """Fields of the type that the answer lacks, and fields it has beyond the type."""
    if isinstance(value, list):
        inner = getattr(kind, "__args__", (None,))[0]
        return [fault for item in value for fault in missing_fields(inner, item, path + "[]")]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        faults = [f"{path}.{name}" for name in set(fields) ^ set(value) if name not in OPTIONAL]
        for name in set(fields) & set(value):
            faults += missing_fields(inner_struct(fields[name]), value[name], f"{path}.{name}")
        return faults
    return []


OPTIONAL = {"beat_age_s", "patch", "as_of_seq", "token", "job_id", "job_name", "commands"}


def inner_struct(kind: Any) -> Any:
    """T of `T | None`."""
    args = [arg for arg in getattr(kind, "__args__", ()) if arg is not type(None)]
    return args[0] if args and type(None) in getattr(kind, "__args__", ()) else kind


@override_settings(HOLDFAST_DEMO=True)
def test_an_object_is_what_its_type_says(caller: Any, ids: dict[str, str]) -> None:
    admin = caller("admin")
    for path, kind in SINGLE:
        response = admin.get(path.format(**ids))
        assert response.status_code == 200, (path, response.content)
        msgspec.json.decode(response.content, type=kind)
        assert missing_fields(kind, response.json(), path) == []


@override_settings(HOLDFAST_DEMO=True)
def test_a_list_is_what_its_type_says(caller: Any, ids: dict[str, str]) -> None:
    admin = caller("admin")
    for path, kind in LISTS:
        response = admin.get(path.format(**ids))
        assert response.status_code == 200, (path, response.content)
        page = msgspec.json.decode(response.content, type=Page[kind])
        assert page.items, f"{path}: a list without rows proves nothing"
        assert page.as_of_seq > 0, path
        assert [fault for item in response.json()["items"] for fault in missing_fields(kind, item, path)] == []


def test_the_committed_schema_is_current() -> None:
    assert openapi.TARGET.read_text() == openapi.render(), "python -m controlplane.api.openapi --write"


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    document = json.loads(openapi.render())
    asked = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert asked - set(document["components"]["schemas"]) == set()


def test_every_operation_has_a_name_a_summary_and_its_problems() -> None:
    for path, operations in json.loads(openapi.render())["paths"].items():
        for method, operation in operations.items():
            assert operation["operationId"] and operation["summary"] and operation["description"], (method, path)
            assert {"400", "500"} <= set(operation["responses"]), (method, path)


def test_two_reads_of_the_same_state_are_equal(caller: Any, ids: dict[str, str]) -> None:
    ada = caller("read")
    first, again = (ada.get(f"/jobs/{ids['job']}/decisions").json() for _ in range(2))
    assert first == again


def test_routine_decisions_can_be_left_out(caller: Any, ids: dict[str, str]) -> None:
    ada = caller("read")
    counts = [
        len(ada.get(f"/jobs/{ids['job']}/decisions{q}").json()["items"])
        for q in ("", "?routine=true", "?routine=false")
    ]
    assert counts == [2, 1, 1]


def test_events_go_on_after_a_sequence_number(caller: Any, ids: dict[str, str]) -> None:
    ada = caller("read")
    items = ada.get("/events?limit=500").json()["items"]
    after = items[0]["seq"]
    assert [event["seq"] for event in ada.get(f"/events?after_seq={after}&limit=1").json()["items"]] == [after + 1]


def test_the_newest_events_can_be_asked_for_and_only_those_that_say_something(caller: Any, ids: dict[str, str]) -> None:
    ada = caller("read")
    for number in range(3):
        with unit_of_work():
            publish("job.note", f"Note {number}.", job_id=ids["job"])
        with unit_of_work():
            refresh_job(ids["job"])
    path = f"/jobs/{ids['job']}/events?limit=2"
    assert [event["sentence"] for event in ada.get(f"{path}&newest=true").json()["items"]] == ["Note 2.", ""]
    assert [event["sentence"] for event in ada.get(f"{path}&newest=true&with_sentence=true").json()["items"]] == [
        "Note 1.",
        "Note 2.",
    ]


def test_every_event_is_reached_from_the_newest_back_to_the_first(caller: Any, ids: dict[str, str]) -> None:
    ada, path = caller("read"), f"/jobs/{ids['job']}/events?newest=true&with_sentence=true"
    whole = [event["seq"] for event in ada.get(f"{path}&limit=500").json()["items"]]
    found: list[int] = []
    while page := ada.get(f"{path}&limit=2" + (f"&before_seq={found[0]}" if found else "")).json()["items"]:
        found = [event["seq"] for event in page] + found
    assert found == whole != []


@pytest.mark.parametrize(
    ("points", "steps"), [(2, [0, 9]), (4, [0, 4, 8, 9]), (6, [0, 2, 4, 6, 8, 9]), (10, [*range(10)])]
)
def test_many_steps_are_told_by_a_few_evenly_spread_and_the_newest(
    caller: Any, ids: dict[str, str], points: int, steps: list[int]
) -> None:
    job = Job.objects.get(pk=ids["job"])
    for step in range(3, 10):
        StepRecord.objects.create(
            job=job, attempt=1, step=step, epoch=1, at=now(), loss=2.0, step_time_s=0.5, tokens=768
        )
    items = caller("read").get(f"/jobs/{job.id}/steps?points={points}").json()["items"]
    assert [item["step"] for item in items] == steps


def test_the_newest_summary_until_an_instant_is_how_the_job_was_then(caller: Any, ids: dict[str, str]) -> None:
    ada, path = caller("read"), f"/jobs/{ids['job']}/events?newest=true&limit=1"
    began = ada.get(f"{path}&entity=job").json()["items"][0]
    until = f"&until={quote(began['at'])}"
    with unit_of_work():
        Job.objects.filter(pk=ids["job"]).update(state_reason="of later")
        refresh_job(ids["job"])
        publish("job.note", "It has no summary.", job_id=ids["job"], entity="job", entity_id=ids["job"])
    (newest,) = ada.get(f"{path}&entity=job").json()["items"]
    assert newest["seq"] > began["seq"] and newest["patch"]["state_reason"] == "of later"
    (then,) = ada.get(f"{path}&entity=job{until}").json()["items"]
    assert then == began
    assert ada.get(f"{path}&until=2001-01-01T00:00:00Z").json()["items"] == []
    for wrong in ("until=yesterday", "until=2026-11-29T14:00:00", "entity=policy"):
        assert ada.get(f"{path}&{wrong}").status_code == 422, wrong
