"""Every list costs as many queries for many rows as for few: of each operation that answers with rows."""

import random
from collections.abc import Iterator
from datetime import timedelta
from types import GenericAlias
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from controlplane.access.models import ApiToken, JoinToken
from controlplane.access.project_models import Project, Role
from controlplane.api import throttle
from controlplane.api.app import api
from controlplane.api.edge import EXTRA
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, KnownEnd, Reservation
from controlplane.jobs.models import Attempt, Job, JobPace, Rank, Replica, StepRecord
from controlplane.jobs.numbers import numbers_of
from controlplane.jobs.numbers_of_many import numbers_of_many
from controlplane.jobs.services import submit_job
from controlplane.policies.services import Edit, put
from controlplane.policies.whose import FLEETS
from controlplane.policy.document import Ground
from controlplane.policy.pace import Pace
from controlplane.protocol.spec_lint import lint
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import DeadLetter, Decision, Incident, RankLook, Request, Signal
from controlplane.recovery.present import pending_certificate
from controlplane.recovery.requests import checkpoint
from controlplane.runtime.clock import now
from controlplane.runtime.events import publish
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import Caller, make_node
from tests.integration.api.tenants import account, caller_of, spec
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
FEW, MANY = 3, 12
WINDOW = {"starts_at": now(), "ends_at": now() + timedelta(hours=1), "reason": "r", "who": "user:ada"}
PAGED = (
    "/audit", "/breakers", "/events", "/incidents", "/jobs", "/join-tokens", "/nodes", "/policy/versions", "/projects",
    "/queue", "/requests", "/reservations", "/tokens", "/windows", "/nodes/{node_id}/dead-letters",
    "/jobs/{job_id}/checkpoints", "/jobs/{job_id}/commands", "/jobs/{job_id}/decisions", "/jobs/{job_id}/diagnostics",
    "/jobs/{job_id}/events", "/jobs/{job_id}/incidents", "/jobs/{job_id}/steps",
)  # fmt: skip
"""`limit` says how many rows an answer has."""
WHOLE = ("/jobs/{job_id}/replicas",)
"""Answered in one page."""
FIXED = ("/settings", "/demo/faults", "/jobs/{job_id}/timeouts", "/engines")
"""As many rows as the code has kinds of them."""


def lists() -> set[str]:
    """Addresses of the operations that answer with rows, as the API's own registry has them."""
    found = set()
    for prefix, router in api._routers:
        for path, view in router.path_operations.items():
            for operation in view.operations:
                answer = (operation.openapi_extra or {})[EXTRA]["answer"]
                if isinstance(answer, GenericAlias) and operation.methods == ["GET"]:
                    found.add((prefix + path).replace("rid:", ""))
    return found


def test_every_list_of_the_api_is_measured_here() -> None:
    assert lists() == {*PAGED, *WHOLE, *FIXED}


