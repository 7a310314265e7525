"""The sentinel's map of the fleet follows events: the same as all of it read anew, for the price of what changed."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from django.db.models import F

from controlplane.fleet import enrolment, services, sessions
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import submit_job
from controlplane.policy.signals.devices import XidError
from controlplane.protocol.spec import Metadata
from controlplane.recovery import ingest, signals
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import beats, events
from controlplane.runtime.models import EventStream, ProcessBeat
from controlplane.sentinel import fleetmap
from controlplane.sentinel.fleetmap import CUT_S, MapFollower, read_map
from tests.findings import finding
from tests.integration.backend.builders import hello, kill_rank, live_ranks, make_fleet, run_job
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_certificates import go_on, kill_replica

pytestmark = pytest.mark.django_db
XID = 79


class Scene:
    """A fleet with a job, and a follower that has read it all once."""

    def __init__(self, nodes: int = 9) -> None:
        self.fleet = make_fleet(nodes)
        self.job = run_job(self.fleet)
        self.follower = MapFollower()
        self.follower.turn()

    def device(self) -> Device:
        return Device.objects.select_related("node").get(node_id="node_1", index=0)

    def told_xid(self) -> None:
        signals.raise_signal(finding(XidError, node_id="node_1", device_index=0, xid=XID))

    def replica_dies_and_is_placed_elsewhere(self) -> None:
        kill_replica(self.fleet, self.job, 1)
        reconcile_job(self.job.id)
        go_on(self.fleet, self.job, first=2, until=4)

    def cancelled(self) -> None:
        Job.objects.filter(pk=self.job.pk).update(cancel_requested=True)
        reconcile_job(self.job.id)
        for row in live_ranks(self.job):
            kill_rank(self.fleet, row)
        reconcile_job(self.job.id)


def second_job(scene: Scene) -> None:
    spec = msgspec.structs.replace(job_spec(), metadata=Metadata(name="second"))
    submit_job(spec, owner="ada", actor="ada")
    reconcile_job(Job.objects.exclude(pk=scene.job.pk).get().id)


def new_node(scene: Scene) -> None:
    node = Node.objects.create(id="node_77", name="n77", public_key=f"{77:043d}")
    ingest.open_session(node.id, "web.n77", hello("n77"))


def removed(scene: Scene) -> None:
    newest = max(set(Node.objects.filter(removed_at=None).values_list("id", flat=True)) - set(read_map().jobs_on))
    enrolment.remove(newest, actor="ada", reason="gone")


CHANGES: dict[str, Callable[[Scene], object]] = {
    "nothing": lambda scene: None,
    "a replica dies": Scene.replica_dies_and_is_placed_elsewhere,
    "the job ends": Scene.cancelled,
    "another job": second_job,
    "a connection ends": lambda scene: sessions.close_session("node_1", "web.n1"),
    "it is reopened": lambda scene: (
        sessions.close_session("node_1", "web.n1"),
        services.reopen_session("node_1", "web.n1"),
    ),
    "a connection that flaps": lambda scene: (
        [(sessions.close_session("node_2", "web.n2"), services.reopen_session("node_2", "web.n2")) for _ in range(8)]
        and sessions.close_session("node_2", "web.n2")
    ),
    "a device is risky": lambda scene: services.set_device_risk(scene.device(), 0.7),
    "a device falls off the bus": lambda scene: services.mark_device_lost(scene.device(), "gone"),
    "a device is ill": lambda scene: services.set_device_health(scene.device(), healthy=False, reason="XID"),
    "an XID is told": Scene.told_xid,
    "a node is revoked": lambda scene: enrolment.revoke("node_1", actor="ada"),
    "a node is removed": removed,
    "a new node": new_node,
}


def same(follower: MapFollower) -> None:
    anew = read_map()
    for kind in ("nodes", "devices", "placed", "jobs_on", "limits", "error_s"):
        assert getattr(follower.maps[0], kind) == getattr(anew, kind), kind


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_followed_and_nothing_else_is_read(what: str) -> None:
    scene = Scene()
    before = read_map()
    CHANGES[what](scene)
    scene.follower.turn()
    same(scene.follower)
    assert scene.follower.whole_reads == 1
    assert (read_map() == before) == (what in ("nothing", "it is reopened"))


def test_all_changes_one_after_the_other() -> None:
    scene = Scene(12)
    for what in CHANGES:
        if what not in ("a node is revoked", "the job ends"):
            CHANGES[what](scene)
        scene.follower.turn()
        same(scene.follower)
    assert scene.follower.whole_reads == 1


def test_that_a_web_process_ended_and_for_how_long_a_node_is_away_needs_no_event() -> None:
    scene = Scene()
    beats.beat("web", "web", {})
    sessions.close_session("node_1", "web.n1")
    scene.follower.turn()
    assert not scene.follower.maps[0].nodes["node_1"].cut, "its process lives: it closed the connection"
    ProcessBeat.objects.filter(name="web").delete()
    scene.follower.turn()
    assert scene.follower.maps[0].nodes["node_1"].cut
    Node.objects.filter(pk="node_1").update(disconnected_at=F("disconnected_at") - timedelta(seconds=CUT_S + 1.0))
    scene.follower.turn()
    scene.follower._read({"node_1"})
    assert not scene.follower.maps[0].nodes["node_1"].cut
    same(scene.follower)


@pytest.mark.parametrize("nodes", [6, 60])
def test_a_turn_costs_what_changed_however_large_the_fleet_is(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(nodes)
    Node.objects.update(connected_at=F("connected_at") - timedelta(seconds=60.0))
    scene.follower.turn()
    made: list[str] = []
    monkeypatch.setattr(fleetmap, "NodeInfo", counted(fleetmap.NodeInfo, made))
    monkeypatch.setattr(fleetmap, "DeviceInfo", counted(fleetmap.DeviceInfo, made))
    monkeypatch.setattr(fleetmap, "RankRef", counted(fleetmap.RankRef, made))
    scene.follower.turn()
    assert made == []
    services.set_device_risk(scene.device(), 0.7)
    scene.follower.turn()
    here = Rank.objects.filter(node_id="node_1", released_at=None).count()
    assert sorted(made) == sorted(["NodeInfo", "DeviceInfo", "DeviceInfo", *["RankRef"] * here])


def counted(kind: type, made: list[str]) -> Callable[..., object]:
    def make(*args: object, **fields: object) -> object:
        made.append(kind.__name__)
        return kind(*args, **fields)

    return make


def test_where_events_are_missing_all_is_read_again() -> None:
    scene = Scene()
    EventStream.objects.filter(name=events.ALL).update(seq=F("seq") - 3)
    Device.objects.filter(node_id="node_1").update(risk=0.9)
    scene.follower.turn()
    assert scene.follower.whole_reads == 2, "the database is another one: put back from a backup"
    same(scene.follower)
    EventStream.objects.create(name=events.FORGOTTEN, seq=10**6)
    scene.follower.turn()
    assert scene.follower.whole_reads == 3


def test_a_turn_that_failed_in_the_middle_is_made_good_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    services.set_device_risk(scene.device(), 0.7)
    with monkeypatch.context() as patched:
        patched.setattr(fleetmap, "_accused", lambda node_ids: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scene.follower.turn()
    scene.follower.turn()
    assert scene.follower.whole_reads == 2
    same(scene.follower)
