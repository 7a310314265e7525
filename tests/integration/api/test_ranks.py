"""Orders about one rank: who may give them, what is refused, what they leave behind."""

from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job
from controlplane.recovery.models import RankLook, Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.events import unit_of_work
from controlplane.runtime.models import Event
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
FAULT = {"replica": 1, "rank": 0, "fault": "segfault", "reason": "rehearsal"}
DEBUG = {"replica": 1, "rank": 0, "diagnostic": "flight_recorder", "reason": "it hangs"}
TRACE = {"name": "trace_allocations", "duration_s": 2.0, "group_by": "file"}
COMMAND = {"replica": 1, "rank": 0, "command": {"name": "collect_garbage"}, "reason": "it swaps"}


def world(*, allow_faults: bool = True) -> Job:
    """Two replicas of two ranks that train."""
    spec = SPEC | {"spec": SPEC["spec"] | {"resiliency": {"allow_faults": allow_faults}}}
    return running_job([make_node("node-1"), make_node("node-2")], spec)


def test_a_fault_is_asked_for_audited_and_given_by_the_policy(caller: Any) -> None:
    job = world()
    answer = caller("operate").post(f"/jobs/{job.id}:fault", FAULT)
    assert answer.status_code == 202, answer.content
    row = Request.objects.get(pk=answer.json()["request"])
    assert (row.kind, row.state, row.job_id, row.code, row.replica, row.incarnation, row.rank) == (
        "fault", "open", job.id, "segfault", 1, 1, 0,
    )  # fmt: skip
    entry = AuditEntry.objects.get(action="job.fault")
    assert (entry.subject, entry.reason, entry.data["fault"]) == (job.id, "rehearsal", "segfault")
    assert not Command.objects.filter(kind="inject_rank_fault").exists()
    reconcile_job(job.id)
    command = Command.objects.get(kind="inject_rank_fault")
    assert {k: command.body[k] for k in ("replica", "incarnation", "rank", "fault")} == {
        "replica": 1, "incarnation": 1, "rank": 0, "fault": "segfault",
    }  # fmt: skip
    assert command.node.name == "node-2"
    row.refresh_from_db()
    assert (row.state, row.done_by, row.decision_id) == ("taken", command.decision_id, command.decision_id)
    # Asked for by a person, it was written down once.
    assert AuditEntry.objects.filter(action="job.fault").count() == 1


def test_a_job_that_allows_no_faults_is_not_broken(caller: Any) -> None:
    job = world(allow_faults=False)
    answer = caller("operate").post(f"/jobs/{job.id}:fault", FAULT)
    assert answer.status_code == 409
    assert "allow_faults set to true" in answer.json()["detail"]
    assert not Request.objects.exists()
    assert not AuditEntry.objects.filter(action="job.fault").exists()


@pytest.mark.parametrize(
    ("verb", "body", "change", "status", "words"),
    [
        ("fault", FAULT, {"fault": "meteor"}, 422, "use abort, communication"),
        ("fault", FAULT, {"rank": 9}, 404, "has no rank 9"),
        ("fault", FAULT, {"replica": 9}, 404, "has no replica 9"),
        ("fault", FAULT, {"value": -1}, 422, "value"),
        ("debug", DEBUG, {"diagnostic": "soul"}, 422, "use ping, stacks"),
        ("debug", DEBUG, {"duration_s": 60}, 422, "duration_s"),
        ("debug", DEBUG, {"reason": ""}, 422, "reason"),
        ("command-rank", COMMAND, {"command": {"name": "tea"}}, 422, "use collect_garbage, trace_allocations"),
        ("command-rank", COMMAND, {"command": {"name": "collect_garbage", "hot": True}}, 422, "unknown field `hot`"),
        ("command-rank", COMMAND, {"command": TRACE | {"duration_s": 99}}, 422, "/command/duration_s"),
        ("command-rank", COMMAND, {"command": TRACE | {"group_by": "colour"}}, 422, "use file, line"),
        ("command-rank", COMMAND, {"rank": 9}, 404, "has no rank 9"),
    ],
)
def test_a_wrong_order_is_refused_with_words(
    caller: Any, verb: str, body: dict[str, Any], change: dict[str, Any], status: int, words: str
) -> None:
    job = world()
    answer = caller("operate").post(f"/jobs/{job.id}:{verb}", body | change)
    assert answer.status_code == status
    assert words in answer.content.decode()