class Rows:
    """A fleet with a running job, and of each thing that is listed `MANY`; more of the job's with `more`."""

    def __init__(self) -> None:
        self.nodes = [make_node(f"n{number}") for number in range(2 * MANY)]
        self.jobs = []
        for number in range(MANY):
            mine = self.nodes[2 * number : 2 * number + 2]
            self.jobs.append(running_job(mine, spec(f"job-{number}", "default")))
            Signal.objects.filter(key="k").update(key=f"k-{number}")
        self.job, self.ids = self.jobs[0], {"job_id": self.jobs[0].id, "node_id": self.nodes[0].id}
        for number in range(MANY):
            self.of_fleet(number)
            self.of_job(number)
        for number in range(FEW, MANY):
            self.replica(number)

    def of_fleet(self, number: int) -> None:
        job, node = self.jobs[number], self.nodes[number]
        checkpoint(job, reason="r", actor="user:ada")
        Request.objects.create(
            id=new_id("req"), kind="evict", job=job, node=node, replica=0, who="user:ada", reason="r", asked_at=now(),
            valid_until=now(),
        )  # fmt: skip
        waiting = lint(spec(f"waits-{number}", "default")).spec
        assert waiting is not None
        submit_job(waiting, owner="ada", actor="user:ada")
        KnownEnd.objects.create(
            id=new_id("end"), node=node, source="window", leaves_at=now(), reason="r", who="user:ada", said_at=now()
        )
        Reservation.objects.create(id=new_id("resv"), project="default", said_at=now(), **WINDOW).nodes.add(node)
        Breaker.objects.create(
            id=new_id("brk"), code="failures", segment=f"s{number}", reason="r", opened_at=now(), decision_id="dec_x"
        )
        JoinToken.objects.create(id=new_id("jtk"), sha256=f"{number}", expires_at=now(), name=f"n{number}")
        Project.objects.create(name=f"project-{number:02}", visibility="open")
        put(FLEETS, {"lease_s": 20 + number}, Edit(parent=number, reason="r", actor="user:ada"), Ground())
        user = User.objects.get(username="ada")
        ApiToken.objects.create(id=new_id("tok"), name=f"t{number}", user=user, sha256=f"{number}", scope="read")
        DeadLetter.objects.create(
            id=new_id("dlt"), node=self.nodes[0], journal_id="j", seq=number, kind="rank_exited", raw=b"",
            size_bytes=0, reason="r", tries=1, happened_at=now(), first_seen_at=now(), last_seen_at=now(),
        )  # fmt: skip

    def of_job(self, number: int) -> None:
        job, node = self.job, self.nodes[number]
        incident = Incident.objects.create(
            id=new_id("inc"), job=job, node=node, title="t", opened_at=now(), phases=[], state="resolved",
            certificate=pending_certificate(0),
        )  # fmt: skip
        decision = Decision.objects.create(
            id=new_id("dec"), job=job, incident=incident, at=now(), rule="r", choice="evict", reason_code="c",
            sentence="s", policy_version="1", snapshot=b"", key=f"k{number}", alternatives=[], actions=[],
        )  # fmt: skip
        some = Command.objects.filter(job_id=job.id).first()
        assert some is not None
        some.pk, some.node, some.decision_id = new_id("cmd"), node, decision.id
        some.save(force_insert=True)
        Checkpoint.objects.create(
            id=new_id("ckp"), job=job, attempt=1, step=100 + number, epoch=1, path=f"/c/{number}", kind="scheduled",
            state="complete", started_at=now(),
        )  # fmt: skip
        RankLook.objects.create(
            id=new_id("look"), job=job, replica=0, incarnation=0, rank=0, look="stacks", method="py-spy", text="t",
            at=now(),
        )  # fmt: skip
        publish("job.note", f"Note {number}.", job_id=job.id)
        StepRecord.objects.create(job=job, attempt=1, step=100 + number, epoch=1, at=now(), loss=1.0, tokens=1)

    def replica(self, index: int) -> None:
        attempt = self.job.attempts.get()
        row = Replica.objects.create(attempt=attempt, index=index, incarnation=1)
        node = make_node(f"r{index}", devices=4)
        devices = list(Device.objects.filter(node=node))
        Rank.objects.bulk_create(
            Rank(replica=row, rank=rank, node=node, device=device) for rank, device in enumerate(devices)
        )


def cost(reader: Caller, path: str) -> tuple[int, int]:
    """How many rows came, and with how many queries."""
    throttle.requests.clear()
    with CaptureQueriesContext(connection) as queries:
        answer = reader.get(path)
    assert answer.status_code == 200, (path, answer.content)
    return len(answer.json()["items"]), len(queries)


@pytest.fixture
def world(user: User) -> Iterator[Rows]:
    with override_settings(HOLDFAST_DEMO=True):
        yield Rows()


OF_ADMINS = ("/audit", "/join-tokens", "/nodes/{node_id}/dead-letters", "/tokens")


@pytest.mark.parametrize("who", ["admin", "one who does not see every project"])
def test_many_rows_cost_as_many_queries_as_few(caller: Any, world: Rows, who: str) -> None:
    admin: Caller = caller("admin")
    if who != "admin":
        Project.objects.create(name="hidden", visibility="private")
        admin = caller_of(account("vic", default=Role.VIEWER))
    admin.get("/me")
    found: dict[str, Any] = {}
    for path in PAGED:
        if who != "admin" and path in OF_ADMINS:
            continue
        where = path.format(**world.ids)
        everybody = "&everybody=true" if path == "/tokens" else ""
        for _ in range(2):
            few, many = (cost(admin, f"{where}?limit={limit}{everybody}") for limit in (FEW, MANY))
        assert (few[0], many[0]) == (FEW, MANY), path
        if few[1] != many[1]:
            found[path] = f"{few[1]} for {few[0]}, {many[1]} for {many[0]}"
    assert found == {}


