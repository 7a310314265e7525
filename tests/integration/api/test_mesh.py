"""The ranks of a job in one answer: each figure is what the rows say, worked out another way."""

import gzip
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.project_models import Role
from controlplane.api.shapes import JobMesh, rows_of
from controlplane.fleet.models import Device, Node
from controlplane.jobs import mesh
from controlplane.jobs.models import Attempt, Job, Rank, RankSpeed, Replica
from controlplane.jobs.present import rank_summary
from controlplane.jobs.services import submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import RankState, ReplicaState
from controlplane.runtime import bus
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import SPEC
from tests.integration.api.tenants import account, caller_of, tenants

pytestmark = pytest.mark.django_db
WINDOW = {"count": 4, "median_s": 0.5, "min_s": 0.4, "max_s": 0.9}
PARTS = ("compute", "data", "exchange", "optimizer", "step")


def large_job(replicas: int, *, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, replica_dp: int = 1) -> Job:
    """A running job of so many replicas of this layout, a rank on each device of nodes with eight."""
    spec = lint(SPEC).spec
    assert spec is not None
    job = submit_job(spec, owner="ada", actor="user:ada")
    layout = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "replica_dp": replica_dp}
    attempt = Attempt.objects.create(job=job, number=1, layout=layout, replicas=replicas, checkpoint_dir="/x")
    each = tp * pp * cp * replica_dp
    made = [Node(id=new_id("node"), name=f"n{i}", public_key=new_id("crd")) for i in range(-(-replicas * each // 8))]
    nodes = Node.objects.bulk_create(made)
    devices = Device.objects.bulk_create(
        [Device(id=new_id("dev"), node=node, index=index) for node in nodes for index in range(8)], batch_size=500
    )
    rows = Replica.objects.bulk_create(
        Replica(attempt=attempt, index=index, incarnation=1, state="active", contributing=True)
        for index in range(replicas)
    )
    Rank.objects.bulk_create(
        [
            Rank(replica=replica, rank=rank, node=device.node, device=device, state="training")
            for replica in rows
            for rank, device in enumerate(devices[replica.index * each : (replica.index + 1) * each])
        ],
        batch_size=500,
    )
    return job


def speak(job: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Live state and timings of all ranks but the last one, each another; the live state by field."""
    live: dict[str, Any] = {}
    ranks = list(Rank.objects.filter(replica__attempt__job=job).select_related("replica").order_by("pk"))[:-1]
    for number, rank in enumerate(ranks):
        field = f"{rank.replica.index}.{rank.replica.incarnation}.{rank.rank}"
        live[field] = {
            "section": "step", "phase": ("exchange", "optimizer")[number % 2], "step": 7 + number % 3,
            "phase_age_s": 0.1, "silent_s": (number * 37 % 101) / 10, "phase_since_s": 1.0, "at": None,
        }  # fmt: skip
        told = dict.fromkeys(PARTS, WINDOW) | {"step": WINDOW | {"median_s": 1.0 + (number * 53 % 97) / 100}}
        RankSpeed.objects.create(rank=rank, told=told, reported_at=now())
    monkeypatch.setattr(bus, "read_live", lambda name: live if name == f"job:{job.id}" else None)
    return live


def told(answer: Any) -> tuple[JobMesh, list[dict[str, Any]]]:
    assert answer.status_code == 200, answer.content
    found = msgspec.json.decode(answer.content, type=JobMesh)
    rows = list(rows_of(found.columns))
    assert len(rows) == found.rows
    assert {replica.state for replica in found.replicas} <= set(ReplicaState)
    return found, rows


def one_by_one(job: Job, live: dict[str, Any]) -> list[dict[str, Any]]:
    """The same by `rank_summary`, which the list of replicas shows, of the newest incarnation of each slot."""
    found = []
    for index in sorted(set(Replica.objects.filter(attempt__job=job).values_list("index", flat=True))):
        newest = Replica.objects.filter(attempt__job=job, index=index).order_by("-incarnation")[0]
        for rank in newest.ranks.order_by("rank"):
            row = rank_summary(rank, live=live)
            ended = row["state"] == "exited"
            said = None if ended else row["live"]
            speed = RankSpeed.objects.filter(rank=rank).first()
            found.append(
                {name: row[name] for name in (*mesh.PLACES, "state", "node_name", "device_index")}
                | {
                    "phase": said and said["phase"],
                    "step": said and said["step"],
                    "heartbeat_age_s": said and said["silent_s"],
                    "step_s": None if ended or speed is None else round(speed.told["step"]["median_s"], 4),
                }
            )
    return found


def test_every_figure_is_what_the_rows_say(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = large_job(3, tp=2, pp=2, cp=2, ep=2, replica_dp=3)
    live = speak(job, monkeypatch)
    # Slot 1 was started again, and of slot 2 a rank has ended.
    before = Replica.objects.get(index=1)
    after = Replica.objects.create(attempt=before.attempt, index=1, incarnation=2, state=ReplicaState.FORMING)
    before.ranks.update(released_at=now(), state=RankState.EXITED)
    Rank.objects.bulk_create(
        Rank(replica=after, rank=rank.rank, node=rank.node, device=rank.device, state="launching")
        for rank in before.ranks.all()
    )
    Rank.objects.filter(replica__index=2, rank=3).update(state=RankState.EXITED, released_at=now())
    found, rows = told(caller("read").get(f"/jobs/{job.id}/mesh"))
    wanted = one_by_one(job, live)
    assert rows == wanted and len(rows) == 3 * 24 == found.ranks
    assert list(found.columns) == list(mesh.FIELDS)
    assert found.layout is not None
    assert msgspec.to_builtins(found.layout) == {"dp": 3, "pp": 2, "tp": 2, "cp": 2, "ep": 2, "replica_dp": 3}
    assert [(each.index, each.incarnation, each.state) for each in found.replicas] == [
        (0, 1, "active"), (1, 2, "forming"), (2, 1, "active"),
    ]  # fmt: skip
    for worst, name in ((found.slowest, "step_s"), (found.most_silent, "heartbeat_age_s")):
        measured = [row for row in wanted if row[name] is not None]
        ranked = sorted(measured, key=lambda row: (-row[name], row["replica"], row["rank"]))[:10]
        assert [msgspec.to_builtins(each) for each in worst] == ranked
        assert len(ranked) == 10
    assert {row["step_s"] for row in rows if row["replica"] == 1} == {None}


def test_what_the_layout_does_not_have_has_no_column(caller: Any) -> None:
    job = large_job(2, tp=4)
    found, rows = told(caller("read").get(f"/jobs/{job.id}/mesh"))
    assert set(mesh.FIELDS) - set(found.columns) == {"pp", "cp", "ep", "replica_dp"}
    assert [(row["replica"], row["rank"], row["tp"]) for row in rows] == [(r, t, t) for r in (0, 1) for t in range(4)]
    assert (found.slowest, found.most_silent) == ([], [])
    assert {row["phase"] for row in rows} == {row["heartbeat_age_s"] for row in rows} == {None}


def test_fields_are_chosen_and_an_unknown_one_is_named(caller: Any) -> None:
    job = large_job(1, pp=2)
    reader = caller("read")
    assert list(reader.get(f"/jobs/{job.id}/mesh?fields=state,pp,tp").json()["columns"]) == ["pp", "state"]
    refused = reader.get(f"/jobs/{job.id}/mesh?fields=loss")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/query/fields")
    for query, status in (("limit=0", 422), ("limit=32769", 422), ("cursor=x", 400)):
        assert reader.get(f"/jobs/{job.id}/mesh?{query}").status_code == status


def test_pages_hold_each_rank_once_and_the_worst_of_the_whole_job(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = large_job(3, tp=4)
    speak(job, monkeypatch)
    reader, places, cursor = caller("read"), list[tuple[int, int]](), ""
    whole, _ = told(reader.get(f"/jobs/{job.id}/mesh"))
    while cursor is not None:
        found, rows = told(reader.get(f"/jobs/{job.id}/mesh?limit=5{cursor and f'&cursor={cursor}'}"))
        places += [(row["replica"], row["rank"]) for row in rows]
        assert (found.ranks, found.slowest, found.most_silent) == (12, whole.slowest, whole.most_silent)
        cursor = found.next
    assert places == [(replica, rank) for replica in range(3) for rank in range(4)]


@pytest.mark.parametrize("place", ["1", "a.b", "1.", ".1", "-1.2", "1.2.3", "9" * 30 + ".1"])
def test_a_cursor_that_was_changed_is_refused(caller: Any, place: str) -> None:
    from controlplane.api.pages import encode

    job = large_job(1, tp=2)
    assert caller("read").get(f"/jobs/{job.id}/mesh?cursor={encode(place, 'mesh')}").status_code == 400


def test_a_job_that_was_never_started_has_no_ranks(caller: Any) -> None:
    spec = lint(SPEC).spec
    assert spec is not None
    job = submit_job(spec, owner="ada", actor="user:ada")
    found, rows = told(caller("read").get(f"/jobs/{job.id}/mesh"))
    assert (found.attempt, found.layout, found.replicas, found.ranks, rows) == (None, None, [], 0, [])


def test_it_shows_the_newest_attempt_alone(caller: Any) -> None:
    job = large_job(2, tp=2)
    Attempt.objects.filter(job=job).update(state="ended", ended_at=now())
    newest = Attempt.objects.create(job=job, number=2, layout={"tp": 2}, replicas=1, checkpoint_dir="/x")
    found, rows = told(caller("read").get(f"/jobs/{job.id}/mesh"))
    assert (found.attempt, found.ranks, rows) == (2, 0, [])
    assert newest.number == 2


@pytest.mark.parametrize("replicas", [1, 125, 2048])
def test_8_1000_and_16384_ranks_cost_the_same_queries_and_bounded_bytes(
    caller: Any, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    job = large_job(replicas, tp=8)
    live = {
        f"{index}.1.{rank}": {"phase": "exchange", "step": 10_000_000, "silent_s": 12345.678 + index}
        for index in range(replicas)
        for rank in range(8)
    }
    monkeypatch.setattr(bus, "read_live", lambda _: live)
    reader = caller("read")
    reader.get("/me")
    with CaptureQueriesContext(connection) as queries:
        answer = reader.get(f"/jobs/{job.id}/mesh", **{"Accept-Encoding": "gzip"})
    assert len(queries) == 11, [query["sql"][:100] for query in queries]
    body = gzip.decompress(answer.content)
    assert msgspec.json.decode(body, type=JobMesh).ranks == replicas * 8
    # A replica with its ranks, and twenty worst ones.
    assert len(body) <= 10_000 + replicas * 120 + replicas * 8 * 70
    assert len(answer.content) <= 8_000 + replicas * 8 * 12


def test_who_does_not_see_the_job_does_not_see_its_ranks(db: None) -> None:
    found = tenants()
    assert caller_of(account("eve", daylight=Role.ADMIN)).get(f"/jobs/{found.job.id}/mesh").status_code == 404
    assert caller_of(account("vic", hush_hush=Role.VIEWER)).get(f"/jobs/{found.job.id}/mesh").status_code == 200


def test_incarnations_without_their_ranks_cost_as_many_queries_for_sixty_as_for_one_and_read_no_rank(
    caller: Any,
) -> None:
    job, reader, costs = large_job(60, tp=4), caller("read"), []
    path, fields = f"/jobs/{job.id}/replicas", "id,index,incarnation,state,state_since,current,created_at"
    for slot in ("?index=7", "?"):
        whole = reader.get(f"{path}{slot}").json()["items"]
        with CaptureQueriesContext(connection) as asked:
            rows = reader.get(f"{path}{slot}&fields={fields}").json()["items"]
        assert rows == [{name: one[name] for name in fields.split(",")} for one in whole] != []
        assert not any('"jobs_rank"' in query["sql"] for query in asked), "ranks are read"
        costs.append(len(asked))
    assert len(rows) == 60 and costs[0] == costs[1]
    with_acts = reader.get(f"{path}?fields=id,capabilities").json()["items"]
    assert [set(row) for row in with_acts] == [{"id", "capabilities"}] * 60