def test_a_rank_is_looked_at_once_at_a_time(caller: Any) -> None:
    job, operator = world(), caller("operate")
    first = operator.post(f"/jobs/{job.id}:debug", DEBUG | {"diagnostic": "profile"})
    assert first.status_code == 202
    command = Command.objects.get(kind="collect_stacks")
    assert (command.body["look"], command.body["rank"], command.body["duration_s"]) == ("profile", 0, 2.0)
    assert AuditEntry.objects.get(action="job.debug").data == {"replica": 1, "rank": 0, "diagnostic": "profile"}
    again = operator.post(f"/jobs/{job.id}:debug", DEBUG)
    assert again.status_code == 409
    assert "is already running" in again.json()["detail"]
    assert operator.post(f"/jobs/{job.id}:debug", DEBUG | {"rank": 1}).status_code == 202
    Command.objects.update(state="succeeded")
    assert operator.post(f"/jobs/{job.id}:debug", DEBUG).status_code == 202


def test_a_rank_is_commanded_as_the_incarnation_that_it_is_and_audited(caller: Any) -> None:
    job = world()
    answer = caller("operate").post(f"/jobs/{job.id}:command-rank", COMMAND | {"command": TRACE})
    assert answer.status_code == 202, answer.content
    command = Command.objects.get(pk=answer.json()["command_ids"][0])
    assert (command.kind, command.node.name, command.epoch) == ("command_rank", "node-2", job.epoch)
    assert command.body == {
        "kind": "command_rank", "job_id": job.id, "attempt": 1, "replica": 1, "incarnation": 1, "rank": 0,
        "name": "trace_allocations", "fields": {"duration_s": 2.0, "group_by": "file"},
    }  # fmt: skip
    entry = AuditEntry.objects.get(action="job.command_rank")
    assert (entry.reason, entry.data["command"], entry.data["rank"]) == ("it swaps", "trace_allocations", 0)
    assert entry.data["fields"] == command.body["fields"]


@pytest.mark.parametrize(
    ("state", "data", "result"),
    [
        ("succeeded", '{"name":"collect_garbage","objects":3}', 3),
        ("succeeded", '{"name":"collect_garbage","objects":-3}', None),
        ("succeeded", '{"name":"trace_allocations","held_bytes":3,"places":[]}', None),
        ("succeeded", "tea", None),
        ("failed", '{"name":"collect_garbage","objects":3}', None),
    ],
)
def test_what_the_rank_has_found_is_its_commands_result_and_nothing_else_is(
    caller: Any, state: str, data: str, result: int | None
) -> None:
    job = world()
    caller("operate").post(f"/jobs/{job.id}:command-rank", COMMAND)
    command = Command.objects.get(kind="command_rank")
    with unit_of_work():
        dispatch.answer(command.node_id, command.id, state, "as it says", data)
    items = caller("read").get(f"/jobs/{job.id}/commands").json()["items"]
    found = {item["kind"]: item["result"] for item in items}
    assert found.pop("command_rank") == (result and {"name": "collect_garbage", "objects": 3, "device_bytes": None})
    assert set(found.values()) <= {None}
    (event,) = Event.objects.filter(kind=f"command.{state}", entity_id=command.id)
    assert event.patch["result"] == next(item["result"] for item in items if item["id"] == command.id)


def test_a_rank_that_is_gone_is_neither_broken_nor_looked_at(caller: Any) -> None:
    job = world()
    job.attempts.get().replica_rows.get(index=1).ranks.update(released_at=now())
    for verb, body in (("fault", FAULT), ("debug", DEBUG), ("command-rank", COMMAND)):
        answer = caller("operate").post(f"/jobs/{job.id}:{verb}", body)
        assert (answer.status_code, "does not run" in answer.json()["detail"]) == (409, True)


def test_what_was_found_is_listed_newest_first_and_by_order(caller: Any) -> None:
    job = world()
    for number, text in enumerate(('{"rank":0,"groups":[["0"]]}', "pong after 0.2 ms")):
        RankLook.objects.create(
            id=f"look_{number}", job=job, command_id=f"cmd_{number}", replica=1, incarnation=1, rank=0,
            look=("flight_recorder", "ping")[number], method="debug server", text=text, at=now(),
        )  # fmt: skip
    items = caller("read").get(f"/jobs/{job.id}/diagnostics").json()["items"]
    assert [(item["diagnostic"], item["rank"], item["method"]) for item in items] == [
        ("ping", "1.1/0", "ping, debug server"),
        ("flight_recorder", "1.1/0", "flight recorder, debug server"),
    ]
    one = caller("read").get(f"/jobs/{job.id}/diagnostics?command_id=cmd_1").json()["items"]
    assert [item["text"] for item in one] == ["pong after 0.2 ms"]
