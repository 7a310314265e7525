"""GET says what POST does: in every state of every kind of object, each act that the API offers is taken
where `capabilities` allows it, and refused with the very sentence that stands there where it does not. One that only
has nothing to do, as the object is so already, is taken too, and changes nothing."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.api import openapi
from controlplane.fleet.models import Device, KnownEnd, Node, Reservation
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.policy.capabilities import STANDS
from controlplane.policy.transitions import TABLES
from controlplane.recovery import deadletter
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import DeadLetter, Decision, Incident, LetterState, Request
from controlplane.runtime.clock import iso, now
from controlplane.runtime.errors import Conflict
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
Ask = Callable[[], dict[str, str]]
WHY = {"reason": "r"}
FAULT = WHY | {"replica": 1, "rank": 0, "fault": "segfault"}
DEBUG = WHY | {"replica": 1, "rank": 0, "diagnostic": "ping"}
COMMAND = WHY | {"replica": 1, "rank": 0, "command": {"name": "collect_garbage"}}
BODIES: dict[str, dict[str, Any]] = {
    "evict-replica": WHY | {"replica": 1},
    "fault": FAULT,
    "debug": DEBUG,
    "command-rank": COMMAND,
}
NODE_BODIES = {"maintain": WHY | {"starts_at": iso(now()), "ends_at": iso(now() + timedelta(hours=1))}}
NODE_ACTS = (
    "cordon",
    "uncordon",
    "drain",
    "maintain",
    "confirm",
    "revoke",
    "restore",
    "rotate-key",
    "re-enrol",
    "remove",
)
ACTS = {
    "jobs": ("cancel", "checkpoint", "preempt", "resume", *BODIES),
    "nodes": NODE_ACTS,
    "devices": ("reset",),
    "incidents": ("acknowledge",),
    "decisions": ("approve", "reject", "hold"),
    "requests": ("withdraw",),
    "breakers": ("close",),
    "windows": ("cancel",),
    "reservations": ("cancel",),
}
STATELESS = {"tokens", "join-tokens", "projects", "pools"}


@pytest.fixture
def job(db: None) -> Job:
    """Two replicas of two ranks that train; it allows faults."""
    return running_job([make_node("node-1"), make_node("node-2")], SPEC)


def states(machine: str) -> list[str]:
    return [str(state) for state in TABLES[machine]]


def holds(admin: Any, kind: str, found: str, act: str, capabilities: dict[str, str]) -> None:
    """The command is taken or refused as `capabilities` said, and undone."""
    why = capabilities[act]
    with admin.undone():
        answer = admin.post(f"/{kind}/{found}:{act}", (BODIES | NODE_BODIES).get(act, WHY))
    if why:
        assert (answer.status_code, answer.json()["detail"]) == (409, why)
    else:
        assert answer.status_code in (201, 202), (act, answer.content)


def slot(admin: Any, job: Job, index: int = 1) -> dict[str, Any]:
    """The newest life of a slot, as the list of replicas has it first."""
    rows = admin.get(f"/jobs/{job.id}/replicas").json()["items"]
    return next(row for row in rows if row["index"] == index)


def test_every_act_that_the_api_offers_has_its_row() -> None:
    offered: dict[str, set[str]] = {}
    for path, operations in json.loads(openapi.render())["paths"].items():
        found = re.fullmatch(r"/api/v1/([a-z-]+)/\{\w+\}:([a-z-]+)", path)
        if found and "post" in operations and found[1] not in STATELESS:
            offered.setdefault(found[1], set()).add(found[2])
    assert offered == {kind: set(acts) for kind, acts in ACTS.items()}


@pytest.mark.parametrize("act", ["reject", "hold"])
@pytest.mark.parametrize(("mode", "verdict"), [("recommend", ""), ("recommend", "rejected"), ("enforce", "")])
def test_a_decision(caller: Any, job: Job, mode: str, verdict: str, act: str) -> None:
    fields = {"rule": "r", "choice": "c", "reason_code": "r", "sentence": "s", "policy_version": "p", "snapshot": b""}
    Decision.objects.create(
        id="dec_1", job=job, at=now(), key="1:r", mode=mode, applied=mode == "enforce", verdict=verdict, **fields
    )
    admin = caller("admin")
    found = admin.get("/decisions/dec_1").json()["capabilities"]
    assert set(found) == {"approve", "reject", "hold"}
    assert bool(found[act]) is (mode == "enforce" or (verdict, act) == ("rejected", "reject"))
    holds(admin, "decisions", "dec_1", act, found)


@pytest.mark.parametrize("open_", [True, False])
def test_a_breaker(db: None, caller: Any, open_: bool) -> None:
    ended = {} if open_ else {"closed_at": now(), "closed_by": "user:ada", "close_reason": "r"}
    Breaker.objects.create(id="brk_1", code="burst", reason="r", opened_at=now(), **ended)
    admin = caller("admin")
    (found,) = admin.get("/breakers").json()["items"]
    assert set(found["capabilities"]) == {"close"}
    assert (found["capabilities"]["close"] == "") is open_
    holds(admin, "breakers", "brk_1", "close", found["capabilities"])


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("state", states("job"))
def test_a_job(caller: Any, job: Job, state: str, placed: bool) -> None:
    Job.objects.update(state=state, parked_by="" if placed else "user:ada: r")
    if not placed:
        Rank.objects.update(released_at=now())
    admin = caller("admin")
    alone = admin.get(f"/jobs/{job.id}").json()["capabilities"]
    assert admin.get("/jobs").json()["items"][0]["capabilities"] == alone
    assert set(alone) == {"cancel", "checkpoint", "preempt", "resume"}
    for act in alone:
        holds(admin, "jobs", job.id, act, alone)


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("job_state", states("job"))
@pytest.mark.parametrize("state", states("replica"))
def test_a_replica(caller: Any, job: Job, state: str, job_state: str, placed: bool) -> None:
    Job.objects.update(state=job_state)
    Replica.objects.filter(index=1).update(state=state)
    if not placed:
        Rank.objects.update(released_at=now())
    admin = caller("admin")
    capabilities = slot(admin, job)["capabilities"]
    assert set(capabilities) == {"evict-replica"}
    holds(admin, "jobs", job.id, "evict-replica", capabilities)


@pytest.mark.parametrize("change", ["", "released", "no faults", "looked at", "started again"])
@pytest.mark.parametrize("state", states("rank"))
def test_a_rank(caller: Any, job: Job, state: str, change: str) -> None:
    Rank.objects.update(state=state)
    admin = caller("admin")
    if change == "released":
        Rank.objects.update(released_at=now())
    if change == "no faults":
        Job.objects.update(spec=job.spec | {"spec": job.spec["spec"] | {"resiliency": {"allow_faults": False}}})
    if change == "looked at":
        admin.post(f"/jobs/{job.id}:debug", DEBUG)
    if change == "started again":
        old = Replica.objects.get(index=1)
        again = Replica.objects.create(attempt=old.attempt, index=1, incarnation=old.incarnation + 1, state="forming")
        Rank.objects.filter(replica=old).update(replica=again)
    shown = slot(admin, job)["ranks"][0]
    capabilities = shown["capabilities"]
    assert set(capabilities) == {"fault", "debug", "command-rank"}
    on_node = admin.get(f"/nodes/{shown['node_id']}").json()["ranks"]
    assert change == "released" or on_node[0]["capabilities"] == capabilities
    for act in capabilities:
        holds(admin, "jobs", job.id, act, capabilities)


def test_an_earlier_life_of_a_replica_can_be_ordered_nothing(caller: Any, job: Job) -> None:
    old = Replica.objects.get(index=1)
    Replica.objects.create(attempt=old.attempt, index=1, incarnation=old.incarnation + 1, state="forming")
    rows = caller("read").get(f"/jobs/{job.id}/replicas").json()["items"]
    (earlier,) = [row for row in rows if row["id"].endswith(f"/1/{old.incarnation}")]
    assert earlier["capabilities"]["evict-replica"] == "replica 1 of job 'tiny' was started again since"
    assert {why for rank in earlier["ranks"] for why in rank["capabilities"].values()} == {
        "rank 0 of replica 1 does not run", "rank 1 of replica 1 does not run",
    }  # fmt: skip


NODE_CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    "doubt": {"doubt": "two machines have its key"},
    "held": {"held": True},
    "revoked": {"revoked_at": "2026-01-01T00:00:00Z"},
    "barred": {},
    "in use": {},
}


@pytest.mark.parametrize("change", NODE_CHANGES)
@pytest.mark.parametrize("state", states("node"))
def test_a_node(caller: Any, state: str, change: str) -> None:
    node = make_node("node-1")
    if change == "in use":
        running_job([node, make_node("node-2")], SPEC)
    if change == "barred":
        Device.objects.update(healthy=False)
    Node.objects.filter(pk=node.pk).update(state=state, **NODE_CHANGES[change])
    admin = caller("admin")
    alone = admin.get(f"/nodes/{node.id}").json()["capabilities"]
    listed = {row["id"]: row["capabilities"] for row in admin.get("/nodes").json()["items"]}
    assert listed[node.id] == alone
    assert set(alone) == set(NODE_ACTS)
    for act in NODE_ACTS:
        there = act != "drain" and state == STANDS.get(act)
        if there and alone[act].startswith(f"node 'node-1' is {state}: it takes "):
            with admin.undone():
                is_so_already(admin, node, act)
        else:
            holds(admin, "nodes", node.id, act, alone)


def is_so_already(admin: Any, node: Node, act: str) -> None:
    """It is answered, changes nothing, and is answered so again when the node has moved on."""
    before = Node.objects.values().get(pk=node.pk)
    again = admin.post(f"/nodes/{node.id}:{act}", WHY)
    assert (again.status_code, Node.objects.values().get(pk=node.pk)) == (202, before)
    assert not AuditEntry.objects.filter(action=f"node.{act}").exists()
    Node.objects.update(state="ready" if act == "cordon" else "cordoned")
    assert admin.post(f"/nodes/{node.id}:{act}", WHY).json() == again.json(), "the answer of the first time"


@pytest.mark.parametrize("change", ["", "in use", "absent", "revoked", "barred"])
@pytest.mark.parametrize("state", states("node"))
def test_a_device(caller: Any, state: str, change: str) -> None:
    node = make_node("node-1")
    if change == "in use":
        running_job([node, make_node("node-2")], SPEC)
    Device.objects.update(present=change != "absent", healthy=change != "barred")
    Node.objects.update(state=state, revoked_at=now() if change == "revoked" else None)
    admin = caller("admin")
    device = admin.get(f"/nodes/{node.id}").json()["devices"][0]
    assert set(device["capabilities"]) == {"reset"}
    holds(admin, "devices", device["id"], "reset", device["capabilities"])


@pytest.mark.parametrize("by", ["", "user:ada"])
@pytest.mark.parametrize("outcome", ["", "recovered", "mitigated", "lost", "withdrawn"])
@pytest.mark.parametrize("state", states("incident"))
def test_an_incident(caller: Any, job: Job, state: str, outcome: str, by: str) -> None:
    Incident.objects.update(state=state, outcome=outcome, acknowledged_by=by, acknowledged_at=now() if by else None)
    admin = caller("admin")
    found = Incident.objects.get().id
    alone = admin.get(f"/incidents/{found}").json()["capabilities"]
    assert admin.get("/incidents").json()["items"][0]["capabilities"] == alone
    assert set(alone) == {"acknowledge"}
    holds(admin, "incidents", found, "acknowledge", alone)


@pytest.mark.parametrize("state", states("request"))
def test_a_request(caller: Any, job: Job, state: str) -> None:
    moment = now()
    row = Request.objects.create(
        id="ask_1", kind="checkpoint", job=job, who="ada", reason="r", asked_at=moment, valid_until=moment, state=state
    )
    admin = caller("admin")
    alone = admin.get(f"/requests/{row.pk}").json()["capabilities"]
    assert admin.get("/requests").json()["items"][0]["capabilities"] == alone
    assert set(alone) == {"withdraw"}
    holds(admin, "requests", row.pk, "withdraw", alone)


@pytest.mark.parametrize("over_by", ["", "user:ada (no fans came)"])
def test_a_window(caller: Any, over_by: str) -> None:
    times = {"leaves_at": now(), "back_at": now() + timedelta(hours=1), "said_at": now()}
    over = {"over_by": over_by, "over_at": now() if over_by else None}
    row = KnownEnd.objects.create(
        id="end_1", node=make_node("node-1"), source="window", reason="r", who="user:ada", **times, **over
    )
    admin = caller("admin")
    (shown,) = admin.get("/windows").json()["items"]
    assert set(shown["capabilities"]) == {"cancel"}
    holds(admin, "windows", row.pk, "cancel", shown["capabilities"])


@pytest.mark.parametrize("over_by", ["", "user:ada (not needed)"])
def test_a_reservation(caller: Any, over_by: str) -> None:
    times = {"starts_at": now(), "ends_at": now() + timedelta(hours=1), "said_at": now()}
    over = {"over_by": over_by, "over_at": now() if over_by else None}
    row = Reservation.objects.create(id="rsv_1", project="default", reason="r", who="user:ada", **times, **over)
    admin = caller("admin")
    (shown,) = admin.get("/reservations").json()["items"]
    assert set(shown["capabilities"]) == {"cancel"}
    holds(admin, "reservations", row.pk, "cancel", shown["capabilities"])


@pytest.mark.parametrize("state", LetterState.values)
def test_a_dead_letter(caller: Any, state: str) -> None:
    """Its acts are commands of the server's own command line."""
    node = make_node("node-1")
    DeadLetter.objects.create(
        id="dlt_1", node=node, journal_id="j", seq=1, kind="rank_exited", raw=b"", size_bytes=0, reason="r", tries=1,
        happened_at=now(), first_seen_at=now(), last_seen_at=now(), state=state,
    )  # fmt: skip
    (shown,) = caller("operate").get(f"/nodes/{node.id}/dead-letters").json()["items"]
    assert set(shown["capabilities"]) == {"replay", "discard"}
    for why, act in (
        (shown["capabilities"]["replay"], lambda: deadletter.waiting("dlt_1")),
        (shown["capabilities"]["discard"], lambda: deadletter.discard("dlt_1", actor="a", reason="r")),
    ):
        try:
            act()
        except Conflict as refused:
            assert refused.detail == why != ""
        else:
            assert why == ""
