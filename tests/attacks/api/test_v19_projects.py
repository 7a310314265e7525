"""V19: anyone took any priority, and everybody read every job. What an outsider of a private project can find of it."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from controlplane.access import projects
from controlplane.access.models import Scope
from controlplane.access.project_models import Role, Visibility
from controlplane.access.rights import Rights, rights_of
from controlplane.access.standing import Standing
from controlplane.access.watch import watch
from controlplane.api import eventlog
from controlplane.changes.kinds import CreatePreemption
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.services import publish_job
from controlplane.live.hub import Client, Hub
from controlplane.live.pumps import events_after
from controlplane.recovery import ledger_rows
from controlplane.recovery.asked import of_job
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.request_rows import ask_to_yield
from controlplane.runtime.clock import now
from controlplane.runtime.events import newest_seq, publish, unit_of_work
from controlplane.runtime.models import Event
from controlplane.scheduling.models import SpareReservation
from tests.integration.api.conftest import Caller, make_node
from tests.integration.api.principals import by_token
from tests.integration.api.tenants import OTHER, SECRET, SECRET_JOB, Tenants, account, caller_of, spec, tenants

pytestmark = pytest.mark.django_db
LISTS = (
    "/jobs", "/jobs?q=zebra", "/jobs?q=hush", "/jobs?project=hush-hush", "/jobs?state=running", "/projects", "/me",
    "/incidents", "/incidents?state=open,recovering", "/requests", "/requests?kind=checkpoint,drain",
    "/requests?job_id={job}", "/requests?node_id={node}", "/overview", "/nodes", "/nodes/{node}",
    "/nodes/{node}/series", "/events", "/events?newest=true", "/events?job_id={job}", "/events?node_id={node}",
    "/ledger", "/ledger?by=job", "/ledger?by=cause", "/ledger?by=node", "/ledger?by=job&node={node}", "/policy",
    "/policy/versions", "/tokens",
)  # fmt: skip


def world() -> Tenants:
    """The private job on its nodes, with a spare, an order by the fleet's drain, a node's finding and its events."""
    found = tenants()
    node = found.nodes[0]
    Signal.objects.create(
        id="sig_1", job=found.job, node=node, kind="node_silent", key="k1", seen_at=now(), evidence={"text": "x"}
    )
    SpareReservation.objects.create(job=found.job, device=make_node("node-3").devices.order_by("index")[0])
    of_node = Incident.objects.create(id="inc_node", job=None, node=node, title="A device is at risk", opened_at=now())
    Decision.objects.filter(pk="dec_1").update(incident=of_node, sentence=f"{SECRET_JOB} moves")
    with unit_of_work():
        publish_job(found.job, "job.state", f"{SECRET_JOB} trains")
        publish(
            "device.released", "", job_id=found.job.id, node_id=node.id, entity="device", entity_id="dev_1",
            patch={"id": "dev_1", "held_by": {"job_id": found.job.id, "job_name": SECRET_JOB, "replica": 0, "rank": 1}},
        )  # fmt: skip
        publish("node.state", "It is ready.", node_id=node.id, entity="node", entity_id=node.id, patch={"id": node.id})
    return found


def secrets(found: Tenants) -> tuple[str, ...]:
    return (SECRET, SECRET_JOB, found.job.id, found.incident.id, found.request.id)


def outsiders() -> dict[str, Caller]:
    return {
        "nobody's member": caller_of(account("zoe")),
        "admin of another": caller_of(account("eve", daylight=Role.ADMIN)),
        "operator of the fleet": caller_of(account("bob", fleet="operate")),
        "token of another project": caller_of(account("root", fleet="admin", daylight=Role.ADMIN), project=OTHER),
    }


def test_no_list_count_or_page_tells_an_outsider_of_a_private_project(db: None) -> None:
    found = world()
    member = caller_of(account("mia", hush_hush=Role.VIEWER))
    told_to_members = ""
    callers = outsiders()
    for path in LISTS:
        where = path.format(job=found.job.id, node=found.nodes[0].id)
        told_to_members += member.get(where).content.decode()
        for who, caller in callers.items():
            answer = caller.get(where)
            text = answer.content.decode().replace(where, "")
            assert answer.status_code == (404 if "project=" in path and "ledger" in path else 200), (who, path, text)
            leaked = [word for word in secrets(found) if word in text]
            assert not leaked, (who, path, leaked)
    assert all(word in told_to_members for word in secrets(found)), "the words are such as leak"


def test_counts_and_totals_leave_a_private_project_out(db: None) -> None:
    found = world()
    for who, caller in outsiders().items():
        overview = caller.get("/overview").json()
        assert overview["jobs"]["running"] == 0, who
        assert overview["attention"]["live"] == 0 or found.incident.id not in str(overview), who
        assert caller.get("/jobs?count=true").json()["total"] == 0, who
        assert caller.get("/requests?count=true").json()["total"] == 0, who
        assert caller.get("/incidents?count=true").json()["total"] == 1, "the node's own is the fleet's"
        assert overview["goodput_24h"] is None, who


def test_what_is_not_seen_is_refused_in_the_words_of_what_does_not_exist(db: None) -> None:
    found = world()
    pairs = (
        ("/jobs/{}", found.job.id, "job_unknown"), ("/jobs/{}", SECRET_JOB, "no-such-job"),
        ("/jobs/{}/queue", found.job.id, "job_unknown"), ("/incidents/{}", found.incident.id, "inc_unknown"),
        ("/decisions/{}", found.decision.id, "dec_unknown"), ("/requests/{}", found.request.id, "req_unknown"),
        ("/projects/{}", SECRET, "no-such-one"), ("/ledger?project={}", SECRET, "no-such-one"),
        ("/ledger?job={}", found.job.id, "job_unknown"), ("/policy?job_id={}", found.job.id, "job_unknown"),
        ("/events?job_id={}", found.job.id, "job_unknown"), ("/requests?job_id={}", found.job.id, "job_unknown"),
        ("/jobs?project={}", SECRET, "no-such-one"),
    )  # fmt: skip
    for who, caller in outsiders().items():
        for path, hidden, unknown in pairs:
            answers = [caller.get(path.format(name)) for name in (hidden, unknown)]
            bodies = [
                json.dumps({k: v for k, v in a.json().items() if k not in ("instance", "request_id")}).replace(n, "X")
                for a, n in zip(answers, (hidden, unknown), strict=True)
            ]
            assert answers[0].status_code == answers[1].status_code, (who, path)
            assert bodies[0] == bodies[1], (who, path)


def test_a_node_says_that_a_device_is_in_use_and_not_by_whom(db: None) -> None:
    found = world()
    node = outsiders()["operator of the fleet"].get(f"/nodes/{found.nodes[0].id}").json()
    held = node["devices"][0]["held_by"]
    assert (held["job_id"], held["replica"], held["rank"]) == ("unseen", 0, 0)
    assert "project that you do not see" in node["devices"][0]["capabilities"]["reset"]
    assert node["ranks"] == [] and node["signals"] == []
    device = node["devices"][0]["id"]
    refused = caller_of(User.objects.get(username="bob")).post(f"/devices/{device}:reset", {"reason": "r"})
    assert refused.status_code == 409
    assert not [word for word in secrets(found) if word in refused.content.decode()]
    spare = caller_of(account("zed")).get("/nodes").json()["items"][2]["devices"]
    assert [each["spare_for"] for each in spare] == ["unseen", None]


def sees(user: User) -> Rights:
    rights = rights_of(user)
    assert rights is not None
    return rights


async def told(rights: Rights, since: int, *topics: str) -> list[dict[str, Any]]:
    """What a browser of somebody with these rights is sent of the events after `since`."""
    hub, client = Hub(), Client(lambda: rights, sent_seq=since)
    hub.clients.add(client)
    for event in await sync_to_async(events_after)(since, 100):
        hub.durable(event)
    return [json.loads(client.queue.get_nowait()) for _ in range(client.queue.qsize())]


@pytest.mark.django_db(transaction=True)
async def test_the_pages_socket_tells_an_outsider_the_number_of_an_event_and_nothing_else() -> None:
    since = 0
    found = await sync_to_async(world)()
    zoe, mia = await sync_to_async(account)("zoe"), await sync_to_async(account)("mia", hush_hush=Role.VIEWER)
    outside = await told(await sync_to_async(sees)(zoe), since)
    inside = await told(await sync_to_async(sees)(mia), since)
    assert [each["event"]["seq"] for each in outside] == [each["event"]["seq"] for each in inside]
    text = json.dumps(outside)
    assert not [word for word in secrets(found) if word in text]
    assert SECRET_JOB in json.dumps(inside)
    kinds = [each["event"]["kind"] for each in outside]
    assert "withheld" in kinds and "device.released" in kinds and "node.state" in kinds
    device = next(each["event"] for each in outside if each["event"]["kind"] == "device.released")
    assert device["job_id"] is None and device["patch"]["held_by"]["job_id"] == "unseen"


@pytest.mark.django_db(transaction=True)
async def test_pictures_of_a_private_job_go_to_those_who_see_its_project() -> None:
    found = await sync_to_async(world)()
    zoe, mia = await sync_to_async(account)("zoe"), await sync_to_async(account)("mia", hush_hush=Role.VIEWER)
    hub, queues = Hub(), []
    for user in (zoe, mia):
        rights = await sync_to_async(sees)(user)
        client = Client(lambda rights=rights: rights, topics={f"job:{found.job.id}": SECRET})  # type: ignore[misc]
        hub.clients.add(client)
        queues.append(client.queue)
    hub.volatile(f"job:{found.job.id}", {"type": "ranks", "job_id": found.job.id})
    assert [queue.qsize() for queue in queues] == [0, 1]


@pytest.mark.django_db(transaction=True)
async def test_an_event_stream_loses_a_project_when_its_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "POLL_S", 0.05)
    found = await sync_to_async(world)()
    mia = await sync_to_async(account)("mia", hush_hush=Role.VIEWER)
    who = await sync_to_async(by_token)(mia, "read")
    assert who.token is not None
    rights = await sync_to_async(rights_of)(mia, who.token)
    assert rights is not None
    stream = eventlog.stream(0, "", Standing(kind="token", key=who.token.id, user_id=mia.pk), rights)
    newest = await sync_to_async(newest_seq)()
    assert SECRET_JOB.encode() in await until(stream, b"id: %d\n" % newest)
    await sync_to_async(projects.remove_member)(SECRET, "mia", reason="r", actor="user:root")
    await asyncio.wait_for(noticed(), 10.0)
    await sync_to_async(tell)(found.job, f"{SECRET_JOB} goes on")
    await sync_to_async(tell)(None, "the last one")
    assert SECRET_JOB.encode() not in await until(stream, b"the last one")
    await stream.aclose()


async def until(stream: Any, mark: bytes) -> bytes:
    """What is heard up to this."""
    heard = b""
    while mark not in heard:
        heard += await asyncio.wait_for(anext(stream), 10.0)
    return heard


async def noticed() -> None:
    """The watch over open streams has looked since."""
    while not all(one.rights is not None and not one.rights.sees(SECRET) for one in watch().streams):
        await asyncio.sleep(0.05)


def tell(job: Job | None, sentence: str) -> None:
    with unit_of_work():
        if job is not None:
            publish_job(job, "job.state", sentence)
        else:
            publish("fleet.note", sentence)


def test_an_event_of_a_job_that_is_gone_is_nobodys_but_an_administrators(db: None) -> None:
    with unit_of_work():
        publish("job.state", "it was here", job_id="job_gone", entity="job", entity_id="job_gone")
    (event,) = events_after(Event.objects.order_by("seq")[0].seq - 1, 1)
    assert event.hidden_from(Rights(fleet=Scope.READ, projects={"default": Scope.READ}))
    assert not event.hidden_from(Rights(fleet=Scope.ADMIN, everything=True))


def test_an_operator_of_the_fleet_takes_no_part_in_a_private_project_by_another_way(db: None) -> None:
    found = world()
    bob = caller_of(account("bob", fleet="operate"))
    replay = bob.post("/policy:replay", {"since_s": 3600.0})
    assert replay.status_code == 200
    assert found.job.id not in replay.content.decode()
    assert bob.post("/policy:replay", {"since_s": 3600.0, "job_id": found.job.id}).status_code == 404
    assert (
        bob.post("/policy:put", {"text": "{}", "parent": 0, "reason": "r", "job_id": found.job.id}).status_code == 403
    )
    assert not Rank.objects.filter(replica__attempt__job=found.job).exclude(released_at=None).exists()


def test_figures_that_name_jobs_of_all_projects_are_for_those_who_see_all_of_them(db: None) -> None:
    tenants()
    far = {"REMOTE_ADDR": "198.51.100.7"}
    from django.test import Client as Browser

    def scrape(user: User) -> int:
        secret = by_token(user, "read").secret
        return Browser().get("/metrics", headers={"Authorization": f"Bearer {secret}"}, **far).status_code

    assert scrape(account("zoe")) == 403
    assert scrape(account("mia", hush_hush=Role.VIEWER, daylight=Role.VIEWER)) == 200
    assert scrape(account("root", fleet="admin")) == 200


def test_nobody_raises_himself(db: None) -> None:
    tenants(Visibility.VISIBLE)
    for role in (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR):
        user = account(f"x-{role}", hush_hush=role)
        body = {"account": user.username, "role": "admin", "reason": "r"}
        assert caller_of(user).post(f"/projects/{SECRET}:set-member", body).status_code == 403
        assert caller_of(user).post(f"/projects/{SECRET}:set", {"quota_gpus": 999, "reason": "r"}).status_code == 403
    boss = caller_of(account("boss", hush_hush=Role.ADMIN))
    # Who is in it is the project's matter; what it may use is the fleet's.
    assert boss.post(f"/projects/{SECRET}:set", {"max_priority": 1000, "reason": "r"}).status_code == 403
    assert boss.post("/projects", {"name": "mine", "reason": "r"}).status_code == 403
    assert (
        boss.post(f"/projects/{OTHER}:set-member", {"account": "boss", "role": "admin", "reason": "r"}).status_code
        == 404
    )


@pytest.mark.parametrize("priority", [-1, 0, 300, 301, 1000, 1001, 2**63])
def test_no_priority_gets_past_the_maximum_of_its_project(db: None, priority: int) -> None:
    found = tenants()
    found.project.max_priority = 300
    found.project.save()
    member = caller_of(account("sub", hush_hush=Role.ADMIN))
    status = member.post("/jobs", spec("mine", SECRET, priority=priority)).status_code
    assert status in ((201,) if 0 <= priority <= 300 else (400, 422))


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "a_b", "a-", "-a", "a" * 64, "a\n", "a/b", "..", "\u0430bc", "a b", "default"]
)
def test_a_project_has_a_name_of_its_character_set_and_once(db: None, name: str) -> None:
    root = caller_of(account("root", fleet="admin"))
    answer = root.post("/projects", {"name": name, "reason": "r"})
    assert answer.status_code == (409 if name == "default" else 422)


@pytest.mark.parametrize(
    "settings",
    [
        {"quota_gpus": -1}, {"quota_gpus": 1_000_001}, {"quota_gpus": 1.5}, {"quota_gpus": "8"}, {"quota_gpus": True},
        {"weight": 0}, {"weight": 1001}, {"weight": None}, {"max_priority": 1001}, {"max_priority": None},
        {"visibility": "secret"}, {"description": "x" * 201}, {"quota_gpus": 4, "lend_limit_gpus": 5}, {"owner": "me"},
    ],
)  # fmt: skip
def test_a_setting_beyond_its_range_changes_nothing_and_says_where(db: None, settings: dict[str, Any]) -> None:
    found = tenants()
    before = projects.settings_of(found.project)
    answer = caller_of(account("root", fleet="admin")).post(f"/projects/{SECRET}:set", {"reason": "r"} | settings)
    assert answer.status_code == 422
    assert answer.json()["errors"]
    assert projects.settings_of(projects.project(SECRET)) == before


def test_a_job_that_waits_is_not_told_for_which_private_job(db: None) -> None:
    found = world()
    root = account("root", fleet="admin")
    assert caller_of(root).post("/jobs", spec("zebra-second", SECRET, priority=900)).status_code == 201
    zoe = caller_of(account("sub", fleet="submit"))
    assert zoe.post("/jobs", spec("mine", "default", priority=600)).status_code == 201
    mine = Job.objects.get(name="mine")
    reconcile_job(mine.id)
    texts = [zoe.get(f"/jobs/mine{part}").content.decode() for part in ("", "/queue", "/decisions", "/events")]
    dry = zoe.post("/jobs?dry_run=true", spec("another", "default", priority=100)).content.decode()
    for text in (*texts, dry):
        assert "zebra" not in text and found.job.id not in text
    assert "a private job" in texts[1] and "a private job (priority 900)" in texts[2]
    queue = zoe.get("/jobs/mine/queue").json()
    assert {each["id"] for each in queue["ahead"]} == {"unseen"} == {queue["behind"]}
    asked = ask_to_yield_to(found.job, mine)
    assert "a private job" in asked and "zebra" not in asked
    part = ask_to_yield_to(found.job, mine, ((0, 1),))
    assert "give 1 replica to a private job" in part and "zebra" not in part


def ask_to_yield_to(urgent: Job, victim: Job, gives: tuple[tuple[int, int], ...] = ()) -> str:
    """What the victim is told when it is asked to make room for the other."""
    with unit_of_work():
        ask_to_yield(urgent, CreatePreemption(victim.id, 1, 1.0, "priority 900", gives))
    return json.dumps([fact.urgent for fact in of_job(victim)]) + str(Event.objects.order_by("-seq")[0].sentence)


def test_the_ledger_has_private_jobs_in_one_row_for_those_who_do_not_see_them(db: None) -> None:
    found = world()
    moment_s = now().timestamp()
    LedgerMark.objects.create(name=ledger_rows.ALL, began_s=moment_s - 600.0, judged_s=moment_s)
    replica = Replica.objects.filter(attempt__job=found.job)[0]
    LedgerHold.objects.create(
        job=found.job,
        node=found.nodes[0],
        replica=replica,
        from_s=moment_s - 500.0,
        until_s=moment_s - 100.0,
        devices=2,
    )
    mia, zoe = caller_of(account("mia", hush_hush=Role.VIEWER)), caller_of(account("zoe"))
    inside, outside = (who.get("/ledger?by=job&window_s=600").json() for who in (mia, zoe))
    assert found.job.id in [row["id"] for row in inside["rows"]]
    assert found.job.id not in [row["id"] for row in outside["rows"]]
    assert "jobs of projects that you do not see" in [row["label"] for row in outside["rows"]]
    assert inside["known_gpu_s"] == outside["known_gpu_s"] > 0.0, "what the fleet gave is everybody's to know"