def test_a_page_of_replicas_costs_as_many_queries_whatever_there_are(caller: Any, world: Rows) -> None:
    reader: Caller = caller("read")
    where = f"/jobs/{world.job.id}/replicas"
    cost(reader, where)
    many = cost(reader, where)
    Rank.objects.filter(replica__index__gt=1, replica__attempt__job=world.job).delete()
    Replica.objects.filter(index__gt=1, attempt__job=world.job).delete()
    few = cost(reader, where)
    assert (few[0], many[0]) == (2, 2 + MANY - FEW)
    assert few[1] == many[1]


STILL = (
    "total_steps", "step_time_s", "loss", "eta_s", "attempt", "restarts", "preemptions", "evictions", "replicas_active",
    "replicas_total", "replicas_asked", "last_checkpoint_step", "last_checkpoint_local", "learned_step_s",
    "work_at_risk_s", "ettr_basis", "undisturbed_step_s", "open_incident_id",
)  # fmt: skip
"""Of a job's numbers; the others go on with the clock."""
AGES = {"checkpoint_age_s": 5.0, "ettr": 0.005, "productivity": 0.005}
"""By how much they may differ between two looks."""


def test_a_list_has_the_very_numbers_that_each_job_alone_has(user: User) -> None:
    """Of jobs that were never started, that trained long, that ended, whose newest steps said nothing."""
    world = Rows()
    seeded = random.Random(3)
    for number, job in enumerate(world.jobs[:6]):
        StepRecord.objects.bulk_create(
            StepRecord(
                job=job, attempt=1 + step // 30, step=200 + step, epoch=1, at=now(), tokens=1,
                loss=None if step > 56 or number == 1 else seeded.gauss(2.0, 0.3),
                step_time_s=None if number == 2 else seeded.random() / 3.0,
                stall_s=seeded.choice((0.0, 0.0, 1.5)),
            )
            for step in range(60)
        )  # fmt: skip
    Attempt.objects.filter(job=world.jobs[3]).update(state="ended", ended_at=now(), end_code="preempted")
    Attempt.objects.create(job=world.jobs[3], number=2, layout={}, replicas=1, checkpoint_dir="/x")
    Job.objects.filter(pk=world.jobs[4].pk).update(state="succeeded", finished_at=now())
    Checkpoint.objects.filter(job=world.jobs[5]).update(kind="local")
    Replica.objects.filter(attempt__job=world.jobs[5], index=0).update(state="evicted", contributing=False)
    Incident.objects.filter(job=world.jobs[2]).update(state="resolved")
    for number, recent_s in ((0, 500.0), (5, 250.0)):
        pace = Pace(
            best_s=200.0, recent=[recent_s] * 32, at_s=now().timestamp(), full_gpus=4, bins={700: 40}, window=[1.0] * 32
        )
        JobPace.objects.create(job=world.jobs[number], pace=msgspec.to_builtins(pace, str_keys=True))
        Job.objects.filter(pk=world.jobs[number].pk).update(committed_step=40 + 5 * number)
    # So long ago that a second more or less between two looks is no difference of a ratio.
    Attempt.objects.filter(job__in=world.jobs[:6]).update(started_at=now() - timedelta(hours=1))
    jobs = list(Job.objects.all())
    assert len(jobs) == 2 * MANY
    many = numbers_of_many(jobs)
    for job in jobs:
        alone = numbers_of(job)
        for name in STILL:
            assert getattr(many[job.pk], name) == getattr(alone, name), (job.name, name)
        for name, apart in AGES.items():
            mine, other = getattr(many[job.pk], name), getattr(alone, name)
            assert (mine is None) is (other is None), (job.name, name)
            assert mine is None or abs(mine - other) < apart, (job.name, name)
        assert (many[job.pk].wall is None) is (alone.wall is None)
    measured = {(round(it.ettr, 1), it.productivity) for it in many.values() if it.ettr and it.productivity}
    assert measured == {(0.4, 0.4), (0.6, 0.8)}
    assert len({numbers.loss for numbers in many.values()}) > 4
    assert len({numbers.learned_step_s for numbers in many.values()}) > 4
